"""Effects: a pair of programs that differs in one alone is not the same, one that does not is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import dumpcmp
from dumpcmp import Archive, Outcome, Verdict
from dumpcmp.archive.paths import run_text
from dumpcmp.archive.write.writer import ArchiveWriter
from dumpcmp.nouns.key import ROOT, Op
from dumpcmp.nouns.outcome import Conclusion
from dumpcmp.nouns.record import Call
from tests.taps.test_returned import Holder, Output, Returning

Make = Callable[[Tensor], Any]


def dumped(path: Path, make: Make, *, scale: float = 1.0, **options: Any) -> Path:
    torch.manual_seed(0)
    model = Returning(make)
    with torch.no_grad():
        model.layer.weight *= scale
    with dumpcmp.capture(model, path, **options), torch.no_grad():
        for step in range(2):
            try:
                result = model(torch.ones(2, 4) + step)
            except ValueError:
                continue
            if hasattr(result, "send"):
                list(result)
    return path


def compared(tmp_path: Path, golden: Make, target: Make, **options: Any) -> Outcome:
    ours = dumped(tmp_path / "golden", golden, **options)
    return dumpcmp.compare(ours, dumped(tmp_path / "mine", target, **options))


def raising(message: str) -> Make:
    def make(y: Tensor) -> Any:
        raise ValueError(message)

    return make


def yielding(*values: Any) -> Make:
    def make(y: Tensor) -> Any:
        return (value for value in (y, *values))

    return make


# What golden returns, what my side returns, and what the first line says of it.
DIFFERENT: dict[str, tuple[Make, Make, str]] = {
    "None": (lambda y: y, lambda y: None, "result is tensor <root> output.0 in golden, None in"),
    "None for a pair": (
        lambda y: (y, y * 2), lambda y: (y * 2, None)[1], "mine has no such part, and 1 more",
    ),
    "a part that is None": (lambda y: (y, None), lambda y: (y, y), "result[1] is None in golden"),
    "a number": (lambda y: (y, 3), lambda y: (y, 4), "result[1] is 3 in golden, 4 in mine"),
    "a bool": (lambda y: (y, True), lambda y: (y, 1), "result[1] is True in golden, 1 in mine"),
    "a float": (lambda y: (y, 0.5), lambda y: (y, 0.5000001), "(relative difference 2e-07)"),
    "nan": (lambda y: (y, 0.5), lambda y: (y, float("nan")), "0.5 in golden, nan in mine"),
    "a string": (lambda y: "a", lambda y: "b", "result is 'a' in golden, 'b' in mine"),
    "a list of ids": (
        lambda y: {"ids": [1, 2, 3]}, lambda y: {"ids": [1, 2, 4]}, "result['ids'][2] is 3 in",
    ),
    "a longer list": (
        lambda y: [1, 2], lambda y: [1, 2, 2], "[2] is 2 in mine, and golden's has no such part",
    ),
    "a swap": (lambda y: (3, 4), lambda y: (4, 3), "result[0] is 3 in golden, 4 in mine"),
    "a field": (
        lambda y: Output(y, 3), lambda y: Output(y, 4), "result.count is 3 in golden, 4 in mine",
    ),
    "an array": (
        lambda y: np.arange(4), lambda y: np.arange(4) + np.array([0, 0, 1, 0]),
        "result.flat[2] is 2 in golden, 3 in mine",
    ),
    "a large array": (
        lambda y: np.arange(99.0), lambda y: np.arange(99.0) + 1, "output.0: rel_l2",
    ),
    "a tensor in an object": (lambda y: Holder(y), lambda y: Holder(y + 1), "at <root>/add"),
    "a dtype alone": (
        lambda y: torch.float32, lambda y: torch.float64, 'is {"dtype": "float32"} in golden',
    ),
    "a number beside a tensor that is missing": (
        lambda y: (y, [y * 2, 3]), lambda y: (y, y * 2)[0], "result[1][1] is 3 in golden, and mine",
    ),
    "an exception": (
        lambda y: y, raising("no"),
        "DIFFERENT: my forward raised ValueError('no') at ",
    ),
    "golden's exception": (raising("no"), lambda y: y, "golden's forward raised ValueError('no')"),
    "another exception": (raising("one"), raising("two"), "mine raised ValueError('two')"),
    "a yield": (yielding(1), yielding(2), "DIFFERENT yielded at token 0: yielded is 1"),
    "a yield more": (yielding(), yielding(1), "yielded is 1 in mine, and golden's has no"),
    "a yielded tensor": (
        lambda y: (each for each in (y,)), lambda y: (each for each in (y * 2,)), "at <root>/mul",
    ),
}  # fmt: skip

SAME: dict[str, Make] = {
    "a tensor": lambda y: y,
    "None": lambda y: None,
    "numbers": lambda y: (y, 3, float("nan"), float("inf"), 1j),
    "a string": lambda y: "caf\u00e9 \x1b",
    "ids": lambda y: {"ids": list(range(5000))},
    "objects of Python": lambda y: [Holder(y), Output(y), {1: {2}}],
    "arrays": lambda y: (np.arange(3), np.arange(99.0)),
    "an exception": raising("no 0.125"),
    "yields": yielding(1, "b"),
}


@pytest.mark.parametrize(("golden", "target", "said"), DIFFERENT.values(), ids=DIFFERENT)
def test_a_difference_in_an_effect_alone_is_told(
    golden: Make, target: Make, said: str, tmp_path: Path
) -> None:
    outcome = compared(tmp_path, golden, target)
    assert outcome.exit_code == 1
    assert outcome.conclusion in (Conclusion.EFFECT, Conclusion.WRONG, Conclusion.PROGRAM)
    assert said in outcome.word
    swapped = dumpcmp.compare(tmp_path / "mine", tmp_path / "golden")
    assert swapped.exit_code == 1


@pytest.mark.parametrize("make", SAME.values(), ids=SAME)
def test_what_differs_in_no_effect_is_the_same(make: Make, tmp_path: Path) -> None:
    outcome = compared(tmp_path, make, make)
    assert outcome.conclusion is Conclusion.SAME, outcome.word
    effects = [row for row in outcome.rows if row.key.op.is_effect]
    assert all(row.verdict is Verdict.PASS for row in effects)
    by_value = [row for row in effects if row.metrics is None]
    assert len(by_value) == len({row.key for row in by_value})


@pytest.mark.parametrize("make", [lambda y: object(), lambda y: (y, {"a": iter([1])})])
def test_what_has_no_value_is_open(make: Make, tmp_path: Path) -> None:
    outcome = compared(tmp_path, make, make)
    assert (outcome.conclusion, outcome.exit_code) == (Conclusion.UNKNOWN, 2)
    assert "which cannot be compared" in outcome.word


def test_floats_may_differ_as_what_they_were_read_off_does(tmp_path: Path) -> None:
    def mean(y: Tensor) -> Any:
        return {"loss": y.mean().item()}

    golden = dumped(tmp_path / "golden", mean)
    rounded = dumped(tmp_path / "rounded", lambda y: {"loss": y.double().mean().item()})
    other = dumpcmp.compare(golden, rounded)
    assert other.passed, other.word
    moved = dumped(tmp_path / "moved", lambda y: {"loss": y.double().mean().item() * 1.001})
    told = dumpcmp.compare(golden, moved)
    assert (told.exit_code, told.conclusion) == (1, Conclusion.EFFECT), told.word


def test_parts_may_have_other_names(tmp_path: Path) -> None:
    outcome = compared(tmp_path, lambda y: (y, 3), lambda y: {"logits": y, "count": 3})
    assert outcome.passed, outcome.word
    listed = compared(tmp_path / "lists", lambda y: (y, 3), lambda y: [y, 3])
    assert listed.passed
    assert any("result is a tuple in golden, a list in mine" in row.reason for row in listed.rows)


def test_an_object_that_one_side_does_not_return_is_told_by_its_tensors(tmp_path: Path) -> None:
    outcome = compared(tmp_path, lambda y: (y, Holder(y)), lambda y: (y, None))
    assert outcome.passed, outcome.word
    lost = compared(tmp_path / "lost", lambda y: (y, Holder(y * 2)), lambda y: (y, None))
    assert lost.exit_code, lost.word


def test_a_dtype_beside_tensors_is_told_as_theirs_are(tmp_path: Path) -> None:
    outcome = compared(
        tmp_path, lambda y: (y, y.dtype, 1), lambda y: (y.double(), torch.float64, 1)
    )
    assert outcome.passed, outcome.word
    (row,) = [row for row in outcome.rows if row.key.op.is_effect and row.metrics is None][:1]
    assert row.verdict is Verdict.DTYPE
    assert 'result[1] is {"dtype": "float32"} in golden' in row.reason


def test_a_wrong_op_comes_before_what_follows_from_it(tmp_path: Path) -> None:
    golden = dumped(tmp_path / "golden", lambda y: (y, y.sum().item()))
    target = dumped(tmp_path / "mine", lambda y: (y, y.sum().item()), scale=1.01)
    outcome = dumpcmp.compare(golden, target)
    assert outcome.conclusion is Conclusion.PROGRAM
    (first, *_) = [row for row in outcome.rows if row.key.op.is_effect]
    assert first.verdict is Verdict.FAIL
    assert first.cause == outcome.first_divergence.key  # type: ignore[union-attr]


def test_what_a_layer_filter_leaves_out_is_not_asked_for(tmp_path: Path) -> None:
    compared(tmp_path, lambda y: (y, 3), lambda y: (y, 4))
    outcome = dumpcmp.compare(tmp_path / "golden", tmp_path / "mine", layers="layer")
    assert outcome.passed


def aged(path: Path) -> Path:
    """The archive as a version that knew of no effects would have told of it."""
    for file in path.glob("*/run.json"):
        facts = json.loads(file.read_text())
        del facts["run"]["effects"]
        file.write_text(run_text(facts))
    return path


def written(path: Path, *, gives: bool) -> Path:
    """An archive of before effects, whose root returned a tensor or nothing that was recorded."""
    run = {"mode": "eager", "filters": {"io": "all", "level": "functions"}}
    torch.manual_seed(0)
    with ArchiveWriter(path, run=run) as sink:
        from dumpcmp.nouns.selection import Tap
        from dumpcmp.taps.recording.recorder import Recorder

        recorder = Recorder(sink, Tap())
        model = nn.Linear(2, 2)
        step = recorder.begin(model)
        assert step is not None
        call = step.enter(model, (torch.ones(1, 2),), {})
        assert isinstance(call, Call)
        if gives:
            step.leave(call, torch.ones(1, 2))
        step.put_rest()
    return path


def test_archives_of_before_are_read_as_before(tmp_path: Path) -> None:
    one, other = (written(tmp_path / name, gives=True) for name in "ab")
    assert dumpcmp.compare(one, other).passed


def test_a_result_that_no_archive_has_is_open(tmp_path: Path) -> None:
    one, other = (written(tmp_path / name, gives=False) for name in "ab")
    outcome = dumpcmp.compare(one, other)
    assert outcome.exit_code == 2
    assert "Linear returned no tensor at token 0" in outcome.word


def test_what_one_side_does_not_record_is_open(tmp_path: Path) -> None:
    new = dumped(tmp_path / "new", lambda y: (y, 3))
    old = aged(dumped(tmp_path / "old", lambda y: y))
    outcome = dumpcmp.compare(new, old)
    assert outcome.exit_code in (1, 2)  # a part that golden has as a value, and mine not
    plain = dumped(tmp_path / "plain", lambda y: y)
    assert dumpcmp.compare(plain, old).passed


def test_reports_show_effects(tmp_path: Path) -> None:
    outcome = compared(tmp_path, lambda y: (y, 3), lambda y: (y, 4))
    table = outcome.to_pandas()
    (one, _) = table[table["op"] == "<effects>/result"].to_dict("records")
    assert (one["verdict"], one["slot"]) == ("FAIL", "result")
    assert one["reason"] == "result[1] is 3 in golden, 4 in mine"
    assert Op("<effects>/result").is_effect
    assert not Op(ROOT).is_effect


Function = Callable[[Tensor, Tensor], Any]


def of_function(path: Path, function: Function, mode: str) -> Path:
    compiled = torch.compile(function, backend="aot_eager")
    with dumpcmp.capture(None, path, mode=mode):
        compiled(torch.linspace(-1, 1, 8), torch.linspace(1, 2, 8))
    return path


def test_what_a_compiled_function_returns_and_changes_are_effects(tmp_path: Path) -> None:
    def golden(x: Tensor, y: Tensor) -> Any:
        x.mul_(2)
        return x + y, x - y

    def swapped(x: Tensor, y: Tensor) -> Any:
        first, second = golden(x, y)
        return second, first

    def unwritten(x: Tensor, y: Tensor) -> Any:
        x = x * 2
        return x + y, x - y

    first = of_function(tmp_path / "golden", golden, "eager")
    named = dict(Archive(first).effects_at("golden", 0))
    told = [call.op.function for call in named[0]]
    assert sorted(told) == ["inputs", "result"]
    assert dumpcmp.compare(first, of_function(tmp_path / "fx", golden, "fx")).passed
    for other in (swapped, unwritten):
        other.__name__ = "golden"
        outcome = dumpcmp.compare(first, of_function(tmp_path / str(id(other)), other, "eager"))
        assert outcome.exit_code == 1, outcome.word
