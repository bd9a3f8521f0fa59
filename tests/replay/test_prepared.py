"""A call that was prepared gives what it gives the ordinary way: every bit, number and flag."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from dumpcmp.nouns.record import Call
from dumpcmp.replay import running
from dumpcmp.replay.prepared import Preparations, form_of
from dumpcmp.replay.rating import Rerun
from dumpcmp.replay.running import rerun
from dumpcmp.replay.unreplayable import Unreplayable
from tests.choosing_cases import long
from tests.replay.calling import Given, called
from tests.replay.test_running import SOUND, Make

EXTRA: list[tuple[str, Callable[..., Any], Make, dict[str, Any]]] = [
    ("index", torch.Tensor.__getitem__, lambda d: (torch.randn(4, 9).to(d), (1, slice(2, 7))), {}),
    ("cast", torch.Tensor.to, lambda d: (torch.randn(4, 9).to(d), torch.float16), {}),
    ("cat", torch.cat, lambda d: ([torch.randn(2, 3).to(d), torch.randn(4, 3).to(d)],), {"dim": 0}),
    ("add_", torch.Tensor.add_, lambda d: (torch.ones(5).to(d), 2), {}),
    ("twice", torch.mul, lambda d: (t := torch.randn(6).to(d), t), {}),
    ("counts", torch.bincount, lambda d: (torch.arange(5),), {}),
    ("dropout", torch.nn.functional.dropout, lambda d: (torch.ones(64).to(d), 0.5), {}),
    ("full", torch.full, lambda d: ((2, 3), 0.5), {"dtype": torch.float32}),
    ("of integers", torch.div, lambda d: (torch.arange(1, 5), 3), {}),
]


def told(rerun: Rerun) -> list[object]:
    """All that a Rerun says, tensors with their dtypes and bytes."""
    tensors = [rerun.outputs, rerun.terms, rerun.unwritten]
    bits = [
        (slot, one.dtype, one.shape, one.contiguous().reshape(-1).view(torch.uint8).tolist())
        for each in tensors
        for slot, one in each.items()
    ]
    flags = rerun.is_exact, rerun.num_ops, rerun.is_pointwise, rerun.is_nearest
    return [bits, repr(rerun.condition), repr(rerun.noise), flags, repr(rerun.dropped)]


@pytest.mark.parametrize("dtype", [long(torch.float32), torch.bfloat16], ids=str)
def test_what_is_prepared_is_run_as_ever(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    preparations = Preparations()
    monkeypatch.setattr(running, "_PREPARATIONS", preparations)
    asked = 0
    for name, func, make, keywords in [*SOUND, *EXTRA]:
        for seed in (1, 2):
            torch.manual_seed(seed)
            try:
                call, given = called(func, *make(dtype), **keywords)
                ordinary = rerun_alone(call, given, monkeypatch)
            except (Unreplayable, RuntimeError, NotImplementedError):
                break  # not in this dtype
            assert told(rerun(call, given)) == told(ordinary), name
        else:
            asked += 1
    prepared = [one for one in preparations._known.values() if one is not None]
    assert len(prepared) > 0.7 * asked
    assert {True, False} == {one.is_exact for one in prepared}
    assert {one.function.name for one in prepared}.isdisjoint(("bincount", "dropout"))


def rerun_alone(call: Call, given: Given, monkeypatch: pytest.MonkeyPatch) -> Rerun:
    with monkeypatch.context() as patched:
        patched.setattr(running, "_prepared", lambda *_: None)
        return rerun(call, {slot: tensor.clone() for slot, tensor in given.items()})


def test_what_comes_once_is_not_prepared() -> None:
    preparations, made = Preparations(), []
    form = form_of("torch.add", "{}", "cpu", {"input.0": torch.ones(2)})
    assert form is not None
    for _ in range(3):
        preparations.get(form, lambda: made.append(1))
    assert made == [1]


def test_other_dtypes_shapes_and_devices_are_other_forms() -> None:
    plain = torch.ones(2)
    others = [plain.double(), torch.ones(2, 1), torch.ones(3)]
    forms = {form_of("f", "{}", "cpu", {"input.0": each}) for each in (plain, *others)}
    forms |= {form_of("f", "{}", "cuda", {"input.0": plain}), form_of("f", "{}", "cpu", {})}
    forms |= {form_of("g", "{}", "cpu", {"input.0": plain})}
    assert len(forms) == 7 and None not in forms
    assert form_of("f", "{}", "cpu", {"input.0": torch.ones(2, device="meta")}) is None
