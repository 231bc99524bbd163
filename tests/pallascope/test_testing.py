"""`assert_clean` and `watched`: faults fail, refusals are kept apart."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallascope
from pallascope.testing import assert_clean, watched
from pipelib_book.gallery import GALLERY

HAZARD = GALLERY["missing-commit"]
ARGS = HAZARD.arguments(np.random.default_rng(0), 1)
RIGHT, WRONG = (functools.partial(HAZARD.kernel, fixed=fixed) for fixed in (True, False))
ROW = jax.ShapeDtypeStruct((128,), jnp.float32)


def faulty_in(faulty):
    """A kernel that lacks its commit_smem in the blocks of a grid of 5 for which `faulty` holds."""

    def body(x, o, o_smem):
        block = lax.axis_index("i")
        o_smem[...] = x[...]
        pl.when(jnp.logical_not(faulty(block)))(plgpu.commit_smem)
        plgpu.copy_smem_to_gmem(o_smem, o.at[pl.ds(block * 128, 128)])
        plgpu.wait_smem_to_gmem(0)

    return plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((640,), jnp.float32),
        grid=(5,),
        grid_names=("i",),
        scratch_types=[plgpu.SMEM((128,), jnp.float32)],
    )


def undecided(x, o):
    """Its flow depends on what a tensor holds."""

    @pl.when(x[0] > 0)
    def _():
        o[...] = x[...]


REFUSED = plgpu.kernel(undecided, out_type=ROW)


def test_a_clean_kernel_passes_and_a_faulty_one_fails_with_the_whole_report():
    assert_clean(RIGHT, *ARGS)
    with pytest.raises(AssertionError) as error:
        assert_clean(WRONG, *ARGS)
    assert str(error.value) == str(pallascope.check(HAZARD.program(fixed=False)))


def test_strict_is_check_s():
    """A load over what was read with ordinary loads, with no commit_smem between."""

    def twice(x, o, x_smem, barrier):
        for _ in range(2):
            plgpu.copy_gmem_to_smem(x, x_smem, barrier)
            plgpu.barrier_wait(barrier)
            o[...] = x_smem[...]

    scratch = [plgpu.SMEM((128,), jnp.float32), plgpu.Barrier()]
    kernel, x = plgpu.kernel(twice, out_type=ROW, scratch_types=scratch), ROW
    assert_clean(kernel, x)
    with pytest.raises(AssertionError, match="missing-commit"):
        assert_clean(kernel, x, strict=True)
    for strict in (False, True):
        with watched(strict=strict) as watch:
            jax.eval_shape(kernel, x)
        assert bool(watch.faulty) == strict


@pytest.mark.parametrize("at", [0, 1, 2, 4])
def test_which_blocks_are_checked(at):
    kernel, x = faulty_in(lambda block: block == at), ROW
    clean = {
        "first": at != 0,
        "diagonal": at not in (0, 2, 4),
    }
    for blocks, is_clean in clean.items():
        with watched(blocks=blocks) as watch:
            jax.eval_shape(kernel, x)
        assert (not watch.faulty) == is_clean, blocks
        if is_clean:
            assert_clean(kernel, x, blocks=blocks)
        else:
            with pytest.raises(AssertionError, match=rf"in block \({at},\) of grid \(5,\)"):
                assert_clean(kernel, x, blocks=blocks)
    with pytest.raises(AssertionError, match=rf"block \({at},\)"):
        assert_clean(kernel, x, blocks=[(at,)])


def test_a_choice_has_a_name():
    with pytest.raises(ValueError) as error, watched(blocks="every"):
        pass
    assert str(error.value) == (
        "'every' is not a choice of blocks, so it is unknown which blocks to check: give one of"
        " first, diagonal, all, together."
    )


def test_a_kernel_that_cannot_be_checked_is_not_clean():
    with pytest.raises(AssertionError, match=r"undecided: not checked: .*what a tensor holds"):
        assert_clean(REFUSED, ROW)


def test_watched_keeps_refusals_apart_and_goes_on():
    with watched() as watch:
        jax.eval_shape(REFUSED, ROW)
        jax.eval_shape(RIGHT, *ARGS)
    assert len(watch.verdicts) == 2 and not watch.faulty
    watch.assert_clean()
    (refused,) = watch.refused
    assert str(refused).startswith("undecided: not checked: ")
    assert str(watch).endswith("pallascope checked 1 block.")


def test_watched_says_all_that_is_wrong():
    with watched() as watch:
        jax.eval_shape(WRONG, *ARGS)
        jax.eval_shape(faulty_in(lambda block: block == 4), ROW)
        assert not watch.verdicts  # nothing is checked before the end
    assert len(watch.faulty) == 2
    with pytest.raises(AssertionError) as error:
        watch.assert_clean()
    assert all(str(verdict) in str(error.value) for verdict in watch.faulty)


def test_watched_checks_after_a_failure_too():
    with pytest.raises(KeyError), watched() as watch:
        jax.eval_shape(WRONG, *ARGS)
        raise KeyError
    assert watch.faulty


def test_flow_may_depend_on_integers_that_are_known_when_it_runs():
    def steps(x, count, o):
        lax.fori_loop(0, count[0], lambda *_: None, None)
        o[...] = x[...]

    kernel, x = plgpu.kernel(steps, out_type=ROW), np.ones(128, np.float32)
    with watched() as watch, plgpu.force_gpu_interpret_mode():
        kernel(x, np.array([3], np.int32))
    assert len(watch.verdicts) == 1 and not watch.refused
    with watched() as watch:
        jax.eval_shape(kernel, x, np.array([3], np.int32))
    assert len(watch.verdicts) == len(watch.refused) == 1
