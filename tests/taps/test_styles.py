"""Programs in many styles do the same captured as uncaptured; benchmarks have all of them."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from benchmarks import styles, undisturbed
from tests.choosing_cases import often

MODES = ("uncaptured", *undisturbed.MODES)
STYLES = (
    "nn: TransformerEncoder with padding",
    "torch.func: vmap of grad",
    "modes: two of each",
    "exceptions: raised from a cause, in a hook",
    "running: a forward that yields",
    "running: finalizers that call a model",
    "autograd: a custom Function",
    "warnings: of the program and of torch",
    "recursion: a limit that the program sets",
    "classes: a wrapper that answers the dispatcher",
)
AT_LENGTH = (
    "classes: a subclass of Tensor as input",
    "results: a container that holds itself",
)


@cache
def seen(names: tuple[str, ...]) -> dict[tuple[str, str], Any]:
    """What each style did, by style and mode."""
    words = [sys.executable, "-m", "benchmarks.style_runs", ",".join(MODES), *names]
    root = Path(styles.__file__).parents[1]
    ran = subprocess.run(words, cwd=root, stdout=subprocess.PIPE, check=True, timeout=300)
    found = [json.loads(line) for line in ran.stdout.splitlines()]
    return {(name, mode): one for name, mode, one in found}


@pytest.mark.parametrize("mode", undisturbed.MODES)
@pytest.mark.parametrize("style", often([*STYLES, *AT_LENGTH], *STYLES))
def test_a_capture_disturbs_nothing(style: str, mode: str) -> None:
    did = seen(STYLES if style in STYLES else AT_LENGTH)
    assert undisturbed.told(did[style, "uncaptured"], did[style, mode]) == ""


def test_what_differs_is_told() -> None:
    uncaptured = {"result": [1, [2, 3]], "remarks": []}
    assert undisturbed.told(uncaptured, {"result": [1, [2, 3]], "remarks": ["said"]}) == ""
    assert undisturbed.told(uncaptured, {"result": [1, [2, 4]]}) == "/result/1/1: 3 and 4"
    assert undisturbed.told(uncaptured, {"result": [1, [2]]}) == "/result/1: 2 and 1 long"
    assert undisturbed.told(uncaptured, {"died": "status 6"}).startswith("/result: ")
