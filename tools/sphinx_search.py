"""The search's index: what stands under each heading, for `book/_static/search.js`.

The model. An entry is a section of a page, without the sections in it; a name of the reference; or
a word of the glossary. It has the page's address and title, its anchor, its heading, its prose, and
the rest: tables, code, outputs and signatures, by which it is found but of which nothing is shown.
`ALSO` has what else an entry is called. Pages that name everything and explain little, `LISTS`,
come behind others. The index is a script, not data, so that it loads where a page is a file; it
does so when a reader begins to search. Sphinx's own index and script are left out: these find
pages, not sections, and show nothing of them where there is no server.
"""

import json
import pathlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

from tools import parts

INDEX = "_static/search_index.js"
LISTS = frozenset({
    "bibliography", "calls", "exercises", "laboratory", "measurements", "plgpu_names",
})  # fmt: skip
#: For anchors on pages: what else they are called, so that a reader finds them by it.
ALSO = {
    "01_introduction#who-runs-it-and-where-the-data-lies": "registers; lanes and warps",
    "02_memory_wall#the-memory-wall": "bandwidth; memory bandwidth",
    "02_memory_wall#occupancy": "latency hiding",
    "03_buffering#a-ring-of-slots": (
        "double buffering; double buffer; multi-stage; multistage; pipeline stages; num_stages;"
        " prefetch"
    ),
    "04_barriers#barriers": "mbarrier; synchronization",
    "07_warp_specialization#warp-specialization": "producer consumer",
    "09_carries#which-lane-has-what": "row sum layout; reduction",
    "10_persistent_kernels#products-of-groups": (
        "grouped gemm; grouped matmul; mixture of experts; MoE"
    ),
    "12_what_can_go_wrong#what-can-go-wrong": (
        "race condition; my kernel hangs; debugging; wrong result"
    ),
    "13_seeing_time#seeing-time": "profiler; profiling; Nsight; trace; timeline",
    "13_seeing_time#what-to-change": "why is my kernel slow; slow kernel; optimize",
    "14_matmul_ladder#the-matmul-ladder": "gemm; matmul; matrix multiplication",
    "14_matmul_ladder#rung-8-let-a-search-choose": "autotune; autotuner; autotuning; tuning",
    "15_attention#flash-attention": "FlashAttention; attention",
    "15_attention#turns": "pingpong",
    "16_attention_further#numbers-of-8-bits": "fp8; float8",
    "16_attention_further#causal": "causal mask",
    "16_attention_further#few-queries-a-long-cache": (
        "decoding; decode attention; kv cache; FlashDecoding"
    ),
    "16_attention_further#idea-5-registers-decide-gradients": "backward pass; gradient",
    "18_compatibility#from-pl-pallas-call": "BlockSpec; TPU",
    "other_gpus#before-hopper": "A100; Ampere",
    "21_blackwell_ladder#a-blackwell-ladder": "B200",
    "22_across_gpus#across-gpus": "multi-GPU; collective",
    "22_across_gpus#a-gather-behind-a-product": "all-gather",
    "from_triton#coming-from-pallas-s-triton-backend": "Triton; num_warps; tl.load",
    "frameworks#which-framework-when": "CUTLASS; CuTe; CUDA C++; Gluon",
    "glossary#term-GMEM": "global memory; HBM",
    "glossary#term-SMEM": "shared memory",
    "glossary#term-TMA": "tensor memory accelerator",
    "glossary#term-TMEM": "tensor memory",
    "glossary#term-block": "thread block; CTA",
    "glossary#term-multiprocessor": "SM; streaming multiprocessor",
    "glossary#term-race": "data race",
    "glossary#term-spill": "register spill",
    "how_to_read#in-colab": "T4; free GPU",
    "how_to_read#on-your-own-machine": "install; installation; pip; setup; requirements",
    "how_to_read#running-a-chapter": "no GPU; without a GPU; interpret mode",
    "in_your_ci#in-your-ci": (
        "check my kernel in CI; continuous integration; GitHub actions; pytest"
    ),
    "related_work#tools-that-find-faults": "racecheck",
}


class Entry(NamedTuple):
    """What can be found: its page's address and title, its anchor and heading, and what it says.

    `also` has the words of `ALSO`.
    """

    page: str
    title: str
    anchor: str
    heading: str
    also: str
    prose: str
    rest: str


def setup(app: Sphinx) -> dict[str, bool]:
    """Sphinx's entry."""
    found: dict[str, list[Entry]] = {}

    def read(app: Sphinx, name: str, template: str, context: dict[str, Any], doctree: Any) -> None:
        if doctree is not None:
            page = app.builder.get_target_uri(name)
            found[page] = [*entries(page, title(app, name), doctree)]

    def write(app: Sphinx, error: Exception | None) -> None:
        if not error and app.builder.format == "html":
            rows = [entry for page in found.values() for entry in page]
            pathlib.Path(app.outdir, INDEX).write_text(script(rows), "utf-8")

    app.connect("html-page-context", read)
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": False}


def title(app: Sphinx, name: str) -> str:
    """A page's title; of a chapter, its number and short title."""
    found = parts.chapter(name)
    return f"{found[1].number} {found[1].title}" if found else app.env.titles[name].astext()


def entries(page: str, title: str, doctree: nodes.document) -> Iterator[Entry]:
    """The entries of a page, in its order."""
    for node in filter(_has_entry, doctree.findall(nodes.Element)):
        if isinstance(node, nodes.section):
            heading, anchor = node[0].astext(), node["ids"][0]
        elif isinstance(node, addnodes.desc):
            signature = next(iter(node.findall(addnodes.desc_signature)))
            heading = anchor = next(iter(signature["ids"]))
        else:
            term = next(iter(node.findall(nodes.term)))
            heading, anchor = term.astext(), term["ids"][0]
        prose, rest = _texts(node)
        also = ALSO.get(f"{pathlib.PurePath(page).stem}#{anchor}", "")
        yield Entry(page, title, anchor, heading, also, " ".join(prose), " ".join(rest))


def _has_entry(node: nodes.Node) -> bool:
    if isinstance(node, nodes.definition_list_item):
        return any(term["ids"] for term in node.findall(nodes.term))
    if isinstance(node, addnodes.desc):
        return any(signature["ids"] for signature in node.findall(addnodes.desc_signature))
    return isinstance(node, nodes.section)


def _texts(top: nodes.Element) -> tuple[list[str], list[str]]:
    """The prose of an entry, and what else stands there, each text in one line."""
    prose: list[str] = []
    rest: list[str] = []
    for node in top.children:
        if isinstance(node, nodes.title | nodes.term | nodes.raw) or _has_entry(node):
            continue
        if isinstance(node, nodes.TextElement):
            is_rest = isinstance(node, nodes.literal_block | addnodes.desc_signature)
            (rest if is_rest else prose).append(" ".join(node.astext().split()))
        elif isinstance(node, nodes.Element):
            more, others = _texts(node)
            (rest if isinstance(node, nodes.table) else prose).extend(more)
            rest += others
    return prose, rest


def script(rows: list[Entry]) -> str:
    """The index as a script: pages once, and entries by their page's number."""
    pages = {row[:2]: None for row in rows}
    numbers = {page: i for i, page in enumerate(pages)}
    packed = [[numbers[row[:2]], *row[2:]] for row in rows]
    marked = [[*page, int(pathlib.PurePath(page[0]).stem in LISTS)] for page in pages]
    data = json.dumps({"pages": marked, "entries": packed}, ensure_ascii=False)
    return f"bookSearch.take({data});\n"
