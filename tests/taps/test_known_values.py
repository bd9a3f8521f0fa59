"""Values whose like came before are not described again: the archive holds the same either way."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

import dumpcmp
from dumpcmp.archive.write.writer import ArchiveWriter
from dumpcmp.dumping.retention import Retention
from dumpcmp.nouns.key import Key
from dumpcmp.nouns.record import Kept, Stored
from dumpcmp.summary.gpu import device
from dumpcmp.summary.gpu.device import Packed, Summariser
from dumpcmp.summary.gpu.memory import DeviceRow
from dumpcmp.summary.summary import Recipe
from dumpcmp.taps.recording import routine, sources, values
from tests.choosing_cases import long
from tests.taps.randomly import MineError, Program

STEPS = 6


class Shifting(nn.Module):
    """Meets other shapes, dtypes, strides and calls in each step, and negated and aliased views."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.step = 0

    def forward(self, x: Tensor) -> Tensor:
        self.step += 1
        wide = x.repeat(self.step % 3 + 1, 1)
        wide = wide.double() if self.step % 2 else wide
        turned = torch.view_as_complex(wide.reshape(-1, 3, 2).contiguous())
        part = turned.conj().imag if self.step > 2 else turned.imag
        y = self.linear(x) + x
        for _ in range(self.step):
            y = y.t().contiguous().t() + part.sum()
        y.detach().numpy()[0] += 1  # which torch does not count
        z = y * 2 + torch.zeros(0).sum() + y.new_ones(1).expand(4, 6)
        out: Tensor = z.transpose(0, 1) @ z
        return out


class Onlooker(TorchFunctionMode):
    """A mode of the program's own."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return func(*args, **(kwargs or {}))


class Wandering(nn.Module):
    """Does nearly the same in each step: all that decides what is recorded changes at some time."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.act = nn.Linear(6, 6), nn.ReLU()
        self.register_buffer("seen", torch.zeros(6))
        self.step = 0

    def forward(self, x: Tensor) -> Tensor:
        self.step += 1
        odd = self.step % 2
        y = self.act(self.linear(x)) * (0.0 if odd else -0.0) + x
        if odd:  # what comes later has another place in the order
            y = self.act(y) + torch.add(y, 1)
        y = F.relu(y) if self.step < 4 else y.abs()
        if odd:
            y = torch.relu(y)
        y = y + 0.5
        if not odd:
            y = torch.relu(y)  # the same call from another line
        for _ in range(3):
            y = y + (y + 1).sum() * 0.1  # memory that is free again, and given to others
        low, high = torch.cat([y] * (1 + odd))[:4].sort(dim=-1, descending=self.step > 2)
        self.seen += low.detach().mean(0)  # type: ignore[operator]
        self.seen.data.mul_(0.5)
        with Onlooker() if self.step == 3 else nullcontext():
            y = y.clone().mul_(2).add_(self.seen[None, : 6 - odd].sum())
        with torch.autocast("cpu", torch.bfloat16, enabled=self.step == 4):
            y = y + self.linear(y).float() + high.float().mean()
        y = y.masked_fill(y > self.step, value=float(self.step)) + torch.rand(6)
        if y.requires_grad:
            y = y + checkpoint(self.linear, y, use_reentrant=False)
        y[odd] = y[odd].flip(0) if self.step != 5 else y[0]
        if self.step == 4:
            raise MineError("in the middle")
        beside = Thread(target=lambda: self.act(y.detach()), name="beside")
        beside.start()
        beside.join()
        out: Tensor = y.view(2, -1, 6).transpose(0, 1).reshape(4, 6) + self.linear(input=y)
        return out


class Large(nn.Module):
    """Has values about as large as those for which other ways begin, dense and strided."""

    num_steps = 3  # as all are alike: one is described, the next is inference, the last is known

    def forward(self, x: Tensor) -> Tensor:
        total = x.sum()
        for count in ((1 << 14) - 1, 1 << 14, 100_003, 1 << 20, (1 << 20) + 1):
            whole = torch.arange(float(count)) * total
            whole.detach().numpy()[-1] += 1  # which torch does not count
            total = total + whole.mean() + (whole + 1)[-1]
        rows = torch.arange(120_000.0).view(20, 60, 100) * total
        for view in (
            rows.transpose(0, 1),
            rows.transpose(1, 2),
            rows[:, :, 1:97],
            rows[:, :, ::2],
            rows[:, :1].expand(20, 60, 100),
            rows.view(-1, 10).t(),
        ):
            total = total + view.relu().mean() + (view * 2).mean()
        return total


class Doubling(torch.autograd.Function):
    """A function of the program's own, with a node of its own."""

    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(_: Any, grad: Tensor) -> Tensor:
        return grad * 2


