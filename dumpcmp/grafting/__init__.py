"""Puts right values in place of wrong ones: what would be if the guilty ops were right."""

from dumpcmp.grafting.grafting_all import GraftedRoot, GraftedStep, GraftReport, graft_all

__all__ = ["GraftReport", "GraftedRoot", "GraftedStep", "graft_all"]
