"""Puts right values in place of wrong ones: what would be if the guilty ops were right."""

from dumpcmp.grafting.grafting_all import GraftedRoot, GraftedStep, GraftReport, graft_all
from dumpcmp.grafting.running_again import GraftedRun, graft

__all__ = ["GraftReport", "GraftedRoot", "GraftedRun", "GraftedStep", "graft", "graft_all"]
