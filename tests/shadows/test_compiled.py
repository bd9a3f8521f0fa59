"""Compiled runs: the graph is the program, and each kernel is right for what it read, or named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

import dumpcmp
from dumpcmp.archive.read.reader import Archive
from dumpcmp.nouns.row import Why
from dumpcmp.nouns.value import to_torch
from dumpcmp.shadows import graph_links
from dumpcmp.shadows.gradient_sums import with_gradients
from dumpcmp.shadows.graph_links import INSIDE, is_stored, kernel_of, without_graphs
from dumpcmp.shadows.kernel_regions import check_regions, is_compiled
from dumpcmp.shadows.program import Program, ValueId
from dumpcmp.shadows.proving import ProofAnswer
from dumpcmp.shadows.together import read_program
from tests.shadows.proved import prove
from tests.taps.inductor.models import Net, gradient_mul_becomes_add, sub_is_swapped

Made = Callable[[str], Path]


def trained(path: Path, mode: Any, model: Net | None = None) -> Path:
    """One training step of a small net."""
    torch.manual_seed(0)
    fresh, x = Net(), torch.randn(2, 8)
    if model is not None:
        model.load_state_dict(fresh.state_dict())
    net = model or fresh
    with dumpcmp.capture(net, path, mode=mode, backward=True):
        net(x).square().sum().backward()
    return path


def two_faults(graph: fx.Graph) -> None:
    """A wrong kernel forward and one backward."""
    sub_is_swapped(graph)
    gradient_mul_becomes_add(graph)


def faulty() -> AbstractContextManager[Any]:
    from torch._inductor import config

    patched: AbstractContextManager[Any] = config.patch(post_grad_custom_pre_pass=two_faults)
    return patched


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    """Dumps of one net: eager, compiled, and compiled with two faults; each made once."""
    room, threads = tmp_path_factory.mktemp("compiled"), torch.get_num_threads()
    torch.set_num_threads(1)
    plant = {"faulty": faulty}

    def dump(name: str) -> Path:
        if not (room / name).exists():
            with plant.get(name, nullcontext)():
                trained(room / name, "eager" if name == "eager" else "compiled")
        return room / name

    yield dump
    torch.set_num_threads(threads)


def test_a_sound_compiled_run_is_the_same_whichever_side_it_is(made: Made) -> None:
    for golden, target in (("eager", "compiled"), ("compiled", "eager"), ("compiled", "compiled")):
        proof = prove(made(golden), made(target))
        assert proof.answer is ProofAnswer.SAME, str(proof)
        assert proof.num_effects == 1 + 8  # what it returns, and the gradients of eight weights


def test_wrong_kernels_are_named_forward_and_backward(made: Made) -> None:
    outcome = dumpcmp.compare(made("eager"), made("faulty"))
    assert outcome.headline.startswith("WRONG at <root>/sub"), outcome.headline
    roots = {(str(row.key.op), str(row.key.slot)) for row in outcome.roots}
    assert roots == {("<root>/sub", "output.0"), ("blocks.1.mlp/mul", "grad_input.1")}
    swapped = dumpcmp.compare(made("faulty"), made("eager")).first_divergence
    assert swapped is not None and swapped.judgement.why is Why.GOLDEN
    assert swapped.key.op == "<root>/sub"


class OtherScale(Net):
    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return F.relu(self.head(x) - x) * 0.55


class WithoutRelu(Net):
    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return (self.head(x) - x) * 0.5  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("model", "op"), [(OtherScale, "<root>/mul"), (WithoutRelu, "<root>/relu")]
)
def test_another_program_is_named_at_its_op(
    made: Made, tmp_path: Path, model: type[Net], op: str
) -> None:
    changed = trained(tmp_path / "d", "eager", model())
    for paths in ((changed, made("compiled")), (made("compiled"), changed)):
        first = prove(*paths).first
        assert first is not None and first.answer is ProofAnswer.DIFFERENT_PROGRAM
        assert first.op == op


def test_another_weight_is_another_start(made: Made, tmp_path: Path) -> None:
    class OtherWeight(Net):
        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                self.head.weight[2].data.mul_(1.001)
            return super().forward(x)

    changed = trained(tmp_path / "d", "eager", OtherWeight())
    first = prove(changed, made("compiled")).first
    assert first is not None and first.answer is not ProofAnswer.SAME


def program_of(path: Path) -> tuple[Archive, Program]:
    archive = Archive(path)
    return archive, with_gradients(read_program(archive, archive.models[0], 0))


def load(archive: Archive, program: Program, value: ValueId) -> Tensor:
    record = program.records[value]
    return to_torch(archive.load(record)).reshape(record.shape)


def test_whatever_a_kernel_stores_is_checked(made: Made) -> None:
    archive, program = program_of(made("compiled"))
    nodes = [node for node in program.nodes if is_compiled(node)]
    plain = partial(load, archive, program)
    assert not list(check_regions(program, nodes, plain))
    stored = [v for node in nodes for v in node.gives.values() if is_stored(program.records[v])]
    assert len(stored) > 20 and sum(bool(kernel_of(program.records[v])) for v in stored) > 10
    for spoilt in stored:

        def spoiling(value: ValueId, spoilt: ValueId = spoilt) -> Tensor:
            return plain(value) * (1.001 if value == spoilt else 1.0)

        own = [program.producers[spoilt]]
        assert any(found.wrong for found in check_regions(program, own, spoiling)), spoilt


def test_a_value_that_no_kernel_stores_is_in_the_program_all_the_same(made: Made) -> None:
    archive, program = program_of(made("compiled"))
    inside = [v for v, record in program.records.items() if record.problem == INSIDE]
    assert {v.key.op for v in inside} >= {"blocks.0.mlp.down/linear", "blocks.1.mlp.down/linear"}
    assert all(v in program.producers and program.consumers[v] for v in inside)
    del archive


def test_a_compiled_run_that_does_not_tell_of_its_graphs_is_unknown(made: Made) -> None:
    archive = Archive(made("compiled"))
    (held,) = archive.rank_steps(archive.models[0], 0)
    assert not without_graphs(held.calls(), held.calls(effects=True))
    assert "dump it again" in without_graphs(held.calls(), ())
    (eager,) = Archive(made("eager")).rank_steps(archive.models[0], 0)
    assert not without_graphs(eager.calls(), ())


def test_so_it_is_not_the_same_by_its_outputs_either(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_links, "read_runs", lambda effects: iter(()))
    proof = prove(made("eager"), made("compiled"))
    assert proof.answer is ProofAnswer.UNKNOWN, str(proof)
    assert proof.first is not None and "dump it again" in proof.first.reason


class Normed(nn.Module):
    """A bias before a batch norm: its gradient is nothing but rounding."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.second, self.last = nn.Conv2d(8, 8, 3, padding=1, groups=4), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm(self.first(x)))
        y = F.adaptive_avg_pool2d(y + self.second(y), 1)
        return self.last(y.flatten(1))  # type: ignore[no-any-return]


@pytest.mark.long  # so it is in taps/inductor/test_norms.py, of more layers
def test_a_gradient_that_is_nothing_but_rounding_is_right(tmp_path: Path) -> None:
    x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    for name, mode in (("eager", "eager"), ("compiled", dumpcmp.Compiled(twin=False))):
        model = Normed()
        with dumpcmp.capture(model, tmp_path / name, mode=mode, backward=True):
            model(x).square().sum().backward()
    outcome = dumpcmp.compare(tmp_path / "eager", tmp_path / "compiled")
    assert outcome.exit_code == 0, outcome.word
