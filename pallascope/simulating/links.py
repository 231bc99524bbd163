"""Links: the way out of each device, by which its bytes reach another device's memory.

The model. Each device has one server for all that leaves it, over NVLink, at
`nvlink_bytes_per_second`. Bytes go through the SM's GMEM port and the link at once: a copy is
through when both have moved all of it. The port then moves `nvlink_sm_bytes_per_cycle`. A store
takes the link of the storing device. A load takes the link of the device that has the memory, and
its own latency comes on top. An access of several devices' memory (`multimem`) leaves its own
device once, since NVLink's switch spreads it.

Not covered: the way into a device, which is as fast, so that it never bounds what each other device
sends to a neighbour of its own; what several devices send to one.
"""

from pallascope.machine import Machine
from pallascope.program import Op, Program, Space
from pallascope.simulating.units import Port, Server


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

    def move(
        self, link: Server | None, port: Port, now: float, size: float, at_home: float, op: Op
    ) -> tuple[float, float]:
        """The cycles at which bytes, requested `now`, start and stop moving.

        Args:
          link: that of the access, through which they move too, if any.
          port: the SM's.
          now: in cycles.
          size: in bytes.
          at_home: bytes a cycle of an SM alone, where there is no link.
          op: the access.
        """
        machine = self._machine
        if link is None:
            return port.move(now, size, at_home)
        alone = machine.nvlink("nvlink_sm_bytes_per_cycle", op.line)
        together = machine.nvlink("nvlink_bytes_per_second", op.line) / machine.clock_hz
        start, moved = port.move(now, size, alone)
        return start, max(moved, link.take(start, size / together)[1])

    def latency(self, link: Server | None, op: Op, at_home: float = 0.0) -> float:
        """Cycles from there until the thread knows that the bytes have landed."""
        if link is None:
            return at_home
        return self._machine.nvlink("nvlink_store_latency_cycles", op.line)

    def signal(self, block: int, op: Op) -> tuple[float, float]:
        """Cycles until a signal of a block has arrived, and until it has been answered.

        On its own device there is nothing to wait for.
        """
        if len(self._servers) < 2 or self._semaphores[op.place[0]] == self._here[block]:
            return 0.0, 0.0
        of = self._machine.nvlink
        return of("nvlink_latency_cycles", op.line), of("nvlink_answer_cycles", op.line)
