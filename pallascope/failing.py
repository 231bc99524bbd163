"""`in_words`: what an error of a caller's own code says, with the caller's file and line.

The model. An error that comes out of JAX has passed through many files. The one that the caller can
mend is the deepest frame of a file that is no library's, nor a package's of this project. Its place
comes first, as findings have it, then the error's type, if its words alone say little, and the
first line of the words. An error that pallascope raised itself, and that is no refusal in words, is
pallascope's fault, of which a traceback says more (`is_ours`).
"""

import pathlib
import sysconfig
import traceback

from pallascope.sources import place

_KINDS = "stdlib", "platstdlib", "purelib", "platlib"
_PACKAGE = pathlib.Path(__file__).parent
_PACKAGES = tuple(
    f"{_PACKAGE.parent / name}/" for name in ("pipelib", "pallascope", "pipelib_book")
)
#: Where code is that the caller did not write; names of no file begin with "<".
LIBRARIES = (*dict.fromkeys(map(sysconfig.get_path, _KINDS)), *_PACKAGES, "<")
#: Errors that say in a sentence of their own what is wrong, so that their type adds nothing.
_SENTENCES = ValueError, NotImplementedError, ImportError, OSError
_REFUSALS = *_SENTENCES, TypeError, AttributeError


def own_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """The frames of the caller's files, the outermost first.

    An error of JAX's lowering has them in its cause, which says where the equation was traced.
    """
    raised = [error, *filter(None, [error.__cause__])]
    frames = [frame for each in raised for frame in traceback.extract_tb(each.__traceback__)]
    return [frame for frame in frames if not frame.filename.startswith(LIBRARIES)]


def is_ours(error: Exception) -> bool:
    """Whether pallascope failed, rather than the caller's code or what that calls."""
    return _is_raised_in((f"{_PACKAGE}/",), error) and not isinstance(error, _REFUSALS)


def _is_raised_in(folders: tuple[str, ...], error: BaseException) -> bool:
    """Whether the deepest frame is of one of these folders."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and frames[-1].filename.startswith(folders)


def _raised_in(error: BaseException) -> str:
    """The function that raised an error, of JAX's lowering the rule for a primitive."""
    return next((frame.name for frame in traceback.extract_tb(error.__traceback__)[::-1]), "?")


def in_words(error: BaseException) -> str:
    """An error in a line: the caller's file and line, the type, the words.

    What has no words has the name of the function that raised it.

    Example:
      >>> in_words(ValueError("slots=0 is none"))
      'slots=0 is none'
      >>> in_words(ZeroDivisionError("division by zero"))
      'ZeroDivisionError: division by zero'
    """
    frames = own_frames(error)
    at = f"{place(frames[-1].filename, frames[-1].lineno)}: " if frames else ""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    words = " ".join(lines[: 2 if lines and lines[0].endswith(":") else 1])
    is_refusal = isinstance(error, _REFUSALS) and _is_raised_in(_PACKAGES, error)
    is_sentence = words and (isinstance(error, _SENTENCES) or is_refusal)
    words = words or f"no words, raised in `{_raised_in(error)}`"
    return f"{at}{words if is_sentence else f'{type(error).__name__}: {words}'}"
