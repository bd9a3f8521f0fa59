"""Another choice is named at the op that chose, of whole values and of Summaries."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import dumpcmp
from dumpcmp.faults import Fault, planted
from tests.comparing.routers import STYLES, router

Tamper = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


def dumped(style: str, path: Path, fault: Fault | None = None) -> Path:
    model, ids = router(style, torch.float64)
    with torch.no_grad():
        if fault is None:
            with dumpcmp.capture(model, path):
                model(ids)
        else:
            with planted(model, fault), dumpcmp.capture(model, path):
                model(ids)
    return path


def second_best(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Tokens 5 and 17 take the third expert in place of the second."""
    values, places = func(args[0], 3, *args[2:], **kwargs)
    rows = torch.tensor([5, 17])
    for found in (values, places):
        found[rows, 1] = found[rows, 2]
    return values[:, :2].contiguous(), places[:, :2].contiguous()


def other_side(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Tokens 5 and 17 fall on the other side of a threshold."""
    got = func(*args, **kwargs).clone()
    got[[5, 17]] = ~got[[5, 17]]
    return got


PLANTED = dict.fromkeys(STYLES, ("topk", second_best)) | {"gated": ("gt", other_side)}


def test_summaries_do_not_tell_which_rows_another_choice_touched(tmp_path: Path) -> None:
    style, (function, tamper) = next(iter(PLANTED.items()))
    golden = dumped(style, tmp_path / "golden")
    fault = Fault("flip", "blocks.0.moe", function, tamper)
    target = dumped(style, tmp_path / "target", fault)
    assert dumpcmp.compact(target, sketch=64).total.num_values
    outcome = dumpcmp.compare(golden, target)
    first = outcome.first_divergence
    assert first is not None and first.key.op == f"blocks.0.moe/{function}"
