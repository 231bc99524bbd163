"""Links: the way out of each device, by which its bytes reach another device's memory.

The model. Each device has one server for all that leaves it, over NVLink, at
`nvlink_bytes_per_second`. Bytes go through the SM's GMEM port and the link at once: a copy is
through when both have moved all of it. A store takes the link of the storing device. A load takes
the link of the device that has the memory. An access of several devices' memory (`multimem`) leaves
its own device once, since NVLink's switch spreads it.

Not covered: the way into a device, which is as fast, so that it never bounds what each other device
sends to a neighbour of its own; what several devices send to one.
"""

from pipelib.schedule.machine import Machine
from pipelib.schedule.program import Op, Program, Space
from pipelib.schedule.simulating.units import Server


class Links:
    """The links of a program's devices, on a machine."""

    def __init__(self, program: Program, machine: Machine) -> None:
        self._machine = machine
        self._servers = [Server() for _ in range(program.num_devices)]
        self._here = [program.device_of(block) for block in range(program.blocks)]
        is_gmem = (buffer.space is Space.GMEM for buffer in program.buffers)
        self._homes = [
            program.home_of(buffer.name) if shared else None
            for buffer, shared in zip(program.buffers, is_gmem)
        ]
        self._semaphores = [program.home_of(barrier.name) for barrier in program.barriers]

    def of(self, block: int, op: Op) -> Server | None:
        """The link that an access of a block takes; None if it stays on the block's device."""
        if len(self._servers) < 2:
            return None
        here = self._here[block]
        for region in op.writes:
            if self._homes[region.buffer] not in (None, here):
                return self._servers[here]
        for region in op.reads:
            if (home := self._homes[region.buffer]) not in (None, here):
                return self._servers[home or 0]
        return None

    def move(self, link: Server, now: float, moved: float, size: float, op: Op) -> float:
        """When bytes are through that the port moves from `now` to `moved`, in cycles."""
        machine = self._machine
        rate = machine.nvlink("nvlink_bytes_per_second", op.line) / machine.clock_hz
        return max(moved, link.take(now, size / rate)[1])

    def latency(self, op: Op) -> float:
        """Cycles from there until the thread knows that the bytes have landed."""
        return self._machine.nvlink("nvlink_store_latency_cycles", op.line)

    def signal_latency(self, block: int, op: Op) -> float:
        """Cycles until a signal of a block has arrived: none on its own device."""
        if len(self._servers) < 2 or self._semaphores[op.place[0]] == self._here[block]:
            return 0.0
        return self._machine.nvlink("nvlink_latency_cycles", op.line)
