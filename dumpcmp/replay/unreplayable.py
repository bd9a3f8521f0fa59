"""Why a call cannot be run again."""

from dumpcmp.nouns.errors import DumpcmpError


class Unreplayable(DumpcmpError):  # noqa: N818 - a reason more than an error
    """A call that cannot be run again: `message` says why, for the reader of a report."""
