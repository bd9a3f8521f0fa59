"""Two to four faults at once in small programs: which of them a graft of all roots names."""

from __future__ import annotations

import os
import random
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

import dumpcmp
from benchmarks.tables import Table
from dumpcmp.faults import Fault, planted
from dumpcmp.grafting import graft_all
from tests.laws.drawing import Drawn, Plan, drawn, made, run
from tests.laws.pieces import PIECES
from tests.laws.trials import REACHES, with_wrong_kernel

PROGRAMS = "SEVERAL_FAULTS"  # how many programs
KINDS = ("program", "start", "kernel")
FOLLOWS = ("follows from what the model returned", "left by an earlier token")


@dataclass(frozen=True)
class OneOfSeveral:
    """A fault in one piece of a program."""

    piece: int
    kind: str
    name: str
    kernel: Fault | None = None

    def __str__(self) -> str:
        return f"p{self.piece}: {self.kind} {self.name}"


def spoil_weight(model: Drawn, piece: int) -> None:
    """Another number in each row of the first weight of a piece."""
    module = model.get_submodule(model.names[piece])
    weight = next(each for each in module.parameters())
    with torch.no_grad():
        weight.view(-1)[::3] *= 1.5


def with_faults(plan: Plan, faults: tuple[OneOfSeveral, ...]) -> Plan:
    """`plan` with the faults that are in its program."""
    ways = list(plan.ways)
    for fault in faults:
        if fault.kind == "program":
            ways[fault.piece] = fault.name
    return replace(plan, ways=tuple(ways))


def built(plan: Plan, faults: tuple[OneOfSeveral, ...]) -> Drawn:
    model = made(with_faults(plan, faults))
    for fault in faults:
        if fault.kind == "start":
            spoil_weight(model, fault.piece)
    return model


def effects(plan: Plan, faults: tuple[OneOfSeveral, ...], model: nn.Module) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    with ExitStack() as stack:
        for fault in faults:
            if fault.kernel is not None:
                stack.enter_context(planted(model, fault.kernel))
        for result, x in run(model, plan):
            parts = result if isinstance(result, tuple) else (result,)
            found += [each.detach().clone() for each in parts if isinstance(each, torch.Tensor)]
            found += [x.grad.clone()] if x.grad is not None else []
    return found


def far(one: list[torch.Tensor], other: list[torch.Tensor]) -> float:
    if [each.shape for each in one] != [each.shape for each in other]:
        return float("inf")
    pairs = zip(one, other, strict=True)
    return max(float((a - b).abs().max() / b.abs().max().clamp_min(1e-30)) for a, b in pairs)


def chosen(plan: Plan, golden: Path, draws: random.Random) -> tuple[OneOfSeveral, ...]:
    """Two to four faults in pieces of their own."""
    pieces = sorted(plan.behind)
    found: list[OneOfSeveral] = []
    for at in draws.sample(pieces, min(len(pieces), draws.randint(2, 4))):
        piece, kind = PIECES[plan.kinds[at]], draws.choice(KINDS)
        if kind == "kernel":
            hit = kernel_in(plan, at, golden, draws)
            if hit is not None:
                found.append(OneOfSeveral(at, kind, f"{hit.name} at {hit.op}", hit))
                continue
        elif kind == "start" and has_weights(plan, at):
            found.append(OneOfSeveral(at, kind, "weight"))
            continue
        found.append(OneOfSeveral(at, "program", draws.choice(piece.faults)))
    return tuple(found)


def has_weights(plan: Plan, at: int) -> bool:
    return any(True for _ in built(plan, ()).get_submodule(f"p{at}").parameters())


def kernel_in(plan: Plan, at: int, golden: Path, draws: random.Random) -> Fault | None:
    for _ in range(30):
        planned = with_wrong_kernel(plan, golden, draws)
        if planned is not None and planned.piece == at:
            return planned.plan.kernel
    return None


