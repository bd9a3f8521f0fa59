"""Public bugs of PyTorch that can be run on a CPU: a folder each, with the bug and a fixed twin.

``bug.py`` and ``fixed.py`` have the same interface: `run`, which returns the result, and `OP`, the
functions that are wrong. Run as scripts they are what a user would run. What is right is what
``bug.py`` gives with torch.compile off; where `EAGER_IS_WRONG`, what ``fixed.py`` gives.
"""
