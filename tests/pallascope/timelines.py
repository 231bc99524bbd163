"""Timelines to draw, from a small pipeline worked out by hand: no simulator here."""

from pallascope.spans import Span
from pallascope.timeline import Timeline

LANES = ("memory thread", "compute thread 0", "TMA", "tensor core")


def ring(slots=2, steps=8, latency=600, multiply=250, **fields):
    """A memory thread loads into a ring of slots; a compute thread multiplies, then stores."""
    spans, landed, freed = [], [], []

    def add(lane, start, stop, kind, text, cause=None, step=None, **more):
        line = f"matmul.py:{40 + lane}"
        slot = None if step is None else step % slots
        more = {"slot": slot, "step": () if step is None else (step,), **more}
        spans.append(Span(lane, start, stop, kind, text, line=line, cause=cause, **more))
        return len(spans) - 1

    def wait(lane, now, cause, text, step):
        until = max(now + 10, spans[cause].stop + 10)
        add(lane, now, until, "wait", text, cause, step)
        return until

    now = done = 0
    for k in range(steps):
        if k >= slots:
            now = wait(0, now, freed[k - slots], f"waits until slot {k % slots} is consumed", k)
        add(0, now, now + 20, "issue", f"starts the copy of step {k}", step=k)
        now += 20
        text = f"copies a[{64 * k}:{64 * k + 64}] to slot {k % slots}"
        landed.append(add(2, now, now + latency, "load", text, step=k))
        begin = done
        done = wait(1, done, landed[k], f"waits for the copy of step {k}", k)
        add(1, done, done + 15, "issue", f"starts the product of step {k}", step=k)
        product = add(3, done + 15, done + 15 + multiply, "wgmma", "multiplies 128x64x128", step=k)
        done = wait(1, done + 15, product, "waits for the tensor core", k)
        freed.append(add(1, done, done + 5, "issue", f"arrives on consumed[{k % slots}]", step=k))
        done += 5
        add(1, begin, done, "scope", scope="body", step=k, text="the body", slot=None)
    add(1, done, done + 90, "compute", "scales the accumulator")
    add(1, done + 90, done + 240, "access", "writes o_smem")
    out = add(2, done + 250, done + 700, "store", "copies o_smem to o")
    add(1, done + 250, done + 710, "wait", "waits for the store", out)
    defaults = {
        "name": "matmul",
        "lanes": LANES,
        "spans": tuple(spans),
        "cycles": done + 710.0,
        "clock_hz": 1.755e9,
        "source": "simulated",
        "machine": "a machine of the tests",
        "notes": ("One of 132 blocks.",),
    }
    return Timeline(**{**defaults, **fields})
