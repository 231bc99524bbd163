"""What the check did not look at."""

from dataclasses import dataclass
from typing import override

from pallascope.checking.facts import Remark
from pallascope.program import Program
from pallascope.report import truncation


@dataclass(frozen=True, slots=True)
class Truncated(Remark):
    """The ends of some threads are missing."""

    @override
    def note(self, program: Program) -> str:
        return f"{truncation(program)}, and so are the faults there."


@dataclass(frozen=True, slots=True)
class Unchecked(Remark):
    """Some threads are stuck, so what they would do next was not looked at."""

    @override
    def note(self, program: Program) -> str:
        return "what stuck threads would do next was not checked."


@dataclass(frozen=True, slots=True)
class Trusted(Remark):
    """Opaque code, by its names."""

    functions: tuple[str, ...]

    @override
    def note(self, program: Program) -> str:
        return f"opaque code was taken on trust: {', '.join(self.functions)}."


@dataclass(frozen=True, slots=True)
class Tested(Remark):
    """A barrier is tested, which puts nothing in order."""

    @override
    def note(self, program: Program) -> str:
        return "a barrier test orders nothing here, whatever it answers."


@dataclass(frozen=True, slots=True)
class Signalled(Remark):
    """Semaphores, by their names."""

    names: tuple[str, ...]

    @override
    def note(self, program: Program) -> str:
        return (
            f"semaphores order nothing here, since others may signal them, or several wait and"
            f" take off what they hold: {', '.join(self.names)}."
        )
