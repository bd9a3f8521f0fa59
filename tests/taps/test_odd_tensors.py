"""Tensors whose elements are not where their shape says: recorded as such, the program unharmed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dumpcmp
from dumpcmp import Key, Verdict
from dumpcmp.nouns.record import UNWRITTEN, Record
from dumpcmp.taps.recording import blanks
from tests.choosing_cases import long


class Odd(nn.Module):
    """A model whose forward is given to it."""

    def __init__(self, run: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, 3))
        self.run = run

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x, self.weight)


def resized(x: Tensor, weight: Tensor) -> Tensor:
    freed = x * weight
    freed.untyped_storage().resize_(0)
    freed.detach()  # takes a tensor that has no elements any more, and gives another
    return x + weight


def loss(x: Tensor, weight: Tensor) -> Tensor:
    return (x @ weight).sin().sum()


TRANSFORMED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "grad": lambda x, w: torch.func.grad(loss)(x, w),
    "vmap": lambda x, w: torch.func.vmap(lambda row: row @ w)(x),
    "jvp": lambda x, w: torch.func.jvp(lambda y: y @ w, (x,), (x,))[1],
    "vjp": lambda x, w: torch.func.vjp(lambda y: y @ w, x)[1](x)[0],
    "jacrev": lambda x, w: torch.func.jacrev(loss)(x, w),
    "jacfwd": lambda x, w: torch.func.jacfwd(loss)(x, w),
    "hessian": lambda x, w: torch.func.hessian(loss)(x, w),
}
TRANSFORMED |= {
    "vmap of columns": lambda x, w: torch.func.vmap(lambda c: (c @ w).cumsum(0), 1, 1)(x),
    "vmap in vmap": lambda x, w: torch.func.vmap(lambda r: torch.func.vmap(lambda e: e * 2)(r))(x),
    "vmap of grad": lambda x, w: torch.func.vmap(torch.func.grad(loss), (0, None))(x, w),
    "grad of vmap": lambda x, w: torch.func.grad(
        lambda y: torch.func.vmap(loss, (0, None))(y, w).sum()
    )(x),
}
UNTRACED = {"resized": resized, "zeros": lambda x, w: torch._efficientzerotensor((3, 3)) + x @ w}
CASES = [(mode, name) for mode in ("eager", "aten") for name in TRANSFORMED]
CASES += [("fx", name) for name in ("grad", "vmap", "jvp", "vjp", "hessian")]  # of all the others
CASES += [(mode, name) for mode in ("eager", "aten") for name in UNTRACED]
THIRDS = [case for case in CASES if case[0] == "aten"][::3]
OFTEN = [case for case in CASES if case[0] != "aten" and case[1] != "hessian"] + THIRDS
AT_LENGTH = [long(*case) for case in CASES if case not in OFTEN]


@pytest.mark.parametrize("mode, name", [*OFTEN, *AT_LENGTH])
def test_a_capture_leaves_the_program_alone(mode: str, name: str, tmp_path: Path) -> None:
    model, x = Odd((TRANSFORMED | UNTRACED)[name]), torch.linspace(0, 1, 9).reshape(3, 3)
    expected = model(x)
    with dumpcmp.capture(model, tmp_path / "d", mode=mode):
        assert torch.equal(model(x), expected)
    archive = dumpcmp.Archive(tmp_path / "d")
    assert archive.complete and torch.equal(archive.tensor("<root>", slot="output.0"), expected)


def test_what_has_no_elements_says_why(tmp_path: Path) -> None:
    model = Odd(resized)
    with dumpcmp.capture(model, tmp_path / "d"):
        model(torch.rand(3, 3))
    problems = [record.problem for record in dumpcmp.Archive(tmp_path / "d").values()]
    assert any("its storage has 0 bytes" in problem for problem in problems)


def under(name: str, path: Path) -> dict[str, Record]:
    """What the ops of a program inside of transforms gave, by function."""
    with dumpcmp.capture(model := Odd(TRANSFORMED[name]), path):
        model(torch.linspace(0, 1, 9).reshape(3, 3))
    archive = dumpcmp.Archive(path)
    assert not any(record.problem for record in archive.values())
    return {key.op.function: archive[key] for key in archive if key.slot == "output.0"}


def test_the_batch_under_vmap_is_stored_with_its_level(tmp_path: Path) -> None:
    x, w = torch.linspace(0, 1, 9).reshape(3, 3), torch.ones(3, 3)
    gave = under("vmap of columns", tmp_path / "d")
    archive = dumpcmp.Archive(tmp_path / "d")
    assert gave["cumsum"].seen_in == gave["matmul"].seen_in == "vmap 1"
    assert torch.equal(archive.tensor("<root>/matmul", slot="output.0"), x.T @ w)
    assert under("vmap in vmap", tmp_path / "two")["mul"].seen_in == "vmap 1,2"


def test_what_is_differentiated_is_stored_as_it_is(tmp_path: Path) -> None:
    gave = under("grad", tmp_path / "d")
    assert gave["sin"].kept == "full" and not gave["sin"].seen_in
    assert gave["sum"].shape == ()


class Unwritten(nn.Module):
    """Takes memory as it is, and writes to it: in place, part by part, behind torch."""

    def forward(self, x: Tensor) -> Tensor:
        whole, part, behind = torch.empty_like(x), x.new_empty(4), torch.empty(2)
        x.clone().resize_(30)
        torch.empty_strided((2, 2), (2, 1))
        whole.fill_(1.0)
        part[:2].copy_(x[:2])
        half = part.tanh()
        part[2:].zero_()
        behind.data.fill_(3.0)
        return whole + part.sum() * 0 + behind.sum() + half[0]


@pytest.mark.parametrize("mode", ["eager", "fx", "aten"])
def test_memory_that_nobody_wrote_has_no_value(mode: str, tmp_path: Path) -> None:
    with dumpcmp.capture(None, tmp_path / "d", mode=mode):
        Unwritten()(torch.ones(5))
    archive, prefix = dumpcmp.Archive(tmp_path / "d"), "aten." * (mode == "aten")
    without = {
        (key.op.rpartition("/")[2].removeprefix(prefix), key.slot)
        for key in archive
        if archive[key].problem
    }
    assert all(archive[key].problem in ("", UNWRITTEN) for key in archive)
    makers = {"empty_like", "new_empty", "empty", "empty_strided", "resize"}
    assert without >= {(name, "output.0") for name in makers}
    assert without >= {("fill", "input.0"), ("copy", "input.0"), ("tanh", "input.0")}
    assert not without & {("fill", "output.0"), ("copy", "output.0"), ("add", "output.0")}
    assert not without & {("sum", "input.0"), ("add", "input.0"), ("copy", "input.1")}


class Inverse(nn.Module):
    """Inverts an order as engines of experts do, and has a kernel that torch knows nothing of."""

    def __init__(self) -> None:
        super().__init__()
        self.found, self.told = 0, 0

    def forward(self, x: Tensor) -> Tensor:
        order = torch.argsort(x)
        inverse = torch.empty_like(order)
        inverse.numpy()[...] = self.found
        inverse[order] = torch.arange(len(x))
        made = torch.empty_like(order)
        made.numpy()[...] = self.told
        return inverse * made


@pytest.mark.parametrize("kept", [{}, {"keep": "summary"}])
def test_memory_that_cannot_be_looked_at_has_no_value_for_who_writes_to_it(
    kept: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, inputs = Inverse(), torch.rand(4, 600)
    monkeypatch.setattr(blanks, "_shows_bytes", lambda _: False)  # as on a GPU
    for name, model.found, model.told in (("a", 1, 3), ("found", 2, 3), ("told", 1, 4)):
        with dumpcmp.capture(model, tmp_path / name, **kept):
            for x in inputs:  # known calls go another way
                model(x)
    outcome = dumpcmp.compare(tmp_path / "a", tmp_path / "found")
    assert outcome.passed, outcome
    skipped = {row.key for row in outcome.rows if row.verdict is Verdict.SKIPPED}
    for step in range(len(inputs)):
        assert Key("Inverse", step, "<root>/setitem", 0, "input.0") in skipped
        assert Key("Inverse", step, "<root>/setitem", 0, "output.0") not in skipped
    outcome = dumpcmp.compare(tmp_path / "a", tmp_path / "told")
    root = outcome.first_divergence
    assert root is not None and (root.key.op, root.key.slot) == ("<root>/mul", "input.1")


@torch.library.custom_op("dumpcmp_tests::write_again", mutates_args=("room",))
def write_again(room: Tensor) -> None:
    """Write what lies there already, as who gathers a weight into memory that held it before."""
    room.copy_(room.clone())


class Gathering(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        room = torch.empty(3, dtype=torch.int32)
        with torch.autograd.grad_mode._unsafe_preserve_version_counter(room):
            write_again(room)
        return x + room


def test_memory_that_is_written_to_as_it_was_has_a_value(tmp_path: Path) -> None:
    model = Gathering()
    with dumpcmp.capture(model, tmp_path / "d", mode="aten"), torch.no_grad():
        model(torch.ones(3))
    found = dumpcmp.Archive(tmp_path / "d").values()
    taken = [record for record in found if record.key.op.endswith("aten.add")]
    assert len(taken) == 3
    assert not any(record.problem for record in taken)
