"""How a page's headings are led to; a module of its own, as `tools.copies` starts without JAX."""

import re


def anchor(heading: str) -> str:
    """What leads to a heading in its page's address."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")
