"""Diagrams of several GPUs: a slot on another device, and a transfer behind products."""

from pipelib_book.diagrams.figure import sketch
from pipelib_book.diagrams.shapes import (
    COMPUTE,
    LOAD,
    PHONE,
    STORE,
    WGMMA,
    Clock,
    Drawing,
    Part,
    Work,
    arrow,
    barrier,
    box,
    drawing,
    heading,
    key,
    panel,
    text,
    wait,
)


@sketch(
    22,
    "A slot on another device",
    caption="The four words between two GPUs: the slot lies in the memory of the GPU that reads it."
    " A signal to the reader's semaphore says produced, a signal to the sender's says consumed.",
)
def slot_across() -> Drawing:
    """Two columns, GPU 0 and GPU 1. GPU 0 has a sender with a tile in SMEM and, in its GMEM, the
    semaphore freed. GPU 1 has a receiver with a tile in SMEM and, in its GMEM, two slots and the
    semaphore arrived. The sender stores its tile into a slot of GPU 1, over NVLink, and then
    signals arrived on GPU 1. The receiver waits for arrived, loads the slot, and then signals freed
    on GPU 0, for which the sender waits.
    """
    parts: list[Part] = []
    for x, name, role in ((0, "GPU 0", "sender"), (232, "GPU 1", "receiver")):
        parts += [
            panel(x, 0, 152, 236, name),
            box(x + 12, 30, 128, 40, role, "tile in SMEM", kind=COMPUTE),
        ]
    return drawing(
        PHONE,
        262,
        *parts,
        box(244, 106, 60, 32, "slot 0", kind=LOAD),
        box(312, 106, 60, 32, "slot 1", kind=LOAD),
        barrier(244, 156, 128, "arrived"),
        barrier(12, 196, 128, "freed"),
        arrow((100, 70), (100, 122), (244, 122), bytes_of=STORE),
        arrow((60, 70), (60, 168), (244, 168)),
        arrow((342, 106), (342, 70), bytes_of=LOAD),
        arrow((372, 50), (378, 50), (378, 208), (140, 208)),
        text(192, 107, "tile"),
        text(192, 153, "produced"),
        text(192, 193, "consumed"),
        text(192, 254, "between the two: NVLink"),
    )


@sketch(
    22,
    "A transfer behind products",
    caption="A schematic, not a measurement: two GPUs multiply their own shard while it travels to"
    " the other GPU, row by row of tiles. Then each multiplies the shard that has arrived.",
)
def hidden_gather() -> Drawing:
    """Rows over time. For each of GPU 0 and GPU 1 a row of products and a row of what it sends. GPU
    0 multiplies rows 0 to 3 of its own shard, and meanwhile sends its rows 0 to 3 to GPU 1; then it
    multiplies rows 0 to 3 of GPU 1's shard. GPU 1 does the same with the shards exchanged. Below,
    one GPU that gathers first: it waits while the rows arrive, then multiplies its own shard, then
    the other one, and ends later.
    """
    clock = Clock(62, 28)
    parts: list[Part] = []
    for gpu, y in ((0, 22), (1, 86)):
        own = [Work(i, i + 1, f"{'AB'[gpu]}{i}", WGMMA) for i in range(4)]
        other = [Work(4 + i, 5 + i, f"{'BA'[gpu]}{i}", COMPUTE) for i in range(4)]
        sent = [Work(0.8 * i, 0.8 * i + 0.8, f"{'AB'[gpu]}{i}", STORE) for i in range(4)]
        parts += [
            clock.lane(y, f"GPU {gpu}", own + other, 22),
            clock.lane(y + 26, "sends", sent, 22),
        ]
    late = [wait(0, 3.2, "gather")]
    late += [Work(3.2, 7.2, "own shard", WGMMA), Work(7.2, 11.2, "other shard", COMPUTE)]
    return drawing(
        PHONE,
        250,
        heading(0, 8, "`collective_matmul`"),
        *parts,
        heading(0, 152, "gather, then product"),
        clock.lane(166, "GPU 0", late, 22),
        clock.axis(206, 11.5),
        key(62, 238, "own shard", kind=WGMMA),
        key(166, 238, "other shard", kind=COMPUTE),
        key(290, 238, "NVLink", kind=STORE),
    )
