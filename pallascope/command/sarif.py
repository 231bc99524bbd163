"""`sarif`: what was found, as code review takes it: SARIF 2.1.0.

The model. Each `FindingKind` is a rule. A finding is a result at the line of its first op that has
one, with the other ops as related locations, to which the message links. A finding without such an
op (a resource, an output) is at the line where the kernel's function begins. Files are relative to
the root of the repository, the nearest folder with `.git`; those outside of it have their whole
address. A kernel that could not be checked is a notification of the run.

A result is known again by its fingerprint when lines move: a hash of its kind, of what it is about,
and of the text of its ops' source lines, but of no line's number. The same fault in several blocks
is one result. The key of the fingerprint is the one that GitHub reads.
Sources: the OASIS standard, SARIF 2.1.0; GitHub's documentation, "SARIF support for code scanning".
"""

import ast
import hashlib
import importlib.util
import pathlib
from collections.abc import Iterator, Sequence
from urllib.parse import quote

import pallascope
from pallascope.report import Document, FindingKind

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_HOME = "https://pallas-pipelib.github.io/pipelib"
_HELP = f"{_HOME}/book/12_what_can_go_wrong.html"


def sarif(checks: Sequence[Document], folder: pathlib.Path) -> Document:
    """The checks of JSON's document as one run; `folder` is where the command ran."""
    root = next((at for at in (folder, *folder.parents) if (at / ".git").exists()), folder)
    places = _Places(folder, root)
    results: dict[tuple[str, str], Document] = {}
    for check in checks:
        for report in (*check["reports"], *filter(None, [check["grid"]])):
            for finding in report["findings"]:
                result = _result(finding, report, check["function"], places)
                where = result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
                results.setdefault((where, _fingerprint(finding)), result)
    failures = [check for check in checks if check["error"] is not None]
    invocation = {
        "executionSuccessful": not failures,
        "toolExecutionNotifications": [
            {"level": "error", "message": {"text": f"{check['function']}: {check['error']}"}}
            for check in failures
        ],
    }
    driver = {
        "name": "pallascope",
        "semanticVersion": pallascope.__version__,
        "informationUri": _HOME,
        "rules": [_rule(kind) for kind in FindingKind],
    }
    run = {
        "tool": {"driver": driver},
        "invocations": [invocation],
        "columnKind": "unicodeCodePoints",
        "results": [*results.values()],
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _rule(kind: FindingKind) -> Document:
    whole = f"{kind.fault} {kind.effect}"
    return {
        "id": str(kind),
        "name": "".join(word.capitalize() for word in kind.split("-")),
        "shortDescription": {"text": kind.fault},
        "fullDescription": {"text": whole},
        "help": {
            "text": f"{whole} The result says what to do. See {_HELP}",
            "markdown": f"{whole} The result says what to do. See [the book]({_HELP}).",
        },
        "helpUri": _HELP,
        "defaultConfiguration": {"level": "error"},
        "properties": {"tags": ["correctness", "gpu"], "problem.severity": "error"},
    }


def _result(finding: Document, report: Document, function: str, places: "_Places") -> Document:
    """A finding of JSON's document as a result."""
    known = [op for op in finding["ops"] if op["file"] is not None]
    first, others = (known[0], known[1:]) if known else (places.of_function(function), [])
    links = [f"[the other access, line {op['line']}]({i})" for i, op in enumerate(others, 1)]
    words = [finding["cause"], finding["remedy"], *(f"See {link}." for link in links)]
    related = [
        {"id": i, "message": {"text": op["what"]}} | places.location(op)
        for i, op in enumerate(others, 1)
    ]
    return {
        "ruleId": finding["kind"],
        "ruleIndex": [*FindingKind].index(FindingKind(finding["kind"])),
        "level": "error",
        "message": {"text": " ".join([*words, f"({report['verdict']})"])},
        "locations": [places.location(first)],
        "relatedLocations": related,
        "partialFingerprints": {"primaryLocationLineHash": _fingerprint(finding)},
    }


def _fingerprint(finding: Document) -> str:
    """A hash of the finding that stays the same when its lines move."""
    sources = [(op["kind"], op["source"]) for op in finding["ops"]]
    text = repr((finding["kind"], finding["where"], sources))
    return f"{hashlib.sha256(text.encode()).hexdigest()[:16]}:1"


class _Places:
    """Where files are, for someone who has the repository's root."""

    def __init__(self, folder: pathlib.Path, root: pathlib.Path):
        self.folder, self.root = folder.resolve(), root.resolve()

    def location(self, op: Document) -> Document:
        """The location of an op's line."""
        path = (self.folder / op["file"]).absolute()
        place: Document = {"uri": path.as_uri()}
        if path.is_relative_to(self.root):
            relative = path.relative_to(self.root).as_posix()
            place = {"uri": quote(relative), "uriBaseId": "%SRCROOT%"}
        region = {"startLine": op["line"]}
        return {"physicalLocation": {"artifactLocation": place, "region": region}}

    def of_function(self, name: str) -> Document:
        """The file and the line where a target's function begins, found without running it."""
        module, _, function = name.rpartition(":")
        file = module if module.endswith(".py") else _file_of(module)
        return {"file": file, "line": next(_lines_of(file, function.split(".")[-1]), 1)}


def _file_of(module: str) -> str:
    found = importlib.util.find_spec(module)
    return (found and found.origin) or module


def _lines_of(file: str, function: str) -> Iterator[int]:
    """The lines where functions of that name are defined in a file; none if it cannot be read."""
    if not pathlib.Path(file).is_file():
        return
    for node in ast.walk(ast.parse(pathlib.Path(file).read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef) and node.name == function:
            yield node.lineno
