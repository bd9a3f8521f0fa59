"""A repro fails as it stands and passes with the right op, where only torch and numpy are."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from pathlib import Path
from tempfile import NamedTemporaryFile

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dumpcmp
from dumpcmp.cli import main
from dumpcmp.faults import Fault, flip_channel, on_output, one_nan, planted, scale
from dumpcmp.importing.safetensors_file import SafetensorsFile
from dumpcmp.reproducing.case import GuiltyKind, ShownBy
from dumpcmp.reproducing.region import restrided
from dumpcmp.reproducing.tensor_file import write_tensors


class Block(nn.Module):
    """A norm, two linears with something between, and a residual."""

    def __init__(self, between: Callable[[Tensor], Tensor] = F.gelu) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(24), nn.Linear(24, 40), nn.Linear(40, 24)
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        mixed: Tensor = x + self.down(self.between(self.up(self.norm(x))))
        return F.softmax(mixed, -1)


Change = Callable[[nn.Module], AbstractContextManager[None]]


def run(path: Path, change: Change | None = None, model: nn.Module | None = None) -> Path:
    torch.manual_seed(3)
    made = Block()
    if model is not None:
        model.load_state_dict(made.state_dict())
    model = model or made
    entered = change(model) if change else nullcontext()
    with entered, dumpcmp.capture(model, path), torch.no_grad():
        model(torch.randn(2, 6, 24, generator=torch.Generator().manual_seed(4)))
    return path


def tampered(fault: Fault) -> Change:
    return lambda model: planted(model, fault)


def edited(edit: Callable[[Block], None]) -> Change:
    @contextmanager
    def change(model: nn.Module) -> Iterator[None]:
        assert isinstance(model, Block)
        edit(model)
        yield

    return change


def swap_rows(model: Block) -> None:
    weight = model.up.weight.data
    weight[[3, 11]] = weight[[11, 3]]


def raise_eps(model: Block) -> None:
    model.norm.eps = 0.1


def raise_eps_a_little(model: Block) -> None:
    model.norm.eps = 1.1e-5


def leave_out(model: Block) -> None:
    model.between = lambda x: x


FAULTS = {
    "scaled": (tampered(Fault("", "down", "linear", on_output(scale))), GuiltyKind.KERNEL),
    "sign": (tampered(Fault("", "up", "linear", on_output(flip_channel))), GuiltyKind.KERNEL),
    "nan": (tampered(Fault("", "", "softmax", on_output(one_nan))), GuiltyKind.KERNEL),
    "eps": (edited(raise_eps), GuiltyKind.PROGRAM),
    "eps, below rounding": (edited(raise_eps_a_little), GuiltyKind.PROGRAM),
    "op missing": (edited(leave_out), GuiltyKind.PROGRAM),
    "weight": (edited(swap_rows), GuiltyKind.VALUE),
}


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("golden") / "d1")


# An interpreter that does not find this package, and has torch at hand: to import it takes seconds.
# It forks for each script that it reads the name of, with arguments and a file for what it says.
AT_HAND = """
import json, os, runpy, sys
sys.modules["dumpcmp"] = None
import torch._dynamo  # as torch.optim does

for line in sys.stdin:
    said, *sys.argv = json.loads(line)
    child = os.fork()
    if not child:
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    sys.exit()
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
os.dup2(os.open(said, os.O_WRONLY), 2)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@cache
def at_hand() -> subprocess.Popen[str]:
    """Ends when it can read no more, as this process ends."""
    command = [sys.executable, "-I", "-c", AT_HAND]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)


def ends(made: dumpcmp.Repro, *arguments: str) -> tuple[int, str]:
    """How the script ends in a process that does not find this package, and what it says."""
    forking = at_hand()
    assert forking.stdin and forking.stdout
    with NamedTemporaryFile("r") as said:
        words = [said.name, str(made.path / "repro.py"), *arguments]
        print(json.dumps(words), file=forking.stdin, flush=True)
        return int(forking.stdout.readline()), said.read()


