"""The page "All calls": which calls each chapter adds, what they do, how they are called.

The model. A call is a public function or class of JAX's Pallas (`pl`, `plgpu`), of `lax` where a
kernel is built with it, of `pipelib`, `pallascope` or the book's kit, that a chapter's cells use.
It belongs to the chapter whose first box names it under "New"; else to the first chapter whose text
names it beside such code, or else to the first that uses it. The first two chapters
(`plgpu_names.AHEAD`) show code that later ones explain, so they count only for what their text
names and for what no other chapter has. Signatures come from the code, without types; an enum has
none. What a call does is said here for JAX's (`DOES`), and for ours in the docstring.

Not covered: methods, and `book.asks`, which the reference has.
"""

import enum
import functools
import inspect
import itertools
import re
from types import ModuleType

from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

import pallascope
import pipelib
import pipelib_book as book
from tools.plgpu_names import AHEAD
from tools.public_names import text_of
from tools.sections import Section, sections, titles

MODULES: dict[str, ModuleType] = {
    "pl": pl,
    "plgpu": plgpu,
    "lax": lax,
    "pallascope": pallascope,
    "pipelib": pipelib,
    "book": book,
}

#: What JAX's calls do. A test asks for each that a chapter uses.
DOES = {
    "lax.axis_index": "The number of this block, or of this Pallas thread, along a named axis.",
    "lax.fori_loop": "A loop in the kernel, with a carry.",
    "lax.rem": "The remainder: the slot of a step.",
    "lax.scan": "A loop in the kernel that also takes and gives arrays.",
    "lax.while_loop": "A loop in the kernel that ends when its condition does.",
    "pl.BlockSpec": "A piece of an array for each step: its shape, and its index at a step.",
    "pl.cdiv": "A quotient that is rounded up: how many tiles cover a length.",
    "pl.ds": "A slice of a size known to the compiler, from any start.",
    "pl.get_global": "A semaphore that all blocks of a launch share.",
    "pl.loop": "A loop in the kernel, written as a decorated function.",
    "pl.pallas_call": "A kernel with a grid and specs, whose pipeline Pallas makes.",
    "pl.program_id": "The number of this step of the grid along an axis.",
    "pl.run_scoped": "Calls a function with scratch memory, which lives as long as the call.",
    "pl.semaphore_signal": "Adds to a semaphore, also of another device.",
    "pl.semaphore_wait": "Waits until a semaphore has a value, and takes it off.",
    "pl.when": "Runs the decorated function only if a condition holds.",
    "plgpu.ACC": "Accumulators of a product, in registers.",
    "plgpu.Barrier": "Barriers in SMEM that a number of arrivals completes.",
    "plgpu.BlockSpec": "Pallas's BlockSpec, with tiling, swizzle and `delay_release`.",
    "plgpu.ClusterBarrier": "A barrier for all blocks of a cluster along named axes.",
    "plgpu.CompilerParams": "What the compiler may do, and the profiler's space.",
    "plgpu.CopyPartition": "How the blocks of a cluster share a load.",
    "plgpu.InterpretGPUParams": "How the interpreter runs kernels, such as its race detection.",
    "plgpu.Layout": "How an array's elements lie in the registers of a thread's lanes.",
    "plgpu.NDLoopInfo": "A step of `nd_loop`: its index, and how far the loop is.",
    "plgpu.OOBFillMode": "What a load writes for elements beyond an array's end.",
    "plgpu.PipelinePipeline": "The running pipeline that a compute context receives.",
    "plgpu.RefUnion": "Several uses of one piece of scratch memory, one after the other.",
    "plgpu.SMEM": "An array in shared memory, with its tiling and swizzle.",
    "plgpu.SemaphoreType": "The kinds of semaphore.",
    "plgpu.SwizzleTransform": "Permutes a tile's rows so that banks do not conflict.",
    "plgpu.TMEM": "Tensor memory, on Blackwell.",
    "plgpu.TilingTransform": "Stores an array of SMEM tile by tile.",
    "plgpu.TryClusterCancelResult": "The memory for an answer of `try_cluster_cancel`.",
    "plgpu.WGMMAAccumulatorRef": "Accumulators as an argument of a pipeline's body.",
    "plgpu.async_load_tmem": "Starts reading tensor memory into registers.",
    "plgpu.async_store_tmem": "Starts writing registers into tensor memory.",
    "plgpu.atomic_add": "Adds to memory, in one piece.",
    "plgpu.barrier_arrive": "Arrives at a barrier once.",
    "plgpu.barrier_wait": "Waits until a barrier's phase is complete.",
    "plgpu.broadcasted_iota": "Numbers along an axis, in a layout of registers.",
    "plgpu.commit_smem": "Makes a thread's writes to SMEM visible to TMA and the tensor core.",
    "plgpu.commit_smem_to_gmem_group": "Makes one group of the stores that were started.",
    "plgpu.commit_tmem": "Makes a thread's writes to tensor memory visible.",
    "plgpu.copy_gmem_to_smem": "Starts a load by TMA, which arrives at a barrier.",
    "plgpu.copy_smem_to_gmem": "Starts a store by TMA.",
    "plgpu.emit_pipeline": "JAX's own pipeline, in one thread.",
    "plgpu.emit_pipeline_warp_specialized": "JAX's own pipeline, with a memory thread.",
    "plgpu.find_swizzle": "The largest swizzle that rows of a size allow.",
    "plgpu.force_gpu_interpret_mode": "Within a `with`: switches the interpreter on, or off.",
    "plgpu.griddepcontrol_launch_dependents": "Lets the next kernel of the stream begin.",
    "plgpu.griddepcontrol_wait": "Waits for the kernel before, and what it wrote.",
    "plgpu.kernel": "Makes a function a kernel, with a grid, threads and scratch memory.",
    "plgpu.layout_cast": "An array in another layout of registers.",
    "plgpu.load": "Reads a reference into registers, in a layout if one is given.",
    "plgpu.mma": "A product of arrays in registers, added to sums; done when it returns.",
    "plgpu.nd_loop": "Runs through a grid of tiles, shared out among the blocks.",
    "plgpu.planar_snake": "The order of tiles in strips, whose direction turns.",
    "plgpu.query_cluster_cancel": "Reads the answer to `try_cluster_cancel`.",
    "plgpu.remote_ref": "The same reference on another device.",
    "plgpu.set_max_registers": "Moves registers from or to this thread.",
    "plgpu.tcgen05_commit_arrive": "Arrives at a barrier when the products so far are done.",
    "plgpu.tcgen05_mma": "Starts a product with accumulators in tensor memory (Blackwell).",
    "plgpu.try_cluster_cancel": "Asks the hardware for the next block's work (Blackwell).",
    "plgpu.wait_load_tmem": "Waits for the reads of tensor memory.",
    "plgpu.wait_gmem_to_smem": "Waits until at most n loads without a barrier are unfinished.",
    "plgpu.wait_smem_to_gmem": "Waits until at most n groups of stores are unfinished.",
    "plgpu.warp_map": "Splits a Pallas thread into its four warps.",
    "plgpu.wgmma": "Starts a product of two tiles on the tensor core.",
    "plgpu.wgmma_accumulator_load": "Reads accumulators without waiting for other products.",
    "plgpu.wgmma_wait": "Waits until at most n products are running.",
}

