"""Checks a program while it runs: every op is run again in float64 on what it was given."""

from dumpcmp.checkup.online import check as check
from dumpcmp.checkup.tallying import CheckedOp as CheckedOp
from dumpcmp.checkup.tallying import Checkup as Checkup
