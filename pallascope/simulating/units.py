"""The units of one multiprocessor (SM): servers that threads of its blocks share.

The model. A **server** does one thing at a time, in the order of the requests: a request that comes
while the server is busy starts when all earlier ones are done. An SM has five: the GMEM port, the
tensor core, SMEM, the ALU and, on Blackwell, TMEM as threads access it.

The GMEM port also keeps a mean. Its average throughput since the first use never exceeds the SM's
share of the card's bandwidth (`traffic`), so a request may start later than the server is free. The
bound is on the mean and not on each copy, since other SMs do not load all the time either: what an
SM did not use since its first copy, it may use later.

TMA's writes of what it loads take the banks of SMEM no time that products would miss: measured, a
product whose operands take 96 bytes a cycle runs at its full rate beside loads of 64 ("wgmma
64x128x128 beside loads of 32768 bytes").
"""


class Server:
    """Does one thing at a time, in the order of the requests; the `last` one has this span."""

    __slots__ = ("free", "last")

    def __init__(self) -> None:
        self.free = 0.0
        self.last: int | None = None

    def take(self, now: float, cycles: float) -> tuple[float, float]:
        """The cycles at which a request made `now` starts and ends."""
        start = max(now, self.free)
        self.free = start + cycles
        return start, self.free


class Port(Server):
    """An SM's way to GMEM; `share` is the bound on its mean rate, in bytes a cycle.

    `uses` has the (start, stop) of each request as `Timeline.gmem` does.
    """

    __slots__ = ("_begun", "_bytes", "share", "uses")

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share
        self.uses: list[tuple[float, float]] = []
        self._bytes = 0.0
        self._begun: float | None = None

    def move(self, now: float, size: float, rate: float) -> tuple[float, float]:
        """The cycles at which `size` bytes, requested `now`, start and stop moving.

        Args:
          now: in cycles.
          size: in bytes.
          rate: bytes a cycle of an SM alone.
        """
        begun = self._begun
        if begun is None:
            begun = self._begun = now
        self._bytes += size
        due = begun + self._bytes / self.share
        start, stop = self.take(max(now, due - size / rate), size / rate)
        self.uses.append((stop - size / min(rate, self.share), stop))
        return start, stop


class Sm:
    """The servers of one multiprocessor, whose share of GMEM's bandwidth is in bytes a cycle."""

    __slots__ = ("alu", "port", "smem", "tensor_core", "tmem")

    def __init__(self, share: float) -> None:
        self.port = Port(share)
        self.tensor_core, self.smem, self.alu = Server(), Server(), Server()
        self.tmem = Server()