#: Modules that chapters import from a package of ours, and the package.
PARTS = {"kernels": "pipelib", "testing": "pallascope", "tuning": "pallascope"}
_USE = re.compile(rf"(?<![\w.])(?:pipelib\.|pallascope\.)?({'|'.join([*MODULES, *PARTS])})\.(\w+)")
_NEW = re.compile(r"\*\*New:\*\*(.*?)\n- \*\*", re.DOTALL)


def calls() -> dict[str, list[str]]:
    """The calls that each chapter adds, such as "plgpu.wgmma", by the chapter's file name."""
    found: dict[str, list[str]] = {section.chapter: [] for section in sections()}
    boxes = [box for section in sections() if (box := _box(section))]
    for name, places in _uses().items():
        announced = next((box.chapter for box in boxes if box.says(name)), None)
        if announced:
            found[announced].append(name)
            continue
        bare = name.partition(".")[2]
        named = next((use for use in places if use.says(name) or use.says(bare)), None)
        later = [use for use in places if use.chapter[:2] not in AHEAD]
        place = named if named and (named.chapter[:2] in AHEAD or not later) else None
        found[(place or (later or places)[0]).chapter].append(name)
    return found


def _box(section: Section) -> Section | None:
    """What a chapter's first box says is new in it, if this section has that box."""
    new = _NEW.search(section.text)
    return section._replace(text=new[1]) if new else None


