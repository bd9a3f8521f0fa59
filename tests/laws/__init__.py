"""The five laws of a comparison, on programs at random."""
