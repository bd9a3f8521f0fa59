"""Why a call cannot be run again."""

from dumpcmp.nouns.errors import DumpcmpError


class Unreplayable(DumpcmpError):  # noqa: N818 - a reason more than an error
    """A call that cannot be run again: `message` says why, for the reader of a report."""


class NothingToCheck(Unreplayable):
    """A call that gives out what nothing that it was given decides: no replay could tell more."""