class Differentiating(nn.Module):
    """Has gradients of all kinds: of what runs again, is called a parameter, or is itself again."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.last = nn.Linear(6, 6), nn.Linear(6, 6)
        self.step = 0

    def forward(self, x: Tensor) -> Tensor:
        self.step += 1
        y = self.linear(x) + Doubling.apply(x)  # type: ignore[no-untyped-call]
        marked = y * 2
        marked._is_param = True
        first, second = F.relu(marked).chunk(2, -1)
        y = torch.cat([first, second], -1) + checkpoint(self.last, y, use_reentrant=True)
        y = y.clone().mul_(2).requires_grad_() if y.requires_grad else y
        if self.step > 3:  # a tensor that stands for another, for as long as it lives
            y = y.view_as(y)
        out: Tensor = F.linear(y, self.linear.weight) + y.detach() * 2
        return out


class Batch:
    """Rows that come later, as those of a device do."""

    def __init__(self) -> None:
        self.rows: list[bytes] = []
        self.row_nbytes = 0

    def fill(self, index: int, room: memoryview) -> None:
        room[:] = self.rows[index]


class Elsewhere:
    """Summarises as if tensors lay on a device: rows are known by their number, and come later."""

    def __init__(self, *_: Any) -> None:
        self.summarise = Summariser(Recipe())
        self.batch = Batch()
        self.known: dict[Any, Stored] = {}
        self.num_asked = 0

    def row(self, tensor: Tensor) -> tuple[Batch, int]:
        packed = self.summarise(tensor)
        assert isinstance(packed, Packed)
        self.known.setdefault(tensor.shape, packed.stored)
        content = packed.numbers.numpy().tobytes()
        self.batch.row_nbytes = len(content)
        self.batch.rows.append(content)
        return self.batch, len(self.batch.rows) - 1

    def again(self, _address: int, tensor: Tensor) -> Callable[[memoryview], None]:
        batch, number = self.row(tensor)
        return partial(batch.fill, number)

    def __call__(self, key: Key, tensor: Tensor, layout: str) -> DeviceRow | None:
        if tensor.numel() < 8 or tensor.dtype is not torch.float32:
            return None
        self.num_asked += 1
        batch, number = self.row(tensor)
        return DeviceRow(self.known[tensor.shape], batch, number, again=self.again)  # type: ignore[arg-type]


def forgetting(patch: pytest.MonkeyPatch) -> None:
    """Have every value described, looked at with care, and copied by torch."""
    patch.setattr(ArchiveWriter, "put_known", lambda *_: False)
    patch.setattr(values, "counts_writes", lambda _: None)
    patch.setattr(sources, "GATHER", None)
    patch.setattr(routine, "IS_ABLE", False)


def contents(path: Path) -> Any:
    """All that an archive says, but for where the bytes lie."""
    archive = dumpcmp.Archive(path)
    records = [replace(record, location=None) for record in archive.values()]
    held = [r for r in archive.values() if r.kept.holds]
    told = list(archive.calls.items())
    assert all(record.order == archive.calls[record.key.site].order for record in records)
    return records, [archive.load(record).bits.tobytes() for record in held], told


def run(model: nn.Module, path: Path, **selection: Any) -> Any:
    torch.manual_seed(1)
    with dumpcmp.capture(model, path, **selection):
        for step in range(getattr(model, "num_steps", STEPS)):
            x = torch.randn(4, 6, requires_grad=True)
            try:
                if step == 1:
                    with torch.inference_mode(selection.get("mode") is None):
                        model(x.detach())
                else:
                    model(x).sum().backward()
            except MineError:
                continue
            if isinstance(model, Program):
                random.Random(step).shuffle(model.moves)
    return contents(path)


WAYS: list[dict[str, Any]] = [
    {"backward": True, "weights": True},
    {"backward": True, "keep": "summary"},
    {"mode": "aten"},
]
LONG = long({"level": "modules", "backward": True})
PROGRAMS: dict[str, Callable[[], nn.Module]] = {
    "shifting": Shifting,
    "wandering": Wandering,
    "large": Large,
    "differentiating": Differentiating,
    "drawn": partial(Program, 3, length=6),
}


@pytest.mark.each_value_once
@pytest.mark.parametrize("way", [*WAYS, LONG], ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_known_again_is_written_as_if_it_were_described(
    name: str, way: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    quick = run(PROGRAMS[name](), tmp_path / "quick", **way)
    with monkeypatch.context() as patch:
        forgetting(patch)
        torch.manual_seed(0)
        slow = run(PROGRAMS[name](), tmp_path / "slow", **way)
    assert len(quick[0]) >= 10
    for one, other in zip(quick, slow, strict=True):
        assert one == other


class Reshaping(nn.Module):
    """Has the same bytes in several shapes, before and after they are written to."""

    def forward(self, x: Tensor) -> Tensor:
        y = x * 2
        z = y.view(-1).view(2, -1)
        y.add_(1)
        return z.reshape(x.shape).t() + 1


def test_a_row_is_made_once_of_the_same_bytes_in_several_shapes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "RAW_LIMIT", 8)
    archives = []
    for way in ("quick", "slow"):
        elsewhere = Elsewhere()
        monkeypatch.setattr(Retention, "condensers", lambda *_, own=elsewhere: (own, None))
        if way == "slow":
            forgetting(monkeypatch)
        torch.manual_seed(0)
        archives.append(run(Reshaping(), tmp_path / way, keep="summary"))
        num_rows = len(elsewhere.batch.rows)
        if way == "quick" and routine.IS_ABLE:
            num_quick = num_rows
        elif routine.IS_ABLE:
            assert num_quick < num_rows
    assert archives[0] == archives[1]


def test_rows_that_come_later_are_known_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "RAW_LIMIT", 8)
    elsewhere = Elsewhere()
    monkeypatch.setattr(Retention, "condensers", lambda *_: (elsewhere, None))
    torch.manual_seed(0)
    quick = run(Wandering(), tmp_path / "quick", keep="summary")
    assert elsewhere.num_asked < len(elsewhere.batch.rows) or not routine.IS_ABLE
    forgetting(monkeypatch)
    torch.manual_seed(0)
    slow = run(Wandering(), tmp_path / "slow", keep="summary")
    assert any(record.kept is Kept.SUMMARY for record in quick[0])
    assert quick == slow


@pytest.mark.each_value_once
@pytest.mark.skipif(not routine.IS_ABLE, reason="it was not compiled")
@pytest.mark.parametrize("width", [6, 256])
@pytest.mark.parametrize("way", [{}, {"backward": True}, {"keep": "summary"}], ids=str)
def test_what_came_before_is_recorded_at_once(
    way: dict[str, Any], width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once: list[int] = []
    end = routine.Routine.end

    def ended(self: routine.Routine) -> None:
        at_once.append(self.quick.num_values)
        end(self)

    monkeypatch.setattr(routine.Routine, "end", ended)
    layers = (nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(4))
    model = nn.Sequential(*layers)
    with dumpcmp.capture(model, tmp_path / "d", **way):
        for _ in range(3):
            model(torch.randn(width // 2, width)).sum().backward()
    last = [record for record in dumpcmp.Archive(tmp_path / "d").values() if record.key.step == 2]
    forward = [record for record in last if not record.key.slot.is_gradient]
    assert at_once[0] == 0
    assert at_once[2] > 0.9 * len(forward)


@pytest.mark.skipif(not routine.IS_ABLE, reason="it was not compiled")
@pytest.mark.parametrize("width", [6, 256])
def test_gradients_that_came_before_are_recorded_at_once(
    width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slowly: list[str] = []
    put_at = values.Values.put_at

    def counted(self: values.Values, targets: Any, tensor: Tensor, *where: Any) -> None:
        slowly.extend(slot for _, slot in targets)
        put_at(self, targets, tensor, *where)

    monkeypatch.setattr(values.Values, "put_at", counted)
    asked: list[int] = []
    monkeypatch.setattr(routine.Routine, "watch", lambda *_: asked.append(1))
    monkeypatch.setattr(routine.Routine, "hook", lambda *_: asked.append(1))
    layers = (nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(4))
    model = nn.Sequential(*layers)
    taken = []
    with dumpcmp.capture(model, tmp_path / "d", backward=True):
        for _ in range(3):
            slowly.clear()
            model(torch.randn(width // 2, width)).sum().backward()
            model.zero_grad()
            taken.append(len(slowly))
    last = [r.key for r in dumpcmp.Archive(tmp_path / "d").values() if r.key.step == 2]
    assert taken[0] == sum(name.slot.is_gradient for name in last) > 30
    assert taken[2] < 0.25 * taken[0]  # the ring begins anew now and then
    assert not asked, "each is watched for by C, and hooked"


@pytest.mark.skipif(not routine.IS_ABLE, reason="it was not compiled")
def test_hooks_of_known_calls_are_taken_off(tmp_path: Path) -> None:
    """When a gradient comes, when the capture ends, and also if the program has removed them."""
    model, held = nn.Sequential(nn.Linear(3, 3), nn.ReLU()), []
    with dumpcmp.capture(model, tmp_path / "d", backward=True):
        for _ in range(4):
            held.append(model(torch.randn(2, 3)))
            assert len(held[-1]._backward_hooks) == 1
            if len(held) == 3:
                held[-1]._backward_hooks.clear()
            if len(held) < 4:
                held[-1].sum().backward(retain_graph=True)
                assert not held[-1]._backward_hooks
                held[-1].sum().backward()  # which is recorded no more
    assert not held[-1]._backward_hooks
    found = [key for key in dumpcmp.Archive(tmp_path / "d") if key.slot == "grad_output.0"]
    assert {key.step for key in found if key.op == "1"} == {0, 1}


@pytest.mark.skipif(not routine.IS_ABLE, reason="it was not compiled")
def test_gradients_of_steps_that_end_in_another_order(tmp_path: Path) -> None:
    """What a parameter gets belongs to the step that the backward pass has come to."""
    for way in ("quick", "slow"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
        with pytest.MonkeyPatch.context() as patch:
            if way == "slow":
                forgetting(patch)
            with dumpcmp.capture(model, tmp_path / way, backward=True):
                for _ in range(3):
                    first, second = (model(torch.randn(2, 3)).sum() for _ in range(2))
                    first.backward()
                    second.backward()
    assert contents(tmp_path / "quick") == contents(tmp_path / "slow")
