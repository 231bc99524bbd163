"""`coloured`: a verdict's words of severity in colours, where a terminal shows them.

The model. `NO_COLOR` and then `FORCE_COLOR` decide, if they hold any text. Else there are colours
where stdout is a terminal, unless `TERM` is dumb. A finding's kind is red where a line begins with
it, `note` and `slow` are yellow, and "no finding" is green. All else stays as it is.
Sources: no-color.org; force-color.org.
"""

import os
import re
import sys

from pallascope.report import FindingKind

_RED, _GREEN, _YELLOW = 31, 32, 33
_WORDS = {
    rf"^(?:{'|'.join(FindingKind)})(?=: )": _RED,
    r"^(?:note|slow)(?=: )": _YELLOW,
    r"(?<=: )no finding(?= (?:in|\())": _GREEN,
}


def coloured(text: str) -> str:
    """The text for stdout, with colours if it is to have them."""
    if _has_colours():
        for words, colour in _WORDS.items():
            text = re.sub(words, rf"\033[{colour}m\g<0>\033[0m", text, flags=re.MULTILINE)
    return text


def _has_colours() -> bool:
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return os.environ.get("TERM") != "dumb" and sys.stdout.isatty()
