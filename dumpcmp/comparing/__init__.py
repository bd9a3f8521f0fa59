"""Compare two archives: align, measure, judge, and find where the target first goes wrong."""

from dumpcmp.comparing.compare import compare

__all__ = ["compare"]