def all_matter(plan: Plan, faults: tuple[OneOfSeveral, ...]) -> bool:
    """Whether each fault makes a difference beside the others."""
    try:
        whole = effects(plan, faults, built(plan, faults))
        for each in faults:
            others = tuple(other for other in faults if other is not each)
            if not far(effects(plan, others, built(plan, others)), whole) > REACHES[plan.dtype]:
                return False
    except RuntimeError:  # such as shapes that no longer fit
        return False
    return all(bool(each.isfinite().all()) for each in whole)


def dumped(plan: Plan, faults: tuple[OneOfSeveral, ...], path: Path) -> Path:
    model = built(plan, faults)
    with ExitStack() as stack:
        for fault in faults:
            if fault.kernel is not None:
                stack.enter_context(planted(model, fault.kernel))
        with dumpcmp.capture(model, path, backward=plan.trains, overwrite=True):
            for _ in run(model, plan):
                pass
    return path


@dataclass(frozen=True)
class Named:
    """What came of one program."""

    seed: int
    faults: tuple[OneOfSeveral, ...]
    missed: tuple[OneOfSeveral, ...]
    others: tuple[str, ...]  # roots where there is no fault
    missed_by_compare: tuple[OneOfSeveral, ...]
    is_explained: bool


def is_in(op: str, piece: int) -> bool:
    return op == f"p{piece}" or op.startswith((f"p{piece}.", f"p{piece}/"))


def trial(seed: int, room: Path) -> Named | None:
    """One program; none where no faults can be drawn that matter all."""
    draws = random.Random(seed)
    plan = replace(drawn(seed, most=7), idle=())
    if len(plan.behind) < 2:
        return None
    golden = dumped(plan, (), room / "golden")
    for _ in range(5):
        faults = chosen(plan, golden, draws)
        if len(faults) >= 2 and all_matter(plan, faults):
            break
    else:
        return None
    mine = dumped(plan, faults, room / "mine")
    outcome = dumpcmp.compare(golden, mine)
    report = graft_all(mine, golden, outcome=outcome)
    roots = [root for root in report.roots if root.kind not in FOLLOWS]
    told = [op for root in roots for op in (root.op, *root.beside)]
    missed = tuple(f for f in faults if not any(is_in(op, f.piece) for op in told))
    named = [row.key.op for row in outcome.roots]
    compared = tuple(f for f in faults if not any(is_in(op, f.piece) for op in named))
    others = {root.op for root in roots if not any(is_in(root.op, f.piece) for f in faults)}
    fine = all(step.left <= 1e-9 for step in report.steps)
    return Named(seed, faults, missed, tuple(sorted(others)), compared, fine)


def trials(number: int) -> Iterator[Named]:
    with tempfile.TemporaryDirectory() as room:
        seed = found = 0
        while found < number:
            seed += 1
            one = trial(seed, Path(room))
            if one is not None:
                found += 1
                yield one


def table() -> Table:
    torch.set_num_threads(1)
    number = int(os.environ.get(PROGRAMS, "100"))
    rows: dict[int, list[int]] = {}
    for one in trials(number):
        if one.missed or one.others or not one.is_explained:
            told = "; ".join(map(str, one.faults))
            print(
                f"{one.seed}: {told} | missed {list(map(str, one.missed))}, "
                f"others {one.others}, explained {one.is_explained}",
                file=sys.stderr,
                flush=True,
            )
        row = rows.setdefault(len(one.faults), [0] * 6)
        for at, count in enumerate((
            1, not one.missed, not one.missed_by_compare, len(one.others) == 0,
            one.is_explained, len(one.faults) - len(one.missed),
        )):  # fmt: skip
            row[at] += int(count)
    rows[0] = [sum(each) for each in zip(*rows.values(), strict=True)]
    order = sorted(rows, key=lambda number: number or 9)
    listed = [[str(n) if n else "all", *map(str, rows[n])] for n in order]
    return Table(
        "several-faults",
        ("faults", "programs", "all named", "all named by compare", "nothing else named",
         "nothing left", "faults named"),
        listed,
        f"{rows[0][1]} of {rows[0][0]} programs have all of their faults named by a graft.",
    )  # fmt: skip