OFTEN = ("scaled", "op missing", "weight")  # one of each kind; the others are further cases


@pytest.mark.parametrize(
    "name",
    [name if name in OFTEN else pytest.param(name, marks=pytest.mark.long) for name in FAULTS],
)
def test_it_fails_as_it_stands_and_passes_with_the_right_op(
    name: str, golden: Path, tmp_path: Path
) -> None:
    change, kind = FAULTS[name]
    made = dumpcmp.repro(run(tmp_path / "d2", change), golden, path=tmp_path / "repro")
    assert made.case.kind is kind
    status, said = ends(made)
    assert (status, "AssertionError" in said) == (1, True), said
    assert ends(made, "--right") == (0, "")
    assert made.num_lines <= 60
    assert made.nbytes <= 100_000
    assert len((made.path / "README.md").read_text().splitlines()) <= 11
    tree = ast.parse((made.path / "repro.py").read_text())
    imported = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    assert imported <= {"json", "operator", "sys", "numpy", "torch"}


def test_it_is_shrunk_while_the_fault_stays(golden: Path, tmp_path: Path) -> None:
    change, _ = FAULTS["scaled"]
    made = dumpcmp.repro(run(tmp_path / "d2", change), golden, path=tmp_path / "repro")
    assert made.case.shown is ShownBy.RECORDED
    sizes = {name: tuple(value.shape) for name, value in made.case.values.items()}
    assert sizes == {"x0": (1, 1, 40), "x1": (1, 40), "x2": (1,)}


def test_a_different_program_shows_on_random_numbers_too(golden: Path, tmp_path: Path) -> None:
    mine = run(tmp_path / "d2", edited(leave_out))
    made = dumpcmp.repro(mine, golden, path=tmp_path / "repro", values=False)
    assert made.is_fresh
    assert made.case.is_random
    own = {n: v for n, v in read_values(made.path).items() if n.startswith("x")}
    archive = dumpcmp.Archive(mine)
    recorded = [archive.tensor(key) for key in archive if archive[key].kept == "full"]
    for value in own.values():
        assert not any(value.shape == r.shape and torch.equal(value, r) for r in recorded)


def read_values(path: Path) -> dict[str, Tensor]:
    file, values = SafetensorsFile(path / "values.safetensors"), {}
    for value in file.listed().values:
        room = torch.empty(value.shape, dtype=getattr(torch, value.dtype))
        octets = bytearray(value.nbytes)
        file.source(value).copy_into(memoryview(octets))
        if octets:
            room.view(-1).view(torch.uint8).copy_(torch.frombuffer(octets, dtype=torch.uint8))
        values[value.name] = room
    return values


def test_what_is_in_recorded_numbers_alone_is_not_shown_without_them(
    golden: Path, tmp_path: Path
) -> None:
    change, _ = FAULTS["scaled"]
    mine = run(tmp_path / "d2", change)
    with pytest.raises(dumpcmp.DumpcmpError, match="cannot be shown on random numbers"):
        dumpcmp.repro(mine, golden, path=tmp_path / "repro", values=False)
    assert not (tmp_path / "repro").exists()


