"""The record of NVIDIA's compute-sanitizer, in a sentence."""

import pathlib

from pipelib_book.measured import results


def sentence(folders: tuple[pathlib.Path, ...] = results.FOLDERS) -> str:
    """What its tools reported of the calls of this project's kernels, and of the control."""
    records = results.read(f"{results.GPU}/sanitized.json", folders)
    if not records:
        return results.missing("run under compute-sanitizer")
    (record,) = records
    cases = record["cases"].values()
    counts = {
        tool: sum(len(case.get(tool, ())) for case in cases) for tool in ("memcheck", "synccheck")
    }
    said = " and ".join(f"{tool} reported {count or 'no'} faults" for tool, count in counts.items())
    control = "was" if record["control"] else "was not"
    return (
        f"On an {record['provenance']['gpu']}, {len(cases)} calls of this project's kernels ran"
        f" under it: {said}. A read far behind the end of an array, as a control, {control}"
        " reported."
    )
