"""Parts of made-up records, and how to read a row of a table made of them."""

RUN = {"provenance": dict(gpu="NVIDIA H200", jax="0.11.2", utc="2026-11-21T18:00:00+00:00")}


def timed(*us, **more):
    return dict(burst_microseconds=list(us), **more)


def row(table, begin):
    (line,) = (line for line in table.splitlines() if line.startswith(f"| {begin}"))
    return [cell.strip() for cell in line.strip("|").split("|")]
