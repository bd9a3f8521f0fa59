"""Use case: turn what other tools have dumped into an archive."""

from dumpcmp.importing.bringing import Imported, import_dump

__all__ = ["Imported", "import_dump"]
