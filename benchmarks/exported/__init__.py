"""Exported programs: sound exports that must be the same, and faults planted into them."""
