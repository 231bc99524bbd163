"""The order of attention's blocks: each once, the longest first, and what that saves."""

import heapq
import math

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelib.kernels.attention.order import AXES, L2_BYTES, MOST_BYTES, BlockOrder
from pipelib.kernels.hopper import H100_SMS

#: JAX compiles at first.
patient = settings(deadline=None)
#: How many columns a row sees before its own and after it.
SIDES = [(None, None), (None, 0), (0, None), (64, 0), (0, 64), (100, 200), (200, 100), (None, 9)]
orders = st.builds(
    BlockOrder.of,
    batch=st.integers(1, 3),
    heads=st.integers(1, 12),
    blocks=st.integers(1, 40),
    sides=st.sampled_from(SIDES),
    bytes_per_head=st.integers(1, 2 * L2_BYTES) | st.integers(2**20, 2**24),
)


def places(order: BlockOrder) -> np.ndarray:
    """Batch, head and block, in the order in which they begin: [count, 3]."""
    assert len(order.grid) == len(AXES)
    numbers = np.arange(4096, dtype=np.int32)  # of one shape, for which JAX compiles once
    count = math.prod(order.grid)
    index = [x.astype(np.int32) for x in np.unravel_index(numbers % count, order.grid)]
    return np.stack(np.broadcast_arrays(*order.place(*index)), 1)[:count]


@patient
@given(orders)
def test_each_block_has_a_place(order):
    found = places(order)
    shape = order.batch, order.heads, order.blocks
    assert sorted(map(tuple, found.tolist())) == list(np.ndindex(shape))
    assert found.dtype == np.int32


