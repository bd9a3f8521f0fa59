"""Use case: whether a model gives each row the same bits in any batch, order or schedule."""

from dumpcmp.invariance.checking_invariance import check_invariance as check_invariance
from dumpcmp.invariance.invariance_report import InvarianceReport as InvarianceReport
from dumpcmp.invariance.invariance_report import InvarianceRow as InvarianceRow
