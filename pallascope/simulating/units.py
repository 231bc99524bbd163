"""The units of one multiprocessor (SM): servers that threads of its blocks share.

The model. A **server** does one thing at a time, in the order of the requests: a request that comes
while the server is busy starts when all earlier ones are done. An SM has six: the GMEM port, the
tensor core, SMEM, one for exponentials and the like, the ALU for all else and, on Blackwell, TMEM
as threads access it.

The GMEM port also keeps a mean. Its average throughput never exceeds the SM's share of the card's
bandwidth (`traffic`), so a request may start later than the server is free. The bound is on the
mean and not on each copy, since other SMs do not load all the time either: what an SM did not use
since the first copy of a block, it may use later. What it did not use when a block ended is lost:
the other SMs change blocks at about the same time.

TMA's writes of what it loads take the banks of SMEM no time that products would miss: measured, a
product whose operands take 96 bytes a cycle runs at its full rate beside loads of 64 ("wgmma
64x128x128 beside loads of 32768 bytes").
"""


class Server:
    """Does one thing at a time, in the order of the requests; the `last` one has this span, and
    would have begun when the server was `ready` if that had been asked for in time."""

    __slots__ = ("free", "last", "ready")

    def __init__(self) -> None:
        self.free = self.ready = 0.0
        self.last: int | None = None

    def take(self, now: float, cycles: float) -> tuple[float, float]:
        """The cycles at which a request made `now` starts and ends."""
        self.ready = self.free
        start = max(now, self.ready)
        self.free = start + cycles
        return start, self.free


class Shared(Server):
    """A server that threads take turns at within what each of them asks for: it is free for others
    later, or sooner, than for the thread that asked last."""

    __slots__ = ("_own", "_thread")

    def __init__(self) -> None:
        super().__init__()
        self._thread: int | None = None
        self._own = 0.0

    def free_for(self, thread: int) -> float:
        """The cycle from which a thread can have it."""
        return self._own if thread == self._thread else self.free

    def hold(self, thread: int, start: float, done: float, cycles: float) -> None:
        """Takes it from `start` on: for so many `cycles` from others, from itself until `done`."""
        self.free, self._own, self._thread = start + cycles, done, thread


class Port(Server):
    """An SM's way to GMEM; `share` is the bound on its mean rate, in bytes a cycle.

    `uses` has the (start, stop) of each request as `Timeline.gmem` does.
    """

    __slots__ = ("_begun", "_bytes", "_is_new", "share", "uses")

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share
        self.uses: list[tuple[float, float]] = []
        self._bytes = 0.0
        self._begun: float | None = None
        self._is_new = False

    def renew(self) -> None:
        """A block begins in the place of another: nothing is left of what that one did not use."""
        self._is_new = True

    def move(self, now: float, size: float, rate: float) -> tuple[float, float]:
        """The cycles at which `size` bytes, requested `now`, start and stop moving.

        Args:
          now: in cycles.
          size: in bytes.
          rate: bytes a cycle of an SM alone.
        """
        spent = self._bytes / self.share
        if self._begun is None:
            self._begun = now
        elif self._is_new:
            self._begun = max(self._begun, now - spent)
        begun, self._is_new = self._begun, False
        self._bytes += size
        due = begun + self._bytes / self.share - size / rate
        start, stop = self.take(max(now, due), size / rate)
        self.ready = max(self.ready, due)
        self.uses.append((stop - size / min(rate, self.share), stop))
        return start, stop


class Sm:
    """The servers of one multiprocessor, whose share of GMEM's bandwidth is in bytes a cycle."""

    __slots__ = ("alu", "functions", "port", "smem", "tensor_core", "tmem")

    def __init__(self, share: float) -> None:
        self.port = Port(share)
        self.tensor_core, self.smem, self.tmem = Server(), Server(), Server()
        self.functions, self.alu = Shared(), Shared()
