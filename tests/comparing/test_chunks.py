"""One run puts through a loop what the other runs at once: chunks are compared as one."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dumpcmp
from dumpcmp.nouns.outcome import Outcome
from dumpcmp.nouns.row import Verdict

WIDTH = 8
Pieces = list[Tensor]
Edit = Callable[[int, Tensor], Tensor]


def split(x: Tensor, size: int, dim: int) -> Pieces:
    return list(torch.split(x, size, dim))


def sliced(x: Tensor, size: int, dim: int) -> Pieces:
    length = x.shape[dim]
    return [x.narrow(dim, at, min(size, length - at)) for at in range(0, length, size)]


class FeedForward(nn.Module):
    """Rows are independent of each other, and run `size` at a time; all at once where that is 0."""

    def __init__(self, size: int, dim: int = 0) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 12), nn.Linear(12, WIDTH)
        self.size, self.dim, self.cut = size, dim, split
        self.edit: Edit = lambda number, hidden: hidden
        self.order: Callable[[Pieces], Pieces] = lambda pieces: pieces

    def rows(self, x: Tensor, number: int = 0) -> Tensor:
        h = self.up(x)
        h = 0.5 * h * (1 + torch.tanh(0.8 * (h + 0.04 * h * h * h)))  # a line of many products
        return self.edit(number, self.down(h))

    def forward(self, x: Tensor) -> Tensor:
        if not self.size:
            return self.rows(x)
        pieces = self.order(self.cut(x, self.size, self.dim))
        return torch.cat([self.rows(one, n) for n, one in enumerate(pieces)], self.dim)


class Net(nn.Module):
    """Two layers, or one layer twice."""

    def __init__(self, size: int = 0, dim: int = 0, shared: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.mix, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)
        self.layers = nn.ModuleList(FeedForward(size, dim) for _ in range(2 - shared))

    def forward(self, x: Tensor) -> Tensor:
        for number in range(2):
            x = torch.tanh(self.mix(x))
            x = x + self.layers[number % len(self.layers)](x)
        return self.head(x)  # type: ignore[no-any-return]


def compared(
    tmp_path: Path, golden: nn.Module, target: nn.Module, x: Tensor, **how: Any
) -> Outcome:
    for name, model in (("golden", golden), ("target", target)):
        with dumpcmp.capture(model, tmp_path / name, **how):
            out = model(x)
            if how.get("backward"):
                out.square().mean().backward()
    return dumpcmp.compare(tmp_path / "golden", tmp_path / "target")


def rows_of(num: int, *shape: int) -> Tensor:
    return torch.randn(num, *shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.each_value_once
@pytest.mark.parametrize(
    "how", [{}, {"backward": True}, {"level": "modules"}, {"mode": "aten"}, {"mode": "fx"}]
)
@pytest.mark.parametrize("cut", [split, sliced])
def test_chunks_are_as_good_as_the_whole(tmp_path: Path, cut: Any, how: dict[str, Any]) -> None:
    chunked = Net(size=3)
    for layer in chunked.layers:
        layer.cut = cut
    outcome = compared(tmp_path, Net(), chunked, rows_of(7, WIDTH), **how)
    assert outcome.exit_code == 0, outcome
    is_whole = how.get("level") != "modules"  # modules do not tell what was made of what they give
    sound = {Verdict.PASS, Verdict.COVERED} | (set() if is_whole else {Verdict.DEAD})
    assert not {row.verdict for row in outcome.rows} - sound
    ends = {row.verdict for row in outcome.rows if str(row.key) == "Net[0] <root>#0 output.0"}
    assert ends == {Verdict.PASS}


@pytest.mark.parametrize("backward", [False, True])
def test_golden_may_be_the_one_in_chunks(tmp_path: Path, backward: bool) -> None:
    outcome = compared(tmp_path, Net(size=2), Net(), rows_of(6, WIDTH), backward=backward)
    assert outcome.exit_code == 0, outcome
    ends = {row.verdict for row in outcome.rows if str(row.key) == "Net[0] <root>#0 output.0"}
    assert ends == {Verdict.PASS}


def test_chunks_of_tokens(tmp_path: Path) -> None:
    outcome = compared(tmp_path, Net(), Net(size=2, dim=1), rows_of(2, 5, WIDTH))
    assert outcome.exit_code == 0, outcome


def test_a_layer_that_is_called_twice_has_two_loops(tmp_path: Path) -> None:
    """Of its 4 calls the first two are one, whose every line has several products."""
    outcome = compared(tmp_path, Net(shared=True), Net(size=3, shared=True), rows_of(6, WIDTH))
    assert outcome.exit_code == 0, outcome


class Rows(nn.Module):
    """One row at a time, without the dim of rows."""

    def __init__(self, is_looping: bool, fault: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(WIDTH, 12), nn.Linear(12, WIDTH)
        self.is_looping, self.fault = is_looping, fault

    def row(self, x: Tensor, number: int = 0) -> Tensor:
        how = "tanh" if self.fault and number == 2 else "none"
        return self.down(F.gelu(self.up(x), approximate=how))  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        if not self.is_looping:
            return self.row(x)
        return torch.stack([self.row(one, n) for n, one in enumerate(x)])


@pytest.mark.each_value_once
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("looping", [(False, True), (True, False)], ids=["target", "golden"])
def test_one_row_at_a_time(tmp_path: Path, looping: tuple[bool, bool], backward: bool) -> None:
    golden, target = map(Rows, looping)
    outcome = compared(tmp_path, golden, target, rows_of(4, WIDTH), backward=backward)
    assert outcome.exit_code == 0, outcome


def test_a_row_that_is_wrong_is_named(tmp_path: Path) -> None:
    outcome = compared(tmp_path, Rows(False), Rows(True, fault=True), rows_of(4, WIDTH))
    assert outcome.exit_code == 1
    first = outcome.first_divergence
    assert first and first.key.op == "<root>/gelu" and first.key.call == 2
    assert first.reason.endswith("golden has <root>/gelu#0 instead")


def faulty(**edits: Any) -> Net:
    net = Net(size=3)
    for name, edit in edits.items():
        setattr(net.layers[1], name, edit)
    return net


@pytest.mark.parametrize(
    "target, module, told",
    [
        (faulty(edit=lambda n, h: h.mul_(1.01) if n else h), "layers.1", "only the target has it"),
        (faulty(order=lambda pieces: pieces[::-1]), "layers.1", "computes something else"),
        (
            faulty(order=lambda pieces: [pieces[0], pieces[0]]),
            "layers.1",
            "at layers.1/cat (call 0",
        ),
    ],
    ids=["one chunk scaled", "in another order", "one chunk twice"],
)
def test_a_fault_in_a_chunk_is_named(tmp_path: Path, target: Net, module: str, told: str) -> None:
    outcome = compared(tmp_path, Net(), target, rows_of(6, WIDTH))
    assert outcome.exit_code == 1
    assert outcome.first_divergence and outcome.first_divergence.key.op.module.startswith(module)
    assert told in str(outcome)


@pytest.mark.parametrize("backward", [False, True])
def test_no_value_is_lost_and_none_stands_alone_that_has_a_partner(
    tmp_path: Path, backward: bool
) -> None:
    target = Net(size=3, shared=True)
    target.layers[0].edit = lambda number, hidden: hidden * 1.01 if number else hidden  # type: ignore[assignment]
    golden = Net(shared=True)
    outcome = compared(tmp_path, golden, target, rows_of(6, WIDTH), backward=backward)
    assert outcome.exit_code == 1
    rows = Counter(row.golden_key for row in outcome.rows)
    assert set(rows) >= set(dumpcmp.Archive(tmp_path / "golden"))
    alone = (row.golden_key for row in outcome.rows if row.target_key is None)
    assert all(rows[key] == 1 for key in alone)


def test_the_chunk_that_is_wrong_is_named(tmp_path: Path) -> None:
    class Gate(FeedForward):
        def rows(self, x: Tensor, number: int = 0) -> Tensor:
            how = "tanh" if number and self.size else "none"
            return self.down(F.gelu(self.up(x), approximate=how))  # type: ignore[no-any-return]

    torch.manual_seed(0)
    golden, target = Gate(0), Gate(2)
    target.load_state_dict(golden.state_dict())
    outcome = compared(tmp_path, golden, target, rows_of(6, WIDTH))
    assert outcome.exit_code == 1
    first = outcome.first_divergence
    assert first and first.key.op == "<root>/gelu" and first.key.call == 1
    assert first.reason.endswith("golden has <root>/gelu#0 instead")


class Streaming(nn.Module):
    """A state goes from chunk to chunk."""

    def __init__(self, size: int, forgets: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gru, self.out = nn.GRU(WIDTH, 6, batch_first=True), nn.Linear(6, 2)
        self.size, self.forgets = size, forgets

    def forward(self, x: Tensor) -> Tensor:
        state, outs = None, []
        for piece in split(x, self.size or x.shape[1], 1):
            out, state = self.gru(piece, None if self.forgets else state)
            outs.append(out)
        return self.out(torch.cat(outs, 1) if self.size else outs[0])  # type: ignore[no-any-return]


@pytest.mark.parametrize("backward", [False, True])
def test_a_state_that_goes_from_chunk_to_chunk(tmp_path: Path, backward: bool) -> None:
    x = rows_of(2, 8, WIDTH)
    outcome = compared(tmp_path, Streaming(0), Streaming(3), x, backward=backward)
    assert outcome.exit_code == 0, outcome


def test_a_state_that_is_forgotten_is_named(tmp_path: Path) -> None:
    outcome = compared(tmp_path, Streaming(0), Streaming(3, forgets=True), rows_of(2, 8, WIDTH))
    assert outcome.exit_code == 1
    first = outcome.first_divergence
    assert first and first.key.op == "gru@1/gru"  # which begins with a state of zeros
    assert first.reason.endswith("golden has gru/gru#0 instead")


class Loss(nn.Module):
    """A loss over all tokens, or over some at a time, which are added up."""

    def __init__(self, size: int, of_means: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.head, self.size = nn.Linear(WIDTH, 5), size
        self.reduction = "mean" if of_means else "sum"

    def forward(self, x: Tensor) -> Tensor:
        wanted = torch.arange(len(x)) % 5
        total = torch.zeros(())
        pieces = split(x, self.size or len(x), 0)
        for one, labels in zip(pieces, split(wanted, self.size or len(x), 0), strict=True):
            loss = F.cross_entropy(self.head(one), labels, reduction=self.reduction)
            total = total + loss if self.size else loss
        return total / (len(x) if self.reduction == "sum" else len(pieces))


@pytest.mark.parametrize("backward", [False, True])
def test_a_loss_that_is_added_up_over_chunks(tmp_path: Path, backward: bool) -> None:
    outcome = compared(tmp_path, Loss(0), Loss(3), rows_of(7, WIDTH), backward=backward)
    assert outcome.exit_code == 0, outcome


def test_a_mean_of_means_of_chunks_that_are_not_as_large_is_wrong(tmp_path: Path) -> None:
    golden, target = Loss(0, of_means=True), Loss(3, of_means=True)
    assert compared(tmp_path, golden, target, rows_of(7, WIDTH)).exit_code == 1


def test_a_chunk_of_zeros_is_wrong(tmp_path: Path) -> None:
    """Nothing may pass for want of a chunk: the rows of the last are lost."""
    target = faulty(order=lambda pieces: [*pieces[:1], pieces[1] * 0])
    outcome = compared(tmp_path, Net(), target, rows_of(6, WIDTH))
    assert outcome.exit_code == 1
    assert outcome.first_divergence and outcome.first_divergence.key.op.module == "layers.1"
