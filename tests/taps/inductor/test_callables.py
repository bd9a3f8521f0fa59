"""Whatever a program compiles, functions too, is recorded under the keys of an eager run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from click.testing import CliRunner
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import dumpcmp
from dumpcmp.archive.read.reader import Archive
from dumpcmp.cli import main
from dumpcmp.dumping.programs import dump
from dumpcmp.nouns.record import TWIN
from dumpcmp.nouns.row import Verdict
from tests.choosing_cases import often
from tests.taps.distributed.launching import forked

Program = Callable[[], object]
PROGRAMS: dict[str, tuple[Program, bool]] = {}  # and whether it trains


def program(name: str, *, trains: bool = False) -> Callable[[Program], Program]:
    def listed(run: Program) -> Program:
        PROGRAMS[name] = run, trains
        return run

    return listed


class Gate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner: Tensor = self.down(torch.tanh(self.up(x)))
        return x + inner

    def error(self, x: Tensor) -> Tensor:
        return F.mse_loss(self(x), x)


@torch._dynamo.disable  # type: ignore[untyped-decorator]
def untraceable(x: Tensor) -> Tensor:
    return torch.exp(-x) * x


class Broken(Gate):
    """What the first graph gives is used inside of it, between the graphs, and in the second."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.up(x)
        y = untraceable(x + torch.sin(x))
        down: Tensor = self.down(y)
        return down * x


class Checkpointed(Gate):
    def forward(self, x: Tensor) -> Tensor:
        again = checkpoint(lambda v: self.down(torch.tanh(self.up(v))), x, use_reentrant=False)
        inner: Tensor = again
        return x + inner


@program("modules of torch itself")
def compiled_container() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    torch.compile(model)(torch.linspace(-1, 1, 8).reshape(2, 4))


def made(kind: type[Gate] = Gate) -> Gate:
    torch.manual_seed(0)
    return kind()


def values() -> Tensor:
    return torch.linspace(-1, 1, 8).reshape(2, 4)


@program("a function with a model and a loss", trains=True)
def function_with_a_loss() -> None:
    model = made()
    compiled = torch.compile(lambda x: F.mse_loss(model(model(x)), x))
    compiled(values()).backward()  # type: ignore[no-untyped-call]


@program("a function without any module")
def function_alone() -> None:
    torch.compile(lambda x, y: (torch.sin(x) + y).relu() @ y.T)(values(), values())


@program("a bound method, and a model, in one graph", trains=False)
def bound_method() -> None:
    with torch.no_grad():
        torch.compile(made().error, fullgraph=True)(values())


@program("a part of a model", trains=True)
def part_of_a_model() -> None:
    model = made()
    model.up.compile()
    model(values()).sum().backward()


@program("a model that cannot be traced in one piece", trains=True)
def broken() -> None:
    torch.compile(made(Broken))(values()).sum().backward()


@program("a checkpointed region", trains=True)
def checkpointed() -> None:
    torch.compile(made(Checkpointed), fullgraph=True)(values()).sum().backward()


@pytest.fixture(autouse=True)
def no_code_remembered() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


# Twins double the kernels: graphs with breaks have them in test_programs, training in test_faults.
WITHOUT_TWINS = (
    "a function with a model and a loss",
    "a model that cannot be traced in one piece",
    "modules of torch itself",
)


LONG = (
    "modules of torch itself",
    "a function without any module",
    "a bound method, and a model, in one graph",
    "a checkpointed region",
)
OFTEN = [name for name in PROGRAMS if name not in LONG]


@pytest.mark.parametrize("name", often(PROGRAMS, *OFTEN))
def test_a_compiled_program_has_every_key_of_the_eager_one(name: str, tmp_path: Path) -> None:
    run, trains = PROGRAMS[name]
    certify = "cannot be traced" in name
    mode = dumpcmp.Compiled(twin=name not in WITHOUT_TWINS)
    assert dump(run, tmp_path / "golden", backward=trains).error is None
    torch._dynamo.reset()
    target = dump(run, tmp_path / "target", mode=mode, backward=trains, certify=certify)
    assert target.error is None
    if certify:  # what runs between graphs is recorded by a mode, which must not change them
        assert target.certified
    outcome = dumpcmp.compare(tmp_path / "golden", tmp_path / "target")
    assert outcome.exit_code == 0, [row for row in outcome.rows if row.verdict.fails]
    assert {row.golden_key for row in outcome.rows} >= set(Archive(tmp_path / "golden"))
    assert not [row for row in outcome.rows if row.verdict is Verdict.UNPAIRED]


@pytest.mark.parametrize("mode", ["fx", "boundary"])
def test_other_modes_name_compiled_functions_alike(mode: str, tmp_path: Path) -> None:
    compiled = torch.compile(made().error)  # before any capture
    with dumpcmp.capture(None, tmp_path / "golden"):
        compiled(values())
    how = dumpcmp.Boundary("eager") if mode == "boundary" else mode
    with dumpcmp.capture(None, tmp_path / "target", mode=how):
        compiled(values())
    outcome = dumpcmp.compare(tmp_path / "golden", tmp_path / "target")
    (loss,) = (r for r in outcome.rows if (r.key.op, r.key.slot) == ("<root>/mse_loss", "output.0"))
    assert loss.key.model == "error" and loss.verdict is Verdict.PASS
    assert not [row for row in outcome.rows if row.verdict.fails and row.target_key]


@pytest.mark.long  # so it is in a model, in test_twin
def test_what_only_a_twin_stores_says_so_in_a_function_too(tmp_path: Path) -> None:
    model = made()
    compiled = torch.compile(model.error)
    seen: dict[bool, Archive] = {}
    for twin in (False, True):
        with dumpcmp.capture(None, tmp_path / f"{twin}", mode=dumpcmp.Compiled(twin=twin)):
            compiled(values())
        seen[twin] = Archive(tmp_path / f"{twin}")
    added = [key for key in seen[True] if key.model == "Gate" and key not in seen[False]]
    assert added
    assert {seen[True][key].seen_in for key in added} == {TWIN}


def test_a_function_is_left_out_where_its_model_was_named(tmp_path: Path) -> None:
    model = made()
    compiled = torch.compile(model.error)
    with dumpcmp.capture(model, tmp_path / "d", mode="compiled"), torch.no_grad():
        compiled(values())
    assert {key.model for key in Archive(tmp_path / "d")} == {"Gate"}


def test_ranks_that_compile_agree_with_the_whole_model(tmp_path: Path) -> None:
    script = str(Path(__file__).parent / "programs" / "data_parallel.py")
    golden, target = tmp_path / "golden", tmp_path / "target"
    whole = CliRunner().invoke(main, ["dump", "--backward", "--path", str(golden), script])
    assert whole.exit_code == 0, whole.output
    options = ["--mode", "compiled", "--no-twin", "--backward", "--path", str(target)]
    forked(2, "dumpcmp.__main__", "dump", *options, script)
    outcome = dumpcmp.compare(golden, target)
    assert outcome.exit_code == 0, [row for row in outcome.rows if row.verdict.fails]
    assert any(row.key.slot == "grad.weight" for row in outcome.rows)