@patient
@given(orders)
def test_of_heads_taken_together_the_longest_blocks_begin(order):
    found = places(order)
    heads = found[:, 0] * order.heads + found[:, 1]
    length = found[:, 2] if order.last_is_longest else -found[:, 2]
    sections = np.split(np.arange(len(found)), order.batch * order.heads // order.together)
    for section in sections:
        assert len(set(heads[section])) == order.together
        assert (np.diff(length[section]) <= 0).all()


@pytest.mark.parametrize(
    ("sides", "together", "last_is_longest"),
    [
        ((None, None), 1, False),
        ((None, 0), 4, True),
        ((0, None), 4, False),
        ((4096, 0), 4, True),
        ((0, 4096), 4, False),
        ((8, 8), 4, False),
    ],
)
def test_what_a_mask_asks_for(sides, together, last_is_longest):
    """Rows that see few after them and many before: the last blocks see the most."""
    order = BlockOrder.of(1, 16, 64, sides, L2_BYTES // 4)
    assert (order.together, order.last_is_longest) == (together, last_is_longest)


@pytest.mark.parametrize(
    ("heads", "room", "together"),
    [(12, 12, 12), (12, 100, 12), (12, 5, 6), (5, 4, 5), (17, 4, 1), (12, 0.5, 1), (1, 9, 1)],
)
def test_about_as_many_heads_as_have_room_in_l2(heads, room, together):
    """As divide them all: of 12, 6 for 5; of 5, all for 4; of 17, one for 4."""
    assert BlockOrder.of(1, heads, 200, (None, 0), round(L2_BYTES / room)).together == together


@patient
@given(orders, st.integers(12, 200))
def test_each_place_is_visited_once(order, sms):
    order = order._replace(together=1, last_is_longest=False).on(sms)
    shape = order.batch, order.heads, order.blocks
    if math.prod(shape) <= sms:
        assert order.persistent is None
        visits = order.visits(*map(jnp.int32, (0, 0, 0)))
        assert (visits.count, visits.are_many) == (1, False)
        assert visits.grid(7) == (7,) and visits.split((5,)) == (0, 5)
        return
    assert order.grid == (1, 1, sms)
    counts, found = [], []
    for block in range(sms):
        visits = order.visits(*map(jnp.int32, (0, 0, block)))
        assert visits.are_many and visits.grid(7) == (visits.count, 7)
        counts.append(int(visits.count))
        place = visits.place(jnp.arange(128, dtype=jnp.int32))  # of one shape, compiled once
        found += np.stack(np.broadcast_arrays(*place), 1)[: counts[-1]].tolist()
    assert max(counts) - min(counts) <= 1 and min(counts) >= 1
    assert sorted(map(tuple, found)) == list(np.ndindex(shape))


@patient
@given(orders, st.integers(4, 200))
@pytest.mark.slow
def test_each_place_is_visited_once_in_the_order_by_length(order, sms):
    """Whatever each block then gets, which `by_length_on` looks at."""
    order = order._replace(persistent=sms, by_length=True)
    found = []
    for block in range(sms):
        visits = order.visits(*map(jnp.int32, (0, 0, block)))
        place = visits.place(jnp.arange(512, dtype=jnp.int32))  # of one shape, compiled once
        found += np.stack(np.broadcast_arrays(*place), 1)[: int(visits.count)].tolist()
        assert visits.vary and visits.are_many
    shape = order.batch, order.heads, order.blocks
    assert sorted(map(tuple, found)) == list(np.ndindex(shape))


@pytest.mark.parametrize("blocks", [16, 32, 64, 128])
def test_each_sm_gets_its_share(blocks):
    """Or the GPU deals the places out: with 16 heads of 64 blocks, 8 of them together."""
    room = 4096 // blocks // 8  # 32 MB of 16 heads with 32 blocks of 128 rows
    order = BlockOrder.of(1, 16, blocks, (None, 0), L2_BYTES // room)
    found = order.by_length_on(H100_SMS, tuple(range(1, blocks + 1)))
    assert (found.persistent is not None) == (blocks <= 32) == found.by_length
    if found.by_length:
        steps = []
        for block in range(H100_SMS):
            visits = found.visits(*map(jnp.int32, (0, 0, block)))
            _, _, place = visits.place(jnp.arange(int(visits.count), dtype=jnp.int32))
            steps.append(int((place + 1).sum()))
        assert max(steps) <= 1.05 * sum(steps) / H100_SMS
    assert BlockOrder.of(1, 2, 8, (None, 0), 1).by_length_on(132, (1,) * 8).persistent is None


@pytest.mark.parametrize(
    ("batch", "heads", "seq", "together"),
    [(8, 16, 896, 128), (16, 12, 768, 192), (4, 24, 1536, 96), (16, 16, 1024, 8), (1, 16, 8192, 8)],
)
def test_short_blocks_take_more_heads_together_than_l2_has_room_for(batch, heads, seq, together):
    """If no number within its room leaves each SM its share; long blocks never do."""
    size = 2 * seq * 128 * 2
    order = BlockOrder.of(batch, heads, seq // 128, (None, 0), size)
    found = order.by_length_on(H100_SMS, tuple(range(1, seq // 128 + 1)), size)
    assert found.together == together
    assert found.by_length == (seq != 8192)
    assert (found.together * size > L2_BYTES) == (together >= 96)
    assert found.together * size <= MOST_BYTES


def test_blocks_that_all_run_at_once_need_no_order():
    of = lambda blocks: BlockOrder.of(1, 16, blocks, (None, 0), 2**20).together
    assert (of(8), of(9)) == (1, 16)


def idle(order: BlockOrder) -> float:
    """By how much causal blocks in an order take longer than if no SM were idle, simulated.

    Of rows and columns in blocks of one size; a block takes its steps and two more.
    """
    blocks = places(order)[:, 2]
    times = (blocks + 1 if order.last_is_longest else order.blocks - blocks) + 2
    ends = [0] * H100_SMS
    for time in times.tolist():
        heapq.heapreplace(ends, ends[0] + time)
    return max(ends) / (times.sum() / H100_SMS)


@pytest.mark.parametrize("sides", [(None, 0), (0, None)])
@pytest.mark.parametrize(("seq", "before"), [(8192, 1.10), (4096, 1.20)])
def test_what_the_order_saves(seq, before, sides):
    """The numbers of the module's docstring, with 16 heads of 128."""
    heads, blocks = 16, seq // 128
    order = BlockOrder.of(1, heads, blocks, sides, 4 * seq * 128)
    assert idle(order._replace(together=1)) > before
    assert idle(order) < 1.02
