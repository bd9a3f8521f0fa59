"""Public bugs that run on a CPU: a folder each, with the bug, a fixed twin and what is guilty.

``bug.py`` declares `BUG` and has `run`, which returns the results as tensors; ``fixed.py`` has
`run` without the bug. ``reference.py`` has `run` in another way that is known to be right (one
process for a parallel bug, say). Without it the reference is, for a compiled bug, the program
itself without torch.compile, and else ``fixed.py``.
"""
