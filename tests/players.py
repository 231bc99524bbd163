"""What is in a player's figure."""

import base64
import re
import zlib


def packed(text: str) -> list[str]:
    """What the players in a page's text have packed: JSON of their frames."""
    found = re.findall(r'closest\("figure"\),"([A-Za-z0-9+/=]*)"\)</script>', text)
    return [zlib.decompress(base64.b64decode(data)).decode() for data in found]
