"""Cuts a fault out of a comparison: a folder that shows it, alone, wherever torch is."""

from dumpcmp.reproducing.making_repros import Repro, repro

__all__ = ["Repro", "repro"]
