"""A test that holds a program against its golden run; the fixture comes with dumpcmp.

First: ``dumpcmp dump --seed 0 --path d1 generate.py``, ``dumpcmp golden pack d1 golden.tar``.
"""

from collections.abc import Callable
from pathlib import Path

import dumpcmp

HERE = Path(__file__).parent


def test_the_model_is_what_it_was(dumpcmp_golden: Callable[..., dumpcmp.GoldenCheck]) -> None:
    """Fails with the report: the op where the difference begins, and what to do next."""
    dumpcmp_golden("golden.tar", HERE / "generate.py")
