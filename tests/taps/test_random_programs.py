"""Bits, gradients, random streams, hooks, warnings and errors of random programs stay as they are.

``DUMPCMP_PROGRAMS=1000 pytest -m "" tests/taps/test_random_programs.py`` is the long version, which
runs all modes; the modes that compile take seconds a program.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import dumpcmp
from tests.choosing_cases import often
from tests.taps.randomly import MOVES, MineError, Program
from tests.taps.test_undisturbed import state_of_torch

PROGRAMS = int(os.environ.get("DUMPCMP_PROGRAMS", "8"))
SEED = int(os.environ.get("DUMPCMP_SEED", "0"))
IS_LONG = "DUMPCMP_PROGRAMS" in os.environ
SHARES = {"eager": 1, "aten": 1, "fx": 12, "boundary": 24, "compiled": 60}  # one program in so many
COMPILED = {"boundary": "eager", "compiled": "inductor"}
SHORT = {"boundary": 3, "compiled": 1}  # things that a program does that is run at every change


def bits(tensor: Tensor | None) -> bytes | None:
    return None if tensor is None else tensor.detach().contiguous().numpy().tobytes()


def seen(seed: int, mode: str, around: Callable[[Program], AbstractContextManager[object]]) -> Any:
    """All that a program does that anybody can see."""
    length = 10 if IS_LONG else SHORT.get(mode, 10)
    program = Program(seed, traced=mode not in ("eager", "aten"), length=length)
    x = torch.randn(4, 6, requires_grad=True)
    run: Any = program
    if mode in COMPILED:
        torch._dynamo.reset()
        run = torch.compile(program, backend=COMPILED[mode])
    result, error = None, ""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            with around(program):
                result = run(x)
                result.sum().backward()
        except MineError as raised:
            error = str(raised)
    return {
        "result": bits(result),
        "version": None if result is None else result._version,
        "strides": None if result is None else result.stride(),
        "gradients": [bits(p.grad) for p in (x, *program.parameters())],
        "buffer": bits(program.seen),  # type: ignore[arg-type]
        "random": torch.get_rng_state().numpy().tobytes(),
        "hooked": program.num_hooked,
        "warnings": [str(w.message) for w in told if "so many rows" in str(w.message)],
        "error": error,
    }


@pytest.mark.parametrize("mode", often(SHARES, "eager", "aten", "fx", "boundary"))
def test_a_program_is_undisturbed(mode: str, tmp_path: Path) -> None:
    before = state_of_torch()
    for number in range(0, PROGRAMS, SHARES[mode]):
        seed = SEED + number
        plain = seen(seed, mode, lambda _: nullcontext())

        def capturing(program: Program, path: Path = tmp_path / f"d{seed}") -> Any:
            how = dumpcmp.Boundary("eager") if mode == "boundary" else mode
            return dumpcmp.capture(program, path, mode=how, backward=True)

        captured = seen(seed, mode, capturing)
        names = {name for name in plain if plain[name] != captured[name]}
        assert not names, f"{mode}, seed {seed}: {names}"
        archive = dumpcmp.Archive(tmp_path / f"d{seed}")
        problem = archive.run[0]["problem"]
        assert bool(problem) == bool(plain["error"]), problem
        assert len(archive)
        assert state_of_torch() == before


def test_every_move_comes_up() -> None:
    assert {name for seed in range(24) for name in Program(seed).moves} == set(MOVES)
