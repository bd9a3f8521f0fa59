"""Ranks: who a process is, what it says of its tensors, and what is left when one dies."""

import sys
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from threading import Thread
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import nn
from torch.distributed.pipelining.stage import PipelineStage
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from dumpcmp.archive.integrity import audit
from dumpcmp.archive.read.reader import Archive
from dumpcmp.cli import main
from dumpcmp.comparing import compare
from dumpcmp.dumping.capturing import capture
from dumpcmp.nouns.errors import CaptureError, CaptureWarning, LayoutError
from dumpcmp.nouns.layouts import parse_layout
from dumpcmp.nouns.row import Verdict
from dumpcmp.pytorch.names import NAMES, PrivateName
from dumpcmp.taps.distributed import ranks as distributed
from dumpcmp.taps.distributed.dtensor import layout_of_spec
from dumpcmp.taps.distributed.ranks import World, layout, layout_of, remembering, set_rank, world
from tests.taps.distributed.launching import forked

LONELY = "tests.taps.distributed.programs.lonely"


@pytest.fixture(autouse=True)
def _nothing_stated(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    yield
    distributed._stated.clear()


LAUNCHED = [
    ({}, World(0, 1)),
    ({"RANK": "3", "WORLD_SIZE": "8"}, World(3, 8)),
]


@pytest.mark.parametrize("environment, expected", LAUNCHED)
def test_the_environment_says_which_rank_this_is(
    monkeypatch: pytest.MonkeyPatch, environment: Any, expected: Any
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert world() == expected


@pytest.mark.parametrize("rank, size", [("8", "8"), ("one", "2"), ("-1", "2")])
def test_an_environment_that_names_no_rank_is_refused(
    monkeypatch: pytest.MonkeyPatch, rank: Any, size: Any
) -> None:
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", size)
    with pytest.raises(CaptureError, match="name no rank"):
        world()


def test_what_is_stated_goes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    set_rank(1, 2, mesh="tp:1/2")
    assert (world().rank, world().size) == (1, 2)
    assert layout_of(torch.zeros(2)) == "@ tp:1/2?"
    with pytest.raises(CaptureError, match="not one of"):
        set_rank(2, 2)


def test_a_capture_keeps_the_rank_that_it_began_with() -> None:
    with distributed.captured(), pytest.raises(CaptureError, match="began as rank 0 of 1"):
        set_rank(1, 2)


def test_a_tensor_can_be_told_its_layout() -> None:
    tensor = torch.zeros(2, 3)
    assert layout(tensor, "b h[tp] @ tp:0/2") is tensor
    assert layout_of(tensor) == "b h[tp] @ tp:0/2"
    assert layout_of(torch.zeros(2, 3)) == ""
    with pytest.raises(LayoutError):
        layout(tensor, "b h[tp")


def _spec(names: Any, sizes: Any, at: Any, placements: Any, shape: Any, root: Any = None) -> Any:
    """A DTensorSpec as far as a layout looks at it, on a mesh that needs no network."""
    mesh = SimpleNamespace(
        mesh_dim_names=names, shape=sizes, ndim=len(sizes), get_coordinate=lambda: at
    )
    mesh._get_root_mesh = lambda: root or mesh
    return SimpleNamespace(mesh=mesh, placements=placements, shape=shape)


DP_TP = _spec(("dp", "tp"), (2, 2), (1, 0), (), ()).mesh
SPECS = [
    ((("tp",), (2,), (1,), [Shard(1)], (4, 65)), "d0 d1[tp] @ tp:1/2 of 4x65"),
    ((("tp",), (2,), (1,), [Replicate()], (4, 65)), "d0 d1 @ tp:1/2 of 4x65"),
    ((("tp",), (2,), (0,), [Partial()], (4,)), "d0[tp:partial] @ tp:0/2 of 4"),
    ((("tp",), (2,), (0,), [Partial("avg")], (4,)), "d0[tp:partial.avg] @ tp:0/2 of 4"),
    ((None, (2,), (0,), [Shard(0)], (4,)), "d0[mesh0] @ mesh0:0/2 of 4"),
    (
        (("dp", "tp"), (2, 2), (1, 0), [Shard(0), Shard(0)], (8,)),
        "d0[dp,tp] @ dp:1/2 tp:0/2 of 8",
    ),
    (
        (("dp", "tp"), (2, 2), (1, 0), [_StridedShard(0, split_factor=2), Shard(0)], (8,)),
        "d0[tp,dp] @ dp:1/2 tp:0/2 of 8",
    ),
    (
        (("dp", "tp"), (2, 2), (1, 0), [_StridedShard(0, split_factor=3), Shard(1)], (6, 4)),
        "d0[dp:strided.3] d1[tp] @ dp:1/2 tp:0/2 of 6x4",
    ),
    ((("tp",), (2,), (0,), [Shard(0)], (8,), DP_TP), "d0[tp] @ dp:1/2? tp:0/2 of 8"),
]


@pytest.mark.parametrize("spec, sentence", SPECS)
def test_a_dtensor_is_described_by_a_sentence(spec: Any, sentence: Any) -> None:
    assert str(layout_of_spec(_spec(*spec))) == sentence
    assert parse_layout(sentence) == layout_of_spec(_spec(*spec))


def _lonely(path: Path, what: str) -> str:
    """Two ranks that know nothing of each other; their exit codes."""
    return forked(1, LONELY, str(path), what, "2").strip()


def test_ranks_that_only_state_who_they_are_write_one_archive(
    goldens: Path, tmp_path: Path
) -> None:
    assert _lonely(tmp_path / "d", "states") == "0 0"
    assert sorted(p.name for p in (tmp_path / "d").iterdir()) == [
        "worldsize2_global_rank0",
        "worldsize2_global_rank1",
    ]
    outcome = compare(goldens / "golden-plain", tmp_path / "d")
    pairs = [row for row in outcome.rows if row.golden_key and row.target_key]
    shared = [row for row in pairs if not row.key.op.is_effect]
    assert shared and {row.verdict for row in shared} == {Verdict.PASS}
    assert any("[dp]" in row.layout for row in shared)


def test_a_rank_that_dies_is_named_and_leaves_the_rest_usable(
    goldens: Path, tmp_path: Path
) -> None:
    assert _lonely(tmp_path / "d", "dies") == "0 -9"
    archive = Archive(tmp_path / "d")
    assert not archive.complete and any("rank 1" in problem for problem in archive.problems)
    assert "rank1" in str(audit(tmp_path / "d")) or "rank 1" in str(audit(tmp_path / "d"))
    outcome = compare(goldens / "golden-plain", tmp_path / "d")
    assert any("rank 1" in remark for remark in outcome.remarks)
    pairs = [row for row in outcome.rows if row.golden_key and row.target_key]
    shared = [row for row in pairs if not row.key.op.is_effect]
    assert shared and {row.verdict for row in shared} == {Verdict.PASS}


def test_the_commands_of_the_handbook(tmp_path: Path) -> None:
    """Dump under torchrun, dump whole, compare: as the how-to says."""
    program = "tests/taps/distributed/programs/generate.py"
    dump = ("dumpcmp", "dump", "--mode", "eager")
    torchrun = ("torch.distributed.run", "--standalone", "--nproc-per-node=2")
    forked(1, *torchrun, "-m", *dump, "--path", str(tmp_path / "d2"), program)
    whole = CliRunner().invoke(main, [*dump[1:], "--path", str(tmp_path / "d1"), program])
    assert whole.exit_code == 0, whole.output
    paths = ("--my-path", str(tmp_path / "d2"), "--golden-path", str(tmp_path / "d1"))
    output = ("--output", str(tmp_path / "out"))
    same = CliRunner().invoke(main, ["compare", *paths, *output])
    assert same.exit_code == 0 and "SAME" in same.output, same.output
    layout = ("--layout", "layers.*.mlp=b[tp] s h")
    wrong = CliRunner().invoke(main, ["compare", *paths, *output, *layout])
    assert wrong.exit_code == 1, wrong.output


def test_a_traced_program_meets_the_function_that_dynamo_knows() -> None:
    known = DTensor.from_local
    with remembering([], is_traced=True):
        assert DTensor.from_local is known
    with remembering([]):
        assert DTensor.from_local is not known
    assert DTensor.from_local is known


SLOW = ("torch.distributed.tensor", "torch.distributed.pipelining", "torch._dynamo")


class _Again(MetaPathFinder, Loader):
    """Imports modules as they are: torch's cannot be executed twice."""

    def __init__(self, modules: dict[str, ModuleType]) -> None:
        self.modules = modules

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in self.modules else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self.modules[spec.name]

    def exec_module(self, module: ModuleType) -> None: ...


@pytest.fixture
def one_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is one rank of two, and that has not imported what takes long."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    again = _Again({name: import_module(name) for name in SLOW})
    monkeypatch.setattr(sys, "meta_path", [again, *sys.meta_path])
    for name, module in again.modules.items():
        for fact in ("__spec__", "__loader__"):
            monkeypatch.setattr(module, fact, getattr(module, fact))  # importing it changes them
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.usefixtures("one_of_two")
def test_a_capture_on_several_ranks_imports_nothing_that_takes_long(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    with capture(model, tmp_path / "d"):
        model(torch.ones(2))
    assert not [name for name in SLOW if name in sys.modules]


@pytest.mark.usefixtures("one_of_two")
def test_what_the_program_imports_while_it_is_captured_is_seen(tmp_path: Path) -> None:
    infer, to_local = PipelineStage._prepare_forward_infra, DTensor.to_local
    with capture(None, tmp_path / "d"):
        assert DTensor.to_local is to_local
        assert import_module(SLOW[0]).DTensor.to_local is not to_local
        assert PipelineStage._prepare_forward_infra is infer
        assert import_module(SLOW[1]).PipelineStage._prepare_forward_infra is not infer
        nn.Linear(2, 2)(torch.ones(2))
    assert (PipelineStage._prepare_forward_infra, DTensor.to_local) == (infer, to_local)


@pytest.mark.usefixtures("one_of_two")
def test_what_torch_lacks_is_refused_or_told_of_when_the_program_imports_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for user, loses in (("DTensors", ""), ("pipelines", "no microbatches")):
        gone = PrivateName("torch:no_such_name", "to test", loses)
        monkeypatch.setitem(NAMES, user, [gone])
    told = pytest.warns(CaptureWarning, match=r"torch\.no_such_name: no microbatches")
    with told, capture(None, tmp_path / "d"):
        nn.Linear(2, 2)(torch.ones(2))
        import_module(SLOW[1])
        with pytest.raises(CaptureError, match="which DTensors needs"):
            import_module(SLOW[0])


class _Stage:
    """What is known of a pipeline's stage while it works on one of two microbatches."""

    chunks = 2
    is_first = is_last = False


def test_a_gradient_is_of_the_microbatch_at_work_whichever_thread_computes_it() -> None:
    """As autograd's own threads do for all that lies on a GPU."""
    said: list[str] = []

    def work(stage: _Stage, chunk: int) -> None:
        x = torch.ones(2, requires_grad=True)
        x.register_hook(lambda grad: said.append(layout_of(grad)))  # type: ignore[no-untyped-call]
        thread = Thread(target=(chunk * x).sum().backward)
        thread.start()
        thread.join()

    for chunk in range(2):
        distributed._numbered(work)(_Stage(), chunk)
    assert said == ["@ mb:0/2?", "@ mb:1/2?"]
    assert layout_of(torch.ones(2)) == ""
