"""Programs at random: a plan is drawn from a seed, rewritten, and given a fault."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dumpcmp.faults import Fault, planted
from tests.laws import mixing_pieces
from tests.laws.ending_pieces import ENDS, End
from tests.laws.pieces import PIECES, WIDTH, Piece

BATCH = mixing_pieces.BATCH
SHORT = torch.bfloat16
Start = tuple[int, str]  # which weight is another, and how


@dataclass(frozen=True)
class Plan:
    """A program: its pieces, what each takes, in which way and order they run, and how it ends."""

    seed: int
    kinds: tuple[str, ...]
    inputs: tuple[tuple[int, ...], ...]  # values by number: 0 is what the model is given
    ways: tuple[str, ...]
    order: tuple[int, ...]
    end: str
    end_way: str
    lengths: tuple[int, ...]  # tokens of each step
    dtype: torch.dtype
    trains: bool
    is_renamed: bool = False
    idle: tuple[int, ...] = ()  # before which pieces something is computed that nobody needs
    is_by_row: bool = False  # each row of the batch by itself
    start: Start | None = None
    kernel: Fault | None = field(default=None, hash=False)

    def __str__(self) -> str:
        pieces = ", ".join(
            f"{number}:{kind}.{way}{list(takes)}"
            for number, (kind, way, takes) in enumerate(
                zip(self.kinds, self.ways, self.inputs, strict=True)
            )
        )
        flags = [word for word in ("trains", "is_renamed", "is_by_row") if getattr(self, word)]
        flags += [f"start={self.start}"] if self.start else []
        flags += [f"kernel={self.kernel.name} at {self.kernel.op}"] if self.kernel else []
        ends = f"{self.end}.{self.end_way}"
        return (
            f"{pieces} -> {ends}; order {list(self.order)}, {list(self.lengths)} tokens, "
            f"{str(self.dtype)[6:]}, idle {list(self.idle)} {' '.join(flags)}"
        )

    @property
    def behind(self) -> set[int]:
        """The pieces that what is returned depends on."""
        found, waiting = set[int](), [len(self.kinds)]
        while waiting:
            value = waiting.pop()
            if value and value not in found:
                found.add(value)
                waiting += self.inputs[value - 1]
        return {value - 1 for value in found}


def drawn(seed: int, is_traced: bool = False, most: int = 5) -> Plan:
    """A program from a seed, of `most` pieces at most, everything in its usual way."""
    draws = random.Random(seed)
    known = sorted(name for name, kind in PIECES.items() if kind.is_traced or not is_traced)
    kinds, inputs = [], []
    for number in range(draws.randint(min(2, most), most)):
        kind = draws.choice(known)
        last = number
        first = last if draws.random() < 0.75 else draws.randint(0, last)
        others = [draws.randint(0, last) for _ in range(PIECES[kind].num_inputs - 1)]
        kinds.append(kind)
        inputs.append((first, *others))
    end = draws.choice(["Scores", "Both", "Loss"])
    later = draws.choice([0, 0, 0, 1, 2]) if most > 2 else 0
    lengths = (draws.randint(3, 5), *[draws.choice([1, 2, 3])] * later)
    trains = draws.random() < 0.4
    dtype = SHORT if draws.random() < 0.3 else torch.float32
    return Plan(
        seed, tuple(kinds), tuple(inputs), tuple(PIECES[kind].ways[0] for kind in kinds),
        tuple(range(len(kinds))), end, ENDS[end].ways[0], lengths, dtype, trains,
    )  # fmt: skip


def rewritten(plan: Plan, draws: random.Random) -> Plan:
    """The same program, written in another way."""
    ways = tuple(draws.choice(_ways(plan, kind)) for kind in plan.kinds)
    if draws.random() < 0.5:  # one piece alone is written in another way
        chosen = draws.randrange(len(ways))
        ways = tuple(way if at == chosen else plan.ways[at] for at, way in enumerate(ways))
    can_split = all(PIECES[kind].is_by_row for kind in plan.kinds) and ENDS[plan.end].is_by_row
    return replace(
        plan,
        ways=ways,
        end_way=draws.choice(ENDS[plan.end].ways) if draws.random() < 0.6 else plan.end_way,
        order=_other_order(plan, draws) if draws.random() < 0.3 else plan.order,
        is_renamed=draws.random() < 0.15,
        idle=tuple(at for at in range(len(ways)) if draws.random() < 0.06),
        is_by_row=can_split and not plan.trains and draws.random() < 0.2,
    )


def _ways(plan: Plan, kind: str) -> tuple[str, ...]:
    """The ways to write a piece; what a shorter dtype makes of weights nobody could bound."""
    return tuple(way for way in PIECES[kind].ways if not (plan.trains and "short" in way))


def _other_order(plan: Plan, draws: random.Random) -> tuple[int, ...]:
    left, done, found = set(range(len(plan.kinds))), {0}, list[int]()
    while left:
        ready = sorted(at for at in left if set(plan.inputs[at]) <= done)
        chosen = draws.choice(ready)
        left.remove(chosen)
        done.add(chosen + 1)
        found.append(chosen)
    return tuple(found)


@dataclass(frozen=True)
class Planted:
    """A program with a fault: what was done, and to which piece; none: to the end."""

    plan: Plan
    name: str
    question: str  # "start", "program", "kernel" or "effect"
    piece: int | None


def with_fault(plan: Plan, draws: random.Random) -> Planted:
    """`plan` with a fault in its program, start or effects."""
    question = draws.choices(["program", "start", "effect", "end"], [6, 1, 1, 1])[0]
    if question == "program":
        at = draws.randrange(len(plan.kinds))
        way = draws.choice(PIECES[plan.kinds[at]].faults)
        ways = (*plan.ways[:at], way, *plan.ways[at + 1 :])
        return Planted(replace(plan, ways=ways), f"{plan.kinds[at]}.{way}", "program", at)
    if question == "start":
        start = draws.randrange(1 << 20), draws.choice(["scaled", "rolled", "row", "one"])
        return Planted(replace(plan, start=start), f"start {start[1]}", "start", None)
    end = ENDS[plan.end]
    way = draws.choice(end.left_behind if question == "effect" else end.faults)
    named = "effect" if question == "effect" else "program"
    return Planted(replace(plan, end_way=way), f"{plan.end}.{way}", named, None)


class Drawn(nn.Module):
    """The program of a plan."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        torch.manual_seed(plan.seed)
        pieces = [PIECES[kind]() for kind in plan.kinds]
        self.plan, end = plan, ENDS[plan.end]()
        self.names = [name_of(plan, at) for at in range(len(pieces))]
        for name, piece, way in zip(self.names, pieces, plan.ways, strict=True):
            piece.choose(way)
            self.add_module(name, piece)
        end.way = plan.end_way
        self.add_module("tail" if plan.is_renamed else "end", end)
        self.ending: list[End] = [end]  # no second name of it
        if plan.start is not None:
            self._start_otherwise(*plan.start)

    def _start_otherwise(self, number: int, how: str) -> None:
        weights = [each for each in self.parameters() if each.dim() > 1] or [*self.parameters()]
        weight = weights[number % len(weights)].data
        at = number % weight.shape[0]
        match how:
            case "scaled":
                weight.mul_(1.05)
            case "rolled":
                weight.copy_(weight.roll(1, 0))
            case "row":
                weight[at] = weight[at - 1]
            case "one":
                weight.view(-1)[number % weight.numel()] += 0.25

    def forward(self, x: Tensor) -> object:
        if self.plan.is_by_row:
            found = [self._run(row) for row in torch.split(x, 1)]
            return torch.cat([each for each in found if isinstance(each, Tensor)])
        return self._run(x)

    def _run(self, x: Tensor) -> object:
        values: dict[int, Tensor] = {0: x}
        for at in self.plan.order:
            if at in self.plan.idle:
                F.silu(values[self.plan.inputs[at][0]]).sum()
            given = [values[number] for number in self.plan.inputs[at]]
            values[at + 1] = self.get_submodule(self.names[at])(*given)
        return self.ending[0](values[len(self.names)])


