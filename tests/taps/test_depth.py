"""Recursion: the program has the depth that it has without a capture, to the frame."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dumpcmp
from dumpcmp.taps.modes import around
from tests.choosing_cases import long

by_mode = pytest.mark.parametrize("mode", ["eager", "fx", "aten"])
built = pytest.mark.skipif(
    around._core is None, reason="what runs calls without frames is not built"
)


# Torch looks for a rule of each op that a mode gets. Where it has learnt how before the capture
# began, that takes frames of Python at the lowest depth.
FRAMES_OF_RULES = {"eager": 0, "fx": 0, "aten": 2}


@pytest.fixture(autouse=True)
def low_limit() -> Iterator[None]:
    """A limit of recursion that is reached soon."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(400)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


class Nested(nn.Module):
    """Calls itself until it must not, and tells how often."""

    def __init__(self, run: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.run, self.deepest = run, 0

    def forward(self, x: Tensor, depth: int = 0) -> Tensor:
        self.deepest = max(self.deepest, depth)
        y: Tensor = self(self.run(x), depth + 1)
        return y


class Plain(nn.Module):
    """Recurses in plain functions, and goes on when that fails."""

    def forward(self, x: Tensor) -> Tensor:
        def deeper(depth: int) -> int:
            try:
                return deeper(depth + 1)
            except RecursionError:
                return depth

        return x + deeper(0)


class Linear(nn.Module):
    """Computes at each depth that there is."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.count = nn.Linear(2, 2), 0

    def forward(self, x: Tensor) -> Tensor:
        self.deeper(x)
        return x

    def deeper(self, x: Tensor) -> None:
        y = F.softmax(self.inner(x), -1)
        self.count += 1
        self.deeper(y)


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 2


class Remarkable(Tensor):
    """A tensor whose functions of Python recurse, below torch's."""

    deepest = 0

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def deeper(depth: int) -> int:
            try:
                return deeper(depth + 1)
            except RecursionError:
                return depth

        Remarkable.deepest = deeper(0)
        return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]


STEPS: dict[str, Callable[[Tensor], Tensor]] = {
    "nothing": lambda x: x,
    "a built-in": torch.sin,
    "an operator": lambda x: 1 - x,
    "a method": lambda x: x.add(1),
    "a function of Python": lambda x: F.softmax(x, -1),
    "one that calls another": lambda x: F.layer_norm(F.relu(x), (2,)),
    "a custom function": lambda x: Scaled.apply(x),  # type: ignore[no-untyped-call]
}


def nested(run: Callable[[Tensor], Tensor]) -> int:
    made = Nested(run)
    with pytest.raises(RecursionError):
        made(torch.ones(2, 2))
    return made.deepest


def twice(run: Callable[[], Any]) -> tuple[Any, Any]:
    """The second time calls are known."""
    return run(), run()


def uncaptured(run: Callable[[], Any]) -> Any:
    with nullcontext():
        return twice(run)


def captured(run: Callable[[], Any], path: Path, **options: Any) -> Any:
    with dumpcmp.capture(None, path, **options):
        return twice(run)


@built
@pytest.mark.each_value_once
@by_mode
@pytest.mark.parametrize("step", STEPS)
def test_modules_nest_as_deeply(step: str, mode: str, tmp_path: Path) -> None:
    def run() -> int:
        return nested(STEPS[step])

    limit = sys.getrecursionlimit()
    wanted = uncaptured(run)
    assert captured(run, tmp_path / "d", mode=mode) == wanted
    assert sys.getrecursionlimit() == limit


@built
@by_mode
def test_functions_recurse_as_deeply(mode: str, tmp_path: Path) -> None:
    def run() -> float:
        return float(Plain()(torch.zeros(())))

    wanted = uncaptured(run)
    assert captured(run, tmp_path / "d", mode=mode) == wanted


@built
@pytest.mark.parametrize("mode", ["eager", long("fx"), "aten"])
def test_functions_compute_at_every_depth(mode: str, tmp_path: Path) -> None:
    def run() -> int:
        made = Linear()
        with pytest.raises(RecursionError):
            made(torch.ones(2, 2))
        return made.count

    wanted, _ = uncaptured(run)
    for count in captured(run, tmp_path / "d", mode=mode, backward=True):
        assert wanted - FRAMES_OF_RULES[mode] <= count <= wanted


@built
@by_mode
def test_what_torch_calls_recurses_as_deeply(mode: str, tmp_path: Path) -> None:
    def run() -> list[int]:
        x, found = torch.ones(2, 2).as_subclass(Remarkable), []
        for function in (torch.sin, lambda x: F.softmax(x, -1), lambda x: x + 1):
            nn.Sequential(Calling(function))(x)
            found.append(Remarkable.deepest)
        return found

    wanted = uncaptured(run)
    assert captured(run, tmp_path / "d", mode=mode) == wanted


class Calling(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def in_threads(count: int) -> list[int]:
    found = list[int]()
    threads = [
        threading.Thread(target=lambda: found.append(nested(torch.sin))) for _ in range(count)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@built
def test_threads_recurse_as_deeply_and_leave_the_limit_as_it_was(tmp_path: Path) -> None:
    """Python has one limit for all threads: while one records, the others have a little more."""
    limit, (wanted,) = sys.getrecursionlimit(), in_threads(1)
    with dumpcmp.capture(None, tmp_path / "d"):
        assert in_threads(1) == [wanted]
        assert min(in_threads(4)) >= wanted
    assert sys.getrecursionlimit() == limit


def test_without_what_is_built_all_is_recorded_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dumpcmp import Archive

    model = nn.Sequential(nn.Linear(2, 2), nn.Softmax(-1))

    def keys(path: Path, mode: str) -> list[str]:
        with dumpcmp.capture(model, path, mode=mode, backward=True):
            for _ in range(2):
                model(torch.ones(2, 2)).sum().backward()
        return [str(key) for key in Archive(path)]

    for mode in ("eager", "fx", "aten"):
        wanted = keys(tmp_path / mode, mode)
        with monkeypatch.context() as without:
            without.setattr(around, "_core", None)
            assert keys(tmp_path / f"{mode} in Python", mode) == wanted
