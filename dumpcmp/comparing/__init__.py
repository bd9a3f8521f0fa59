"""Compare two archives: align, measure, judge, and find where the target first goes wrong."""

from dumpcmp.comparing.comparison import compare

__all__ = ["compare"]
