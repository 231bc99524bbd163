"""`document`: an HTML page of its own, in the reader's light or dark."""

import html


def document(title: str, main: str, *, style: str = "", after: str = "") -> str:
    """A page with a title, its main part, and perhaps styles, and scripts after it.

    Args:
      title: as text; the rest is HTML, or CSS for `style`.
    """
    styles = f"<style>{style}</style>\n" if style else ""
    return (
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{html.escape(title)}</title>\n{styles}"
        '<body style="max-width: 60rem; margin: 1rem auto; padding: 0 0.75rem">\n'
        f"<main>\n{main}</main>\n{after}</body>\n</html>\n"
    )
