"""`collective_matmul`: a product whose left factor lies in pieces on several GPUs.

The model. Each of D devices has M rows of the left factor, its **shard**, and some columns of the
right one. Each needs all shards for its columns of the result. So the transfer of the shards and
the products run at the same time, in one kernel:

=============  =============================================================================
`config`       how the work is divided, and what that takes of an SM
`choosing`     which configuration `collective_matmul` takes by itself
`call`         `collective_matmul` itself: what it refuses, the gradients, the plain way
`kernel`       what the blocks and threads do, and why it is right on any timing
=============  =============================================================================

Who sends. Some blocks do nothing else. A block that sends has a share of its device's shard: TMA
loads a piece into SMEM, and stores it from there into the memory of another device. The blocks that
multiply share nothing with it but L2. The tiles of a product seldom need all SMs: 256 tiles take as
many rounds on 128 SMs as on 132. Where the transfer is longer, more SMs send and fewer multiply.

Whereto. All devices of a host reach each other at the same speed (NVSwitch). So a device sends its
shard directly: first all of it to the next device, then to the one after, and so on. At each time a
device then sends to one device and receives from one, if all are equally fast, and shards arrive
one after the other, in the order in which they are multiplied. A ring, which hands each shard on
D - 1 times, would move as many bytes over each link, but a shard would wait for all hops before.

When. A device multiplies its own shard first. Before it loads a tile's rows of another shard, it
waits until they have arrived: that is told for each row of tiles, not for each shard.

One device. With an axis of one device it is `matmul`.
"""

from pipelib.kernels.collective.call import collective_matmul
from pipelib.kernels.collective.config import CollectiveConfig

__all__ = ["CollectiveConfig", "collective_matmul"]
