"""The record of NVIDIA's compute-sanitizer, in a sentence."""

import pathlib

from pipelib_book.measured import results


def sentence(folders: tuple[pathlib.Path, ...] = results.FOLDERS) -> str:
    """What its tools reported of the calls of this project's kernels, and of the control."""
    records = results.read(f"{results.GPU}/sanitized.json", folders)
    if not records:
        return results.missing("run under compute-sanitizer")
    (record,) = records
    calls = max(map(len, record["tools"].values()))
    counts = {tool: sum(map(len, found.values())) for tool, found in record["tools"].items()}
    said = " and ".join(f"{tool} reported {count or 'no'} faults" for tool, count in counts.items())
    control = "was" if record["control"] else "was not"
    return (
        f"On an {record['provenance']['gpu']}, {calls} calls of this project's kernels ran under"
        f" it: {said}. A read far behind the end of an array, as a control, {control} reported."
    )