@functools.cache
def _uses() -> dict[str, list[Section]]:
    """By call: the headings below which code has it, in the book's order."""
    found: dict[str, list[Section]] = {}
    for section in sections():
        for name in dict.fromkeys(map(_name, _USE.findall(section.code))):
            if name in DOES or (_is_ours(name) and callable(_value(name))):
                found.setdefault(name, []).append(section)
    return found


def _name(use: tuple[str, str]) -> str:
    """The name of a call that is written with its module."""
    return ".".join((PARTS[use[0]], *use) if use[0] in PARTS else use)


def unexplained() -> list[str]:
    """Calls of Pallas that a chapter uses, and that `DOES` lacks."""
    used = {_name(use) for each in sections() for use in _USE.findall(each.code)}
    calls = (name for name in used if name.startswith("pl") and not _is_ours(name))
    return sorted(name for name in calls if name not in DOES and callable(_value(name)))


def _is_ours(name: str) -> bool:
    return name.startswith(("pallascope.", "pipelib.", "book."))


def _value(name: str) -> object:
    module, *attributes = name.split(".")
    value: object = MODULES[module]
    for attribute in attributes:
        value = getattr(value, attribute, None)
    return value


def page() -> str:
    """The page as Markdown: a table for each chapter that adds calls."""
    lines = list[str]()
    for chapter, names in calls().items():
        if names:
            lines += [f"## {int(chapter[:2])} {titles()[chapter]}", ""]
            lines += [f"[Chapter {int(chapter[:2])}]({chapter}.ipynb)", ""]
            for name in sorted(names, key=lambda name: [*MODULES].index(name.partition(".")[0])):
                lines += [f"`{name}`", f": {does(name)}{_where(name, chapter)}", ""]
                if (called := signature(name)) != name:
                    lines += [f"  `{called}`", ""]
    return "\n".join(lines)


def _where(name: str, chapter: str) -> str:
    """A link to the heading of a chapter below which a call is named first, or else used first."""
    bare = name.partition(".")[2]
    said = (each for each in sections() if each.says(name) or each.says(bare))
    below = (
        each
        for each in itertools.chain(said, _uses()[name])
        if each.chapter == chapter and each.heading != each.title
    )
    first = next(below, None)
    return f" See {first.link()}." if first else ""


def does(name: str) -> str:
    """What a call does, in a sentence."""
    if name in DOES:
        return DOES[name]
    first = text_of(name.partition(".")[2], _value(name)).split("\n\n")[0]
    return " ".join(first.split())


def signature(name: str) -> str:
    """How something is called: its parameters, without types, and defaults that are short."""
    value = _value(name)
    if isinstance(value, enum.EnumType):
        return name
    called = type(value).__call__ if isinstance(value, enum.Enum) else value
    shown = [
        each.replace(annotation=inspect.Parameter.empty, default=_short(each.default))
        for each in inspect.signature(called).parameters.values()  # pyright: ignore
        if each.name != "self" and not each.name.startswith("_")
    ]
    return f"{name}{inspect.Signature(shown)}"


class _Shown:
    """A default that is written as `text`."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def _short(default: object) -> object:
    """A default as it is shown: a number, a string, an enum's member, nothing, or dots."""
    if isinstance(default, enum.Enum):
        return _Shown(f"{type(default).__name__}.{default.name}")
    plain = default is None or isinstance(default, bool | int | float | str)
    return default if plain or default in ((), inspect.Parameter.empty) else _Shown("...")
