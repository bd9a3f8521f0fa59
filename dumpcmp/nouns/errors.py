"""What can go wrong: each error names the place, the facts that clash and the next move."""

import sys
import warnings


class DumpcmpError(Exception):
    """Trouble that a user can act on: `message` says what and where, `hint` what to do next."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  {self.hint}" if self.hint else self.message


class ArchiveError(DumpcmpError):
    """An archive that cannot be read or written as it stands."""


class MissingValueError(ArchiveError, KeyError):
    """A value, op or step that an archive does not have."""


class CaptureError(DumpcmpError):
    """A run that cannot be captured in the way that was asked for."""


class SelectionError(DumpcmpError):
    """A filter (`--token`, `--layer`, `--io`, ...) that says nothing sensible."""


class AlignError(DumpcmpError):
    """Two archives that cannot be laid side by side, or a mapping file that cannot be read."""


class LayoutError(DumpcmpError):
    """A layout that cannot be read, or that clashes with the tensor that it describes."""


class ProgramFileError(DumpcmpError):
    """A file that is not the program that it should be, or holds what may not be loaded."""


class CheckError(DumpcmpError):
    """A checker or tolerance that cannot be used on these values."""


class EngineError(DumpcmpError):
    """Workers that cannot be had, or that cannot do the work."""


class NotCallableError(CheckError, TypeError):
    """A model that cannot be called."""


class VerificationError(DumpcmpError, ValueError):
    """A verification that found the target different from golden."""


class CaptureWarning(UserWarning):
    """Something that the user of a capture must know, while their program goes on."""


def warn_of(trouble: str, stacklevel: int) -> None:
    """Warn of `trouble` in the middle of the user's program, which goes on even under -W error."""
    try:
        warnings.warn(trouble, CaptureWarning, stacklevel=stacklevel + 1)
    except CaptureWarning:
        sys.stderr.write(f"dumpcmp: warning: {trouble}\n")


class VerificationWarning(UserWarning):
    """A value that a checker lets pass while other numbers say that it should not."""