def name_of(plan: Plan, at: int) -> str:
    """The module of a piece."""
    return f"blocks_{len(plan.kinds) - at}_x" if plan.is_renamed else f"p{at}"


def given(plan: Plan, step: int) -> Tensor:
    draws = torch.Generator().manual_seed(plan.seed * 7 + step)
    return torch.randn(BATCH, plan.lengths[step], WIDTH, generator=draws).to(plan.dtype)


def made(plan: Plan) -> Drawn:
    """The module of a plan, in its dtype."""
    return Drawn(plan).to(plan.dtype)


def around(model: Drawn) -> AbstractContextManager[object]:
    """What a fault in a kernel needs while the program runs."""
    kernel = model.plan.kernel
    return nullcontext() if kernel is None else planted(model, kernel)


def run(model: nn.Module, plan: Plan, call: Any = None) -> Iterator[tuple[object, Tensor]]:
    """Run all steps of the program; what each returns, and what it was given."""
    dtype = next(model.parameters()).dtype
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for step in range(len(plan.lengths)):
        x = given(plan, step).to(dtype).requires_grad_(plan.trains)
        with torch.set_grad_enabled(plan.trains), ExitStack():
            try:
                result: object = (model if call is None else call)(x)
            except ValueError as error:
                yield error, x
                return
        if plan.trains:
            _backward(result, plan, step)
        yield result, x
        if plan.trains:
            optimizer.step()
            optimizer.zero_grad()


