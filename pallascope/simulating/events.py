"""Events: which thread goes next.

The algorithm. A heap has each thread that can go on, with the time at which it does. The earliest
thread goes first, among equals the lowest number, so a program has one timeline. A thread does its
ops one after another for as long as no other thread is earlier. A thread that waits for others is
not in the heap until one of them resumes it. A thread may also begin later than the others, when
somebody starts it. What happens by itself at some time, as a signal's arrival, is a **call**, which
comes before the threads of that time. Source: the event-scheduling method of discrete-event
simulation.
"""

import heapq
from collections.abc import Callable, Mapping, Sequence

from pallascope.program import Kind, Op
from pallascope.simulating.threads import Thread

# Takes the thread, the op and the time; gives when the thread goes on, None if that is not known.
Handler = Callable[[Thread, Op, float], float | None]
# Takes a thread that has done its last op, and the time.
Ended = Callable[[Thread, float], None]
# What happens by itself.
Call = Callable[[], None]


class Events:
    """The threads by the time at which they go on; `waiting` has the numbers of those that wait.

    The first threads begin at the times `starts`, in cycles; `ended` is called when a thread has
    done its last op.
    """

    def __init__(self, threads: Sequence[Thread], starts: Sequence[float], ended: Ended) -> None:
        self.threads = threads
        self.waiting: set[int] = set()
        self._heap = [(start, thread.number) for start, thread in zip(starts, threads)]
        self._ended = ended
        self._calls, self._last = dict[int, Call](), 0  # by numbers below those of threads

    def run(self, handlers: Mapping[Kind, Handler]) -> None:
        """Does the ops of all threads until none can go on."""
        heapq.heapify(self._heap)
        while self._heap:
            now, number = heapq.heappop(self._heap)
            if number < 0:
                self._calls.pop(number)()
            else:
                self._advance(self.threads[number], now, handlers)

    def _advance(self, thread: Thread, now: float, handlers: Mapping[Kind, Handler]) -> None:
        """Does the thread's ops for as long as no other thread is earlier."""
        heap, ops, number = self._heap, thread.ops, thread.number
        while thread.at < len(ops):
            if heap and (now, number) > heap[0]:
                heapq.heappush(heap, (now, number))
                return
            op = ops[thread.at]
            thread.since = now
            end = handlers[op.kind](thread, op, now)
            if end is None:
                self.waiting.add(number)
                return
            now, thread.at = end, thread.at + 1
        self._ended(thread, now)

    def call(self, time: float, call: Call) -> None:
        """Has something happen at a time, in cycles, that is not before now."""
        self._last -= 1
        self._calls[self._last] = call
        heapq.heappush(self._heap, (time, self._last))

    def start(self, thread: Thread, now: float) -> None:
        """Lets a thread begin."""
        heapq.heappush(self._heap, (now, thread.number))

    def resume(self, thread: Thread, end: float) -> None:
        """Lets a thread that waits at an op go on with the next op at `end`, in cycles."""
        self.waiting.discard(thread.number)
        thread.at += 1
        heapq.heappush(self._heap, (end, thread.number))
