"""Two implementations of one model: which modules are which is seen from their weights and values.

`proposing` finds it, `lines` writes it down as a mapping.
"""
