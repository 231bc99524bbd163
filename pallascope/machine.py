"""`Machine`: the parameters of the model in `simulate`, each with its unit and its source.

Source of all numbers: a machine's file in `machines/` here, which `benchmarks/machine.py` derives
from the record of its measurements, `benchmarks/results/<gpu>/machine.json`; a test holds the two
together. The probes named below are in that record. A number without a probe says where it is from.
What is **calibrated** was chosen so that simulated times of the calibration pairs of
`benchmarks.model_pairs` come near the measured ones; pairs that are held out had no part in it.

Under load a GPU lowers its clock, and GMEM then gives more bytes in a cycle. `machine.loaded(use)`
is the machine at the clock that it has when a kernel uses that much of its tensor cores.
"""

import dataclasses
import json
import math
import pathlib
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, cast

WARP_LANES, THREAD_LANES = 32, 128  # lanes of a warp, and of a Pallas thread
LINE_BYTES = 128  # that L2 fetches from HBM together
COLUMN_BYTES = 128 * 4  # of TMEM: 32 bits in each of 128 lanes
WAVEFRONT_BYTES = 128  # that the banks of shared memory give or take at once
# That an SM holds. Source: CUDA C++ Programming Guide, technical specifications.
BLOCKS = 32


@dataclass(frozen=True, slots=True)
class Machine:
    """One GPU as `simulate` sees it; cycles are those of a multiprocessor (SM).

    Attributes:
      name: what a figure says it was simulated on.
      clock_hz: cycles a second; the SM's counter over the GPU's timer, light load ("clock rate").
      sms: multiprocessors.
      load_issue_cycles: a thread that starts a load ("load 1024 bytes, L2", inner part).
      l2_latency_cycles: from there until it has landed, without its bytes' time ("load ..., L2").
      hbm_latency_cycles: the same from HBM ("load ..., HBM").
      sm_bytes_per_cycle: loads of one SM alone, from L2 ("load ring ..., 1 blocks, L2", the most).
      l2_bytes_per_second: loads of all SMs from L2, each of tiles of its own ("load ring ..., 132
        blocks, L2", the most).
      l2_shared_bytes_per_second: loads of all SMs from L2, of tiles that blocks of one row or one
        column of the grid share ("shared ring ..., as in a product of ...", the most).
      hbm_bytes_per_second: as many reads as writes ("copy": x + 1 on 4 GiB of float32).
      hbm_read_gain: how many times as many bytes it reads if nothing is written ("read", the
        largest of 4 GiB of float32, beside "copy").
      store_issue_cycles: a thread that starts a store ("store 1024 bytes, written", inner part).
      store_latency_cycles: from its bytes' time until a waiting thread goes on ("store ...").
      store_bytes_per_cycle: stores of one SM alone ("store ...", from their sizes).
      wgmma_issue_cycles: a thread that starts a product ("wgmma 64x64x64 ...", inner part).
      wgmma_latency_cycles: from a product's end until a waiting thread goes on ("wgmma ...").
      wgmma_flops_per_cycle: (dtype, rate) of each operand type ("wgmma 64x128x...").
      arrive_cycles: an arrival on a barrier ("arrive", inner part).
      wait_cycles: a wait on a phase that was complete before ("wait, passed").
      wake_cycles: from a phase's completion until a waiting thread goes on ("round trip").
      meet_cycles: a block-wide barrier where a shared scope begins ("meet").
      fence_cycles: `commit_smem` ("fence", inner part).
      smem_latency_cycles: an ordinary read of SMEM until its value can be used, without its bytes'
        time ("read, chained").
      smem_write_cycles: an ordinary write of SMEM, without its bytes' time: the thread's lanes meet
        before and after ("write 16x128 ...").
      smem_bytes_per_cycle: ordinary accesses of SMEM, 128 in each wavefront, and operands of wgmma
        ("write ...x128 ...").
      alu_ops_per_cycle: operations on float32 elements ("add"); a multiplication and an addition
        that the compiler fuses take the time of one ("multiply and add").
      transcendental_ops_per_cycle: exponentials and the like ("exp2, approximate").
      transcendental_slowdown: how many times as long they take while the tensor core multiplies
        ("exp2 of 64x128, beside products ...", by "exp2 of 64x128").
      alu_slowdown: the same of what else a softmax does ("softmax of 64x128, ...", the same two,
        less their exponentials).
      arithmetic_reach: calibrated; the fraction of their rates that units of arithmetic reach which
        several threads ask for.
      exchanges_per_cycle: words of 32 bits that lanes pass each other (CUDA C++ Programming Guide,
        throughput of native arithmetic instructions: warp shuffles of compute capability 9.0).
      add_cost: what a store that adds takes, in times of a store ("add store ring", "store ring").
      launch_seconds: an empty kernel of one block on each SM (`starts.json`, as the next three).
      block_start_cycles: from a block's end until another one runs in its place.
      block_gap_cycles: between the starts of two blocks of an SM that has room for both.
      barrier_init_cycles: for each mbarrier that a block initialises.
      wgmma_restart_cycles: calibrated; what a wait for products costs a thread in a kernel, beyond
        the latency that the probe shows.
      wgmma_reach: calibrated; the fraction of the tensor core's rate that products back to back
        reach in a kernel.
      code_growth: calibrated; instructions for each operation of the jaxpr.
      cold_seconds: calibrated; what the first accesses of a launch lose whose data HBM has.
      hbm_static_reach: calibrated; the fraction of HBM's bandwidth that a launch reaches whose
        blocks all run at once, since the slowest SM ends it.
      clock_at: (use, fraction) in order, linear in between: the fraction of `clock_hz` that a
        kernel keeps under sustained load, by the fraction of all tensor cores' rate that it uses
        (fitted to the clocks of calibration pairs). The power limit lowers it.
      tcgen05_flops_per_cycle: (dtype, rate) of Blackwell's tensor core; Hopper has none.
      tmem_bytes_per_cycle: of a thread's accesses of TMEM; None where there is no TMEM.
      signal_cycles: a thread that signals a semaphore (`nvlink.json`, as the next six: "own
        signal", less "waits").
      await_cycles: from when a semaphore holds enough until a thread that waits goes on ("waits").
      nvlink_latency_cycles: a signal's way to another device ("signal", less "own signal"); None
        where there is no NVLink, as the next four.
      nvlink_answer_cycles: from such a signal until its thread can signal again, since that waits
        for an answer ("signals", less `signal_cycles`).
      nvlink_store_latency_cycles: from a store's bytes' time until a thread that waits for it goes
        on, if the memory is another device's ("tile" of 1,024 bytes, less "signal").
      nvlink_sm_bytes_per_cycle: what one SM alone sends ("stream", 1 block).
      nvlink_bytes_per_second: what a device sends, in one direction ("stream", the most).

    Example:
      A question to a machine that nobody built: what if loads came at once?

      >>> dream = pallascope.H200.changed(name="dream", hbm_latency_cycles=0.0)
      >>> x = jax.ShapeDtypeStruct((4, 128), jnp.float32)
      >>> program = pallascope.trace(softmax, x)
      >>> times = [pallascope.simulate(program, m) for m in (dream, pallascope.H200)]
      >>> times[0].cycles < times[1].cycles
      True
    """

    name: str
    clock_hz: float
    sms: int
    load_issue_cycles: float
    l2_latency_cycles: float
    hbm_latency_cycles: float
    sm_bytes_per_cycle: float
    l2_bytes_per_second: float
    l2_shared_bytes_per_second: float
    hbm_bytes_per_second: float
    hbm_read_gain: float
    store_issue_cycles: float
    store_latency_cycles: float
    store_bytes_per_cycle: float
    wgmma_issue_cycles: float
    wgmma_latency_cycles: float
    wgmma_flops_per_cycle: tuple[tuple[str, float], ...]
    arrive_cycles: float
    wait_cycles: float
    wake_cycles: float
    meet_cycles: float
    fence_cycles: float
    smem_latency_cycles: float
    smem_write_cycles: float
    smem_bytes_per_cycle: float
    alu_ops_per_cycle: float
    transcendental_ops_per_cycle: float
    transcendental_slowdown: float
    alu_slowdown: float
    arithmetic_reach: float
    exchanges_per_cycle: float
    add_cost: float
    launch_seconds: float
    block_start_cycles: float
    block_gap_cycles: float
    barrier_init_cycles: float
    wgmma_restart_cycles: float
    wgmma_reach: float
    code_growth: float
    cold_seconds: float
    hbm_static_reach: float
    clock_at: tuple[tuple[float, float], ...]
    tcgen05_flops_per_cycle: tuple[tuple[str, float], ...] = ()
    tmem_bytes_per_cycle: float | None = None
    signal_cycles: float = 0.0
    await_cycles: float = 0.0
    nvlink_latency_cycles: float | None = None
    nvlink_answer_cycles: float | None = None
    nvlink_store_latency_cycles: float | None = None
    nvlink_sm_bytes_per_cycle: float | None = None
    nvlink_bytes_per_second: float | None = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            _check(field.name, getattr(self, field.name), field.default)

    def changed(self, **fields: Any) -> "Machine":
        """This machine with other values of some fields: a question to a machine nobody built.

        Raises:
          TypeError: a Machine has no such field, or a value is of another type.
          ValueError: a value is NaN or negative, or 0 where times are divided by it.
        """
        if unknown := [name for name in fields if name not in FIELDS]:
            raise TypeError(
                f"A Machine has no field {unknown[0]!r}, so its simulation would be no other: give"
                f" one of {', '.join(FIELDS)}."
            )
        return dataclasses.replace(self, **fields)

    def loaded(self, use: float) -> "Machine":
        """This machine at the clock of a kernel that uses this fraction of all tensor cores."""
        if not isinstance(cast(object, use), Real) or math.isnan(use):
            raise TypeError(
                f"Machine.loaded: {use=} is of type {type(use).__name__} and no number, so no clock"
                " belongs to it: give the fraction of all tensor cores that a kernel uses."
            )
        (below, high), *points = self.clock_at
        for above, low in points:
            if use <= above:
                kept = high + (low - high) * max(0.0, use - below) / (above - below)
                return self.changed(clock_hz=self.clock_hz * kept)
            below, high = above, low
        return self.changed(clock_hz=self.clock_hz * high)

    @classmethod
    def from_json(cls, text: str) -> "Machine":
        """The machine whose fields a JSON object has; ValueError if it has not exactly these."""
        try:
            fields = json.loads(text)
            rates = {
                name: tuple(sorted(fields.pop(name).items())) for name in _RATES if name in fields
            }
            clock = tuple((use, kept) for use, kept in fields.pop("clock_at"))
            return cls(**rates, clock_at=clock, **fields)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise ValueError(
                f"This text has not the fields of a Machine ({error!r}), so there are no times in"
                " it: give what to_json returned."
            ) from error

    def to_json(self) -> str:
        """The text that `from_json` reads, without fields of what the machine does not have."""
        fields = dataclasses.asdict(self)
        fields |= {name: dict(fields[name]) for name in _RATES}
        for name in ("tcgen05_flops_per_cycle", "tmem_bytes_per_cycle", *_NVLINK):
            if not fields[name]:
                del fields[name]
        return json.dumps(fields, indent=1) + "\n"

    def load_latency_cycles(self, l2_hits: float, size: int = LINE_BYTES) -> float:
        """A load's mean latency when L2 has this fraction of lines: HBM's unless L2 has all lines
        of the load."""
        hits = l2_hits ** -(-size // LINE_BYTES)
        return hits * self.l2_latency_cycles + (1 - hits) * self.hbm_latency_cycles

    def gmem_bytes_per_cycle(
        self,
        active_sms: int,
        hbm_fraction: float,
        shared: bool = False,
        written: float = 0.0,
        spread: float = 1.0,
    ) -> float:
        """Bytes a cycle of each of `active_sms` that do the same, if HBM moves this fraction.

        `shared` says whether these SMs load the same bytes, `written` is the fraction of what HBM
        moves that is written, and `spread` says how many times as much L2 moves.
        """
        share = 1 / (max(active_sms, 1) * self.clock_hz)
        l2 = self.l2_shared_bytes_per_second if shared else self.l2_bytes_per_second
        rates = [self.sm_bytes_per_cycle / spread, l2 * share / spread]
        if hbm_fraction > 0:
            slower = 1 + (self.hbm_read_gain - 1) * 2 * written  # than reads alone
            hbm = self.hbm_bytes_per_second * self.hbm_read_gain / slower
            rates.append(hbm * share / hbm_fraction)
        return min(rates)

    def wgmma_rate(self, dtype: str, line: str | None = None) -> float:
        """Operations a cycle of wgmma on operands of a dtype.

        Raises:
          ValueError: there is no such rate, or no wgmma.
        """
        return self._rate("wgmma", self.wgmma_flops_per_cycle, dtype, line)

    def tcgen05_rate(self, dtype: str, line: str | None = None) -> float:
        """Operations a cycle of tcgen05_mma on operands of a dtype, on one SM."""
        return self._rate("tcgen05_mma", self.tcgen05_flops_per_cycle, dtype, line)

    def _rate(
        self, what: str, rates: tuple[tuple[str, float], ...], dtype: str, line: str | None
    ) -> float:
        for name, rate in rates:
            if name == dtype:
                return rate
        if not rates:
            raise ValueError(
                f"{line or 'A product'} is a {what}, which {self.name} does not have, so it has no"
                f" time: simulate it on {_HAVE[what]}."
            )
        known = ", ".join(name for name, _ in rates)
        raise ValueError(
            f"{line or f'A {what}'} multiplies {dtype}, but {self.name} has rates for {known} only,"
            " so it has no time."
        )

    def tmem_rate(self, line: str | None = None) -> float:
        """Bytes a cycle of a thread's accesses of TMEM; ValueError if there is no TMEM."""
        if self.tmem_bytes_per_cycle is None:
            raise ValueError(
                f"{line or 'An op'} accesses TMEM, which {self.name} does not have, so it has no"
                " time: simulate it on pallascope.B200."
            )
        return self.tmem_bytes_per_cycle

    def nvlink(self, name: str, line: str | None = None) -> float:
        """A field that is about NVLink; ValueError if there is no NVLink."""
        value: float | None = getattr(self, name)
        if value is None:
            raise ValueError(
                f"{line or 'An op'} reaches another device, but {self.name} has no {name}, so it"
                " has no time: simulate it on pallascope.H200, or give this machine all fields"
                " whose names begin with nvlink_."
            )
        return value


def _check(name: str, value: object, default: object) -> None:
    """Raises TypeError or ValueError for a value that the field of this name cannot have."""
    if value is None and default is None:
        return
    if name == "name":
        if not isinstance(value, str):
            raise _wrong_type(name, value, "a text")
    elif name == "clock_at" or name in _RATES:
        if not isinstance(value, tuple):
            raise _wrong_type(name, value, "a tuple of pairs")
        pairs = cast("tuple[object, ...]", value)
        if name == "clock_at" and not pairs:
            raise ValueError("Machine: clock_at=() has no pair, so no clock under load is known.")
        for pair in pairs:
            each = cast("tuple[object, ...]", pair) if isinstance(pair, tuple) else ()
            if len(each) != 2:
                raise _wrong_type(name, cast(object, pair), "a tuple of pairs")
            if name == "clock_at":
                _check_number(name, each[0], divides=False)
            _check_number(name, each[1], divides=True)
    else:
        is_rate = name in _DIVISORS or "_per_" in name
        _check_number(name, value, divides=is_rate, kind=Integral if name == "sms" else Real)


def _check_number(name: str, value: object, *, divides: bool, kind: type[Any] = Real) -> None:
    """Raises TypeError or ValueError for a number that is no time, or no rate if it `divides`."""
    if not isinstance(value, kind):
        raise _wrong_type(name, value, "an integer" if kind is Integral else "a number")
    number = float(cast(float, value))
    if not (number > 0 if divides else 0 <= number < math.inf):
        least = "above 0, and times are divided by it" if divides else "0 or more, and finite"
        raise ValueError(
            f"Machine: {name}={value!r} is not {least}, so no simulated time would be right."
        )


def _wrong_type(name: str, value: object, noun: str) -> TypeError:
    given = type(value).__name__
    return TypeError(f"Machine: {name} takes {noun}, not a value of type {given}: give one.")


_RATES = "wgmma_flops_per_cycle", "tcgen05_flops_per_cycle"
_DIVISORS = (
    "clock_hz", "sms", "wgmma_reach", "hbm_static_reach", "hbm_read_gain", "arithmetic_reach"
)  # fmt: skip
_HAVE = {"wgmma": "pallascope.H200 or pallascope.H100", "tcgen05_mma": "pallascope.B200"}
FIELDS = tuple(field.name for field in dataclasses.fields(Machine))
_NVLINK = tuple(name for name in FIELDS if name.startswith("nvlink_"))

_FOLDER = pathlib.Path(__file__).parent / "machines"
#: The GPU that the book's numbers were measured on.
#:
#: >>> pallascope.H200.name, pallascope.H200.sms
#: ('NVIDIA H200', 132)
H200 = Machine.from_json((_FOLDER / "h200.json").read_text("utf-8"))

#: An H100. The SM is the H200's (both are compute capability 9.0) and its figures were measured on
#: an H200, L2's bandwidth and latency, the clock and NVLink (the fourth generation, as the H200's)
#: among them. Only HBM differs: 3.03 TB/s is the
#: same device copy (x + 1 on 4 GiB of float32, bytes read and written) measured on an H100 80GB
#: HBM3.
#:
#: >>> pallascope.H100 == pallascope.H200.changed(
#: ...     name=pallascope.H100.name, hbm_bytes_per_second=3.03e12)
#: True
H100 = H200.changed(
    name="NVIDIA H100 80GB HBM3 (its SM as measured on an H200)", hbm_bytes_per_second=3.03e12
)

_B200_SMS, _B200_FLOPS = 148, 8192
_B200_CLOCK = 2.25e15 / (_B200_SMS * _B200_FLOPS)
# How many times as many operations as on operands of 16 bits.
_B200_TCGEN05 = {
    "bfloat16": 1,
    "float16": 1,
    "float32": 1 / 2,
    "float4_e2m1fn": 4,
    "float8_e4m3fn": 2,
    "float8_e5m2": 2,
    "int8": 2,
}


def _as_h200(rate: float) -> float:
    """A rate of all SMs of a B200, if each SM has it in each cycle as on an H200."""
    return rate * (_B200_SMS * _B200_CLOCK) / (H200.sms * H200.clock_hz)


#: A B200 as public figures give it. It is **not validated on hardware**, since nobody ran pipelib
#: on one.
#:
#: ==========================  ====================================================================
#: figure                      source
#: ==========================  ====================================================================
#: products                    8,192 operations a cycle and SM on operands of 16 bits, 2.25e15 a
#:                             second ("FlashAttention-4", Zadouri et al., 2026); 8 bits twice, 4
#:                             bits four times, float32 (as TF32) half of it (NVIDIA HGX B200)
#: SMs, clock                  148; the clock at which they reach that rate, under any load
#: HBM                         8e12 bytes a second, NVIDIA's peak: a kernel gets less
#: SMEM, exponentials          128 bytes and 16 a cycle and SM, as on Hopper ("FlashAttention-4")
#: L2                          assumed: as many bytes a cycle and SM as on an H200
#: NVLink                      9e11 bytes a second in one direction, NVIDIA's peak
#: TMEM                        assumed: each of a thread's 4 warps moves a column of its 32 lanes a
#:                             cycle, 512 bytes
#: issue, latency, all else    assumed: those measured on an H200, with a commit as late as a
#:                             wgmma_wait; no wgmma
#: ==========================  ====================================================================
#:
#: >>> "not validated" in pallascope.B200.name
#: True
B200 = H200.changed(
    name="NVIDIA B200 (public figures, not validated on hardware)",
    clock_hz=_B200_CLOCK,
    sms=_B200_SMS,
    hbm_bytes_per_second=8e12,
    smem_bytes_per_cycle=128.0,
    transcendental_ops_per_cycle=16.0,
    l2_bytes_per_second=_as_h200(H200.l2_bytes_per_second),
    l2_shared_bytes_per_second=_as_h200(H200.l2_shared_bytes_per_second),
    wgmma_flops_per_cycle=(),
    tcgen05_flops_per_cycle=tuple((name, _B200_FLOPS * by) for name, by in _B200_TCGEN05.items()),
    tmem_bytes_per_cycle=512.0,
    nvlink_bytes_per_second=9e11,
    clock_at=((0.0, 1.0), (1.0, 1.0)),
)