def test_trouble_is_told_and_nothing_is_written(
    golden: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["repro", str(golden), str(golden), "--path", str(tmp_path / "repro")]
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert "nothing to reproduce: SAME" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main([*words[:3], "no/such/op", *words[3:]])
    assert ended.value.code == 2
    assert "no value is called 'no/such/op'" in capsys.readouterr().err
    assert not (tmp_path / "repro").exists()
    (tmp_path / "repro").mkdir()
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert "is there already" in capsys.readouterr().err


def test_tensors_are_written_as_the_format_says(tmp_path: Path) -> None:
    values = {
        "a": torch.randn(3, 4).bfloat16(),
        "b": torch.tensor(7),
        "c": torch.zeros(0, 5, dtype=torch.bool),
        "d": torch.randn(4, 6).T,
    }
    write_tensors(tmp_path / "values.safetensors", values)
    found = read_values(tmp_path)
    assert found.keys() == values.keys()
    for name, value in values.items():
        assert found[name].dtype is value.dtype
        assert torch.equal(found[name], value)


@pytest.mark.parametrize("stride", [(12, 3, 1), (1, 2, 8), (24, 6, 2), (0, 3, 1)])
def test_strides_are_put_back(stride: tuple[int, ...]) -> None:
    dense = torch.arange(24.0).reshape(2, 4, 3)
    dense[1] = dense[0] if stride[0] == 0 else dense[1]
    laid = restrided(dense, stride)
    assert laid.stride() == stride
    assert torch.equal(laid, dense)


def train(path: Path, make: Callable[..., torch.optim.Optimizer], steps: int = 2) -> Path:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))
    optimizer = make(model.parameters())
    with dumpcmp.capture(model, path, backward=True, weights=True):
        for step in range(steps):
            optimizer.zero_grad()
            x = torch.randn(3, 8, generator=torch.Generator().manual_seed(step))
            model(x).square().sum().backward()
            optimizer.step()
    return path


def with_adamw(weights: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(weights, lr=0.01, weight_decay=0.1)


def with_adam(weights: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(weights, lr=0.01, weight_decay=0.1)


class HalfOf(torch.optim.SGD):
    """No optimizer of torch: its settings are those of another."""

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        del closure
        with torch.no_grad():
            for weight in self.param_groups[0]["params"]:
                weight.sub_(weight.grad, alpha=0.005)


def with_half(weights: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    return HalfOf(weights, lr=0.01)


def test_steps_of_an_optimizer_are_taken_again(tmp_path: Path) -> None:
    golden, mine = train(tmp_path / "d1", with_adamw), train(tmp_path / "d2", with_adam)
    made = dumpcmp.repro(mine, golden, path=tmp_path / "repro")
    assert made.case.kind is GuiltyKind.OPTIMIZER
    assert made.is_fresh
    status, said = ends(made)
    assert (status, "AssertionError" in said) == (1, True), said
    assert ends(made, "--right") == (0, "")
    assert "torch.optim.AdamW" in (made.path / "repro.py").read_text()


def test_an_optimizer_that_is_not_torchs_shows_both_sides(tmp_path: Path) -> None:
    golden, mine = train(tmp_path / "d1", with_adamw), train(tmp_path / "d2", with_half)
    made = dumpcmp.repro(mine, golden, "0#0 param.weight", path=tmp_path / "repro")
    assert made.case.kind is GuiltyKind.VALUE
    assert "is no optimizer of torch" in (made.path / "README.md").read_text()
    assert ends(made)[0] == 1
    assert ends(made, "--right") == (0, "")


@pytest.mark.long
def test_a_setting_of_an_optimizer_is_shown_by_the_first_weight_that_it_made(
    tmp_path: Path,
) -> None:
    for name, decay in (("d1", 0.1), ("d2", 0.0)):
        torch.manual_seed(3)
        model = nn.Linear(4, 3)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=decay)
        with dumpcmp.capture(model, tmp_path / name, backward=True, weights=True):
            for _ in range(2):
                optimizer.zero_grad()
                model(torch.ones(2, 4)).square().sum().backward()
                optimizer.step()
    first = dumpcmp.compare(tmp_path / "d1", tmp_path / "d2").first_divergence
    assert first is not None and first.key.op.is_effect
    made = dumpcmp.repro(tmp_path / "d2", tmp_path / "d1", path=tmp_path / "repro")
    assert made.case.kind is GuiltyKind.OPTIMIZER
    assert ends(made)[0] == 1
    assert ends(made, "--right") == (0, "")
