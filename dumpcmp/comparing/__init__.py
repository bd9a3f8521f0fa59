"""Compare two archives: align, measure, judge, and find where the target first goes wrong."""

from dumpcmp.comparing.comparison import compare
from dumpcmp.comparing.proposals import Proposal, propose_mapping

__all__ = ["Proposal", "compare", "propose_mapping"]
