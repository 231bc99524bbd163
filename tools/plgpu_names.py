"""The index of `plgpu`: where the chapters use each public name of Pallas's Mosaic GPU module.

The model. A name is *used* below a heading of a chapter if a code cell there has it, or code that a
cell shows. It is *explained* below the first of these headings whose text names it; or else below
the first of all whose text names it in full; or else, where it is first used. The first chapters
(`AHEAD`) show code that later ones explain, so they count only for what no other has. Names that no
chapter uses are listed by hand (`OTHERS`), with the reason why none has to: `misplaced` says of
which this is not true. Not covered: names that only an emitter uses for a chapter.
"""

import functools
import re

from jax.experimental.pallas import mosaic_gpu as plgpu

from tools.sections import Section, links, sections

OTHERS = {
    "for Blackwell": (
        "TMEMLayout", "async_copy_scales_to_tmem", "async_copy_smem_to_tmem",
        "async_copy_sparse_metadata_to_tmem", "dynamic_scheduling_loop",
        "format_tcgen05_sparse_metadata",
    ),
    "for several GPUs": (
        "PeerMemRef", "SemaphoreSignal", "multicast_ref", "multimem_load_reduce", "multimem_store",
        "semaphore_signal", "semaphore_signal_multicast", "semaphore_signal_parallel",
        "semaphore_wait",
    ),
    "for a look while compiling": ("print_layout",),
    "another block's memory, which JAX's interpreter does not reach": (
        "async_store_smem", "cluster_ref",
    ),
    "for a run without a GPU ([](other_gpus.md))": ("set_gpu_interpret_mode",),
    "for code of the layer below ([](compiler_params.md))": ("inline_mgpu",),
    "for a look at a barrier, where a ring waits": ("barrier_test",),
    "for what no slot holds": ("GMEM", "MemorySpace", "REGS", "async_prefetch"),
    "not about pipelines": (
        "LoweringSemantics", "Mesh", "RefType", "Replicated", "ShapeDtypeStruct", "Tiling",
        "TraceScope", "Transform", "WarpMesh", "as_torch_kernel", "atomic_and", "atomic_max",
        "atomic_min", "atomic_or", "atomic_xor",
    ),
}  # fmt: skip
AHEAD = "01", "02"
_MENTION = re.compile(r"\bplgpu\.(\w+)")


def public_names() -> list[str]:
    """All public names of the module."""
    return [name for name in dir(plgpu) if not name.startswith("_")]


@functools.cache
def uses() -> dict[str, list[Section]]:
    """By name: where it is used, in the book's order."""
    used = [(section, {*_MENTION.findall(section.code)}) for section in sections()]
    found = {name: [s for s, names in used if name in names] for name in public_names()}
    return {name: places for name, places in found.items() if places}


def explained(name: str) -> Section:
    """Where a name that is used is explained."""
    places, full = uses()[name], f"plgpu.{name}"
    both = [use for use in places if use.says(name) or use.says(full)]
    in_full = [section for section in sections() if section.says(full)]
    found = [*both, *in_full, *places]
    return next((section for section in found if section.chapter[:2] not in AHEAD), found[0])


def misplaced() -> list[str]:
    """What the lists above do not say rightly, a sentence each."""
    listed = [name for names in OTHERS.values() for name in names]
    used, public = uses(), public_names()
    wrong = [f"{n} is used by a chapter: take it off the lists." for n in listed if n in used]
    wrong += [f"plgpu has no {n}: take it off the lists." for n in listed if n not in public]
    unknown = [n for n in public if n not in used and n not in listed]
    wrong += [f"no chapter uses {n}: explain it in one, or list why none does." for n in unknown]
    return wrong + [f"{n} is listed twice." for n in {*listed} if listed.count(n) > 1]


def index() -> str:
    """The index as Markdown."""
    lines = []
    for name, places in uses().items():
        first = explained(name)
        others = [use for use in places if use != first]
        lines += [f"`{name}`", f": **{links([first])}**", ""]
        lines[-1:-1] = ["", f"  Used too in: {links(others)}"] if others else []
    lines += ["## Left out", ""]
    for reason, names in OTHERS.items():
        listed = ", ".join(f"`{name}`" for name in names)
        lines.append(f"- {reason[0].upper()}{reason[1:]}: {listed}")
    return "\n".join(lines) + "\n"
