"""`in_words`: what an error of a caller's own code says, with the caller's file and line.

The model. An error that comes out of JAX has passed through many files. The one that the caller can
mend is the deepest frame of a file that is no library's, nor a package's of this project. Its place
comes first, as findings have it, then the error's type, if its words alone say little, and the
words. An error that pallascope raised itself, and that is no refusal in words, is pallascope's
fault, of which a traceback says more (`is_ours`).
"""

import pathlib
import re
import sysconfig
import traceback

_KINDS = "stdlib", "platstdlib", "purelib", "platlib"
_PACKAGE = pathlib.Path(__file__).parent
_PACKAGES = tuple(f"{_PACKAGE.parent / name}/" for name in ("pipelib", "pallascope", "pipelib_book"))
#: Where code is that the caller did not write; names of no file begin with "<".
LIBRARIES = (*dict.fromkeys(map(sysconfig.get_path, _KINDS)), *_PACKAGES, "<")
#: Errors that say in a sentence of their own what is wrong, so that their type adds nothing.
_SENTENCES = ValueError, NotImplementedError, ImportError, OSError
_REFUSALS = *_SENTENCES, TypeError, AttributeError


def own_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """The frames of the caller's files, the outermost first."""
    frames = traceback.extract_tb(error.__traceback__)
    return [frame for frame in frames if not frame.filename.startswith(LIBRARIES)]


def is_ours(error: Exception) -> bool:
    """Whether pallascope failed, rather than the caller's code or what that calls."""
    frames = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    is_raised_here = frames[-1:] != [] and frames[-1].startswith(f"{_PACKAGE}/")
    return is_raised_here and not isinstance(error, _REFUSALS)


def in_words(error: BaseException) -> str:
    """An error in a line: the caller's file and line, the type, the words.

    Example:
      >>> in_words(ValueError("slots=0 is none"))
      'slots=0 is none'
      >>> in_words(ZeroDivisionError("division by zero"))
      'ZeroDivisionError: division by zero'
    """
    frames = own_frames(error)
    place = f"{pathlib.Path(frames[-1].filename).name}:{frames[-1].lineno}: " if frames else ""
    words = re.sub(r"\s+", " ", str(error)).strip() or "no words"
    named = words if isinstance(error, _SENTENCES) else f"{type(error).__name__}: {words}"
    return f"{place}{named}"