def _backward(result: object, plan: Plan, step: int) -> None:
    found = result if isinstance(result, tuple) else (result,)
    tensors = [each for each in found if isinstance(each, Tensor) and each.requires_grad]
    draws = torch.Generator().manual_seed(plan.seed * 11 + step)
    total: Any = 0.0
    for each in tensors:
        shares = torch.randn(each.shape, generator=draws, dtype=torch.float64)
        total = total + (each * shares.to(each.dtype)).sum() if each.dim() else total + each
    if tensors:
        total.backward()


Effects = dict[str, object]


def exact(plan: Plan) -> Effects:
    """All that the program leaves behind, in float64."""
    model = made(plan).double()
    for piece in model.modules():
        if isinstance(piece, Piece):
            piece.short = torch.float64
    found: Effects = {}
    with around(model):
        for step, (result, x) in enumerate(run(model, plan)):
            found |= {f"{step} returned {path}": leaf for path, leaf in _leaves(result)}
            found |= {f"{step} given": x.grad} if x.grad is not None else {}
            for name, weight in _by_piece(model, plan):
                if isinstance(weight, nn.Parameter):
                    grad = weight.grad
                    found[f"{step} grad {name}"] = None if grad is None else grad.clone()
                else:
                    found[f"{step} buffer {name}"] = weight.clone()
    return found


def _leaves(result: object) -> Iterator[tuple[str, object]]:
    for at, leaf in enumerate(result if isinstance(result, tuple) else (result,)):
        yield str(at), leaf.detach().clone() if isinstance(leaf, Tensor) else leaf


def _by_piece(model: Drawn, plan: Plan) -> Iterator[tuple[str, Tensor]]:
    """Weights and buffers, however their modules are called."""
    pieces = {str(at): model.get_submodule(name) for at, name in enumerate(model.names)}
    for at, piece in {**pieces, "end": model.ending[0]}.items():
        if isinstance(piece, Piece) and piece.way == "packed":
            continue  # its weights are laid out otherwise
        yield from ((f"{at}.{name}", weight) for name, weight in piece.named_parameters())
        yield from ((f"{at}.{name}", buffer) for name, buffer in piece.named_buffers())


def how_far(one: Effects, other: Effects) -> float:
    """How far the effects of two programs are apart, of their size; endless where one lacks any."""
    packed = {name for name in one.keys() ^ other.keys() if "grad" in name}
    if (one.keys() ^ other.keys()) - packed:
        return float("inf")
    return max((_apart(one[name], other[name]) for name in one.keys() & other.keys()), default=0.0)


def _apart(one: object, other: object) -> float:
    if isinstance(one, ValueError) and isinstance(other, ValueError):
        return 0.0
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        if one is None or other is None:  # nobody asked for a gradient, or it is zero
            tensor = other if one is None else one
            is_zero = isinstance(tensor, Tensor) and not bool(tensor.any())
            return 0.0 if tensor is None or is_zero else float("inf")
        return float("inf") if isinstance(one, Tensor | ValueError) or one != other else 0.0
    if one.shape != other.shape:
        return float("inf")
    wide = one.double(), other.double()
    if not wide[0].numel():
        return 0.0
    apart = float((wide[0] - wide[1]).abs().max())
    size = float(torch.maximum(wide[0].abs().max(), wide[1].abs().max()))
    return apart / size if size > 1e-9 else 0.0
