"""Whether compiled kernels computed what they were asked for: each is a region of its graph.

A region goes from the values that other kernels had stored to those that its own kernel stored. It
is run in float64; what rounding may make of it is found by trial: each of its ops is disturbed by
what it may round, a few times, and the spread is what rounding explains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import torch
from torch import Tensor

from dumpcmp.judge.replaying import wrong
from dumpcmp.judge.tolerances import FLOAT32_EPS
from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.nouns.replay import Replay
from dumpcmp.nouns.value import DTYPES
from dumpcmp.replay.arguments import read_arguments
from dumpcmp.replay.drawing import draws
from dumpcmp.replay.holding import hold
from dumpcmp.replay.kinds import BY_DTYPE
from dumpcmp.replay.limits import check_size
from dumpcmp.replay.listed import function_named
from dumpcmp.replay.rating import Rerun, error_of, run
from dumpcmp.replay.running import fitted, is_exact, rerun, wide_dtype
from dumpcmp.replay.unreplayable import Unreplayable
from dumpcmp.shadows.graph_links import is_stored, kernel_of
from dumpcmp.shadows.program import Node, Program, RatedOperation, ValueId
from dumpcmp.shadows.quantities import tensor_of

Moving = Callable[[torch.Size], Tensor]  # how far each element goes, of how far it may
_TRIALS = 3
_SLOT = "output.0"
ReadValue = Callable[[ValueId], Tensor]


@dataclass(frozen=True, slots=True)
class RegionFinding:
    """What a kernel stored that its region does not give, or why that could not be told."""

    node: Node
    slot: str
    wrong: str = ""
    unknown: str = ""


def is_compiled(node: Node) -> bool:
    """Whether a kernel of a compiled graph made what `node` gives."""
    return node.call.is_compiled


def check_regions(
    program: Program, nodes: Iterable[Node], load_value: ReadValue
) -> Iterator[RegionFinding]:
    """Check what kernels stored of what `nodes` give; what is right is not told."""
    kernels: dict[str, list[tuple[Node, str, ValueId]]] = {}
    shown = {effect.value for effect in program.effects}
    for node in nodes:
        for slot, value in node.gives.items():
            record = program.records[value]
            if is_stored(record):
                name = kernel_of(record) or f"unnamed {value}"
                kernels.setdefault(name, []).append((node, slot, value))
            elif value in shown:
                why = record.problem or "it was not kept as a kernel stored it"
                yield RegionFinding(node, _slot(node, slot), unknown=why)
    told: set[tuple[Node, str]] = set()
    for name, stored in kernels.items():
        region = KernelRegion.of(program, [value for _, _, value in stored], name)
        for finding in RegionCheck(program, region, load_value).findings(stored):
            if (finding.node, finding.slot) not in told:  # an op may stand in several regions
                told.add((finding.node, finding.slot))
                yield finding


@dataclass(frozen=True, slots=True)
class KernelRegion:
    """Nodes between values that were stored, in the order of the program."""

    kernel: str
    nodes: Sequence[Node]
    edges: Sequence[ValueId]  # what it reads
    recomputed: frozenset[ValueId]  # edges that the kernel may have computed again for itself

    @classmethod
    def of(cls, program: Program, values: Sequence[ValueId], kernel: str) -> KernelRegion:
        """The region of the kernel that stored `values`."""
        inside: set[Node] = set()
        edges: dict[ValueId, None] = {}
        waiting = [program.producers[value] for value in values]
        while waiting:
            node = waiting.pop()
            if node in inside:
                continue
            inside.add(node)
            for value in node.takes.values():
                producer, record = program.producers.get(value), program.records[value]
                is_read = is_stored(record) and kernel_of(record) != kernel
                if producer is None or is_read or not is_compiled(producer):
                    edges[value] = None
                else:
                    waiting.append(producer)
        made = frozenset(v for v in edges if (p := program.producers.get(v)) and is_compiled(p))
        ordered = [node for node in program.nodes if node in inside]
        return cls(kernel, ordered, list(edges), made)


@dataclass(eq=False)
class RegionCheck:
    """One region, run a few times."""

    program: Program
    region: KernelRegion
    load_value: ReadValue
    _edges: dict[ValueId, Tensor] = field(default_factory=dict)
    _wide: dict[ValueId, Tensor] = field(default_factory=dict)

    def findings(self, stored: Sequence[tuple[Node, str, ValueId]]) -> Iterator[RegionFinding]:
        """What is wrong of what was `stored`."""
        try:
            self._edges = {value: self.load_value(value) for value in self.region.edges}
            self._wide = self._run(None)
        except DumpcmpError as error:
            for node, slot, _ in stored:
                yield RegionFinding(node, _slot(node, slot), unknown=error.message)
            return
        for node, slot, value in stored:
            replay = self._held(value)
            if not replay.is_known:
                yield RegionFinding(node, _slot(node, slot), unknown=replay.unknown)
            elif reason := wrong(replay):
                yield self._blamed(node, slot, reason)

    def _held(self, value: ValueId) -> Replay:
        try:
            got = self.load_value(value)
            replay = hold(self._plain(value), _SLOT, got)
            if replay.is_known and wrong(replay):
                replay = hold(self._spread(value), _SLOT, got)
        except DumpcmpError as error:
            return Replay(unknown=error.message)
        return replay

    def _plain(self, value: ValueId) -> Rerun:
        """What the region gives, with the bound of a single op."""
        outputs, number = {_SLOT: self._wide[value]}, len(self.region.nodes)
        return Rerun(outputs, is_exact=self._is_exact(value), num_ops=number)

    def _spread(self, value: ValueId) -> Rerun:
        """The same with what rounding may make of it, by trial."""
        plain, wide = self._plain(value), self._wide[value]
        trials = [trial[value] for trial in self._trials]
        if not wide.is_floating_point():
            is_open = torch.stack([trial != wide for trial in trials]).any(0)
            return replace(plain, is_exact=True, unwritten={_SLOT: is_open})
        noise = max(error_of(trial, wide) for trial in trials) + self._last_noise(value)
        return replace(plain, noise={_SLOT: noise}, is_exact=plain.is_exact and not noise)

    def _last_noise(self, value: ValueId) -> float:
        """What the op that gives a value rounds on the whole: long sums do not round at random."""
        node = self.program.producers[value]
        rating = self._rates.get(node)
        if rating is None:
            return 0.0
        return max((rating.noise.get(s, 0.0) for s, v in node.gives.items() if v == value))

    def _is_exact(self, value: ValueId) -> bool:
        """Whether the region only moves the elements of a value, and never casts them."""
        inside, waiting = set[Node](), [value]
        while waiting:
            node = self.program.producers.get(waiting.pop())
            if node is None or node not in self._members or node in inside:
                continue
            if node.own is not None or self._casts(node) or not self._moves(node):
                return False
            inside.add(node)
            waiting += node.takes.values()
        return True

    def _moves(self, node: Node) -> bool:
        given = {slot: self._rounded(value) for slot, value in node.takes.items()}
        arguments = fitted(read_arguments(node.call.arguments, given), given)
        return is_exact(function_named(node.call.target), arguments)

    @cached_property
    def _members(self) -> frozenset[Node]:
        return frozenset(self.region.nodes)

    def _blamed(self, node: Node, slot: str, reason: str) -> RegionFinding:
        """The first op inside of which the kernel's twin shows a wrong value, or the whole."""
        for inner in self.region.nodes:
            for name, value in inner.gives.items():
                if self.program.records[value].is_twin:
                    replay = self._held(value)
                    if replay.is_known and (told := wrong(replay)):
                        return self._finding(inner, name, told)
        return self._finding(node, slot, reason)

    def _finding(self, node: Node, slot: str, reason: str) -> RegionFinding:
        kernel = self.region.kernel.partition(" ")[2].partition("#")[0]
        others = [str(each) for each in self.region.nodes if each is not node]
        beside = f" together with {', '.join(others[:4])}" if others else ""
        return RegionFinding(
            node, _slot(node, slot), wrong=f"{reason}; {kernel} computes it{beside}"
        )

    # runs

    @cached_property
    def _rates(self) -> Mapping[Node, Rerun]:
        """How well each op is determined, on its inputs as they are rounded."""
        found: dict[Node, Rerun] = {}
        for node in self.region.nodes:
            given = {slot: self._rounded(value) for slot, value in node.takes.items()}
            try:
                if node.own is None:
                    found[node] = rerun(node.call, given)
                elif isinstance(node.own, RatedOperation):
                    found[node] = node.own.rated(given)
            except DumpcmpError:
                continue  # then its own rounding is all that it is disturbed by
        return found

    @cached_property
    def _trials(self) -> list[dict[ValueId, Tensor]]:
        """At random, and all to one side: what a mean was rounded by, all of its takers have."""
        draws = [torch.Generator().manual_seed(number + 1) for number in range(_TRIALS)]
        moves: list[Moving] = [*(partial(_at_random, draw) for draw in draws), torch.ones]
        return [self._run(move) for move in moves]

    def _rounded(self, value: ValueId) -> Tensor:
        """A value in the dtype that the run had it in."""
        if value in self._edges:
            return self._edges[value]
        return self._as_run(value, self._wide[value])

    def _as_run(self, value: ValueId, tensor: Tensor) -> Tensor:
        name = self.program.records[value].dtype
        return tensor.to(getattr(torch, name)) if hasattr(torch, name) else tensor

    def _run(self, move: Moving | None) -> dict[ValueId, Tensor]:
        """Run the region in float64; with each op disturbed, where there is a way to `move` it."""
        made = {value: tensor_of(tensor) for value, tensor in self._edges.items()}
        if move is not None:
            for value in self.region.recomputed:
                made[value] = _disturbed(made[value], self._grain(value), move)
        for node in self.region.nodes:
            given = {slot: made[value] for slot, value in node.takes.items()}
            if node.own is None and function_named(node.call.target).name in BY_DTYPE:
                given = {
                    slot: self._as_run(value, given[slot]) for slot, value in node.takes.items()
                }
            outputs = _run_node(node, given)
            for slot, value in node.gives.items():
                if slot not in outputs:
                    raise DumpcmpError(f"the replay of {node} gives no {slot}")
                made[value] = outputs[slot]
                if move is not None:
                    made[value] = _disturbed(outputs[slot], self._grain(value, node, slot), move)
        return made

    def _grain(self, value: ValueId, node: Node | None = None, slot: str = "") -> Tensor | float:
        """What each element of a value may be off: by its own rounding, and that of its terms."""
        dtype = DTYPES.get(self.program.records[value].dtype)
        eps = dtype.eps if dtype is not None else 0.0
        size = self._wide[value] if value in self._wide else tensor_of(self._edges[value])
        if not size.is_floating_point() or not size.numel():
            return 0.0
        rating = self._rates.get(node) if node is not None else None
        if rating is not None and rating.is_exact and node is not None and not self._casts(node):
            return 0.0
        grain = eps / 2 * size.abs()
        unit = min(eps, FLOAT32_EPS)
        if rating is None:
            return grain
        terms, level = rating.terms.get(slot), float(size.square().mean().sqrt())
        condition, noise = rating.condition.get(slot, 1.0), rating.noise.get(slot, 0.0)
        if terms is not None:
            grain = grain + unit * terms.to(torch.float64)
        return grain + (unit * (condition - 1) + noise) * level

    def _casts(self, node: Node) -> bool:
        values = (*node.takes.values(), *node.gives.values())
        dtypes = {self.program.records[value].dtype for value in values}
        return len({name for name in dtypes if name in DTYPES and DTYPES[name].eps}) > 1


def _at_random(draw: torch.Generator, shape: torch.Size) -> Tensor:
    return torch.rand(shape, generator=draw, dtype=torch.float64) * 2 - 1


def _disturbed(tensor: Tensor, grain: Tensor | float, move: Moving) -> Tensor:
    if not tensor.is_floating_point() or isinstance(grain, float):
        return tensor
    return tensor + torch.where(torch.isfinite(grain), grain, 0.0) * move(tensor.shape)


def _run_node(node: Node, given: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    if node.own is not None:
        return node.own.run(given)
    function = function_named(node.call.target)
    arguments = fitted(read_arguments(node.call.arguments, given), given)
    if function.name not in BY_DTYPE:
        arguments = arguments.mapped(_widened)
    if draws(function, arguments):
        raise Unreplayable("it draws random numbers")
    check_size(function, arguments)
    return {slot: tensor_of(tensor) for slot, tensor in run(function, arguments).items()}


def _widened(leaf: object) -> object:
    if isinstance(leaf, torch.dtype):
        return wide_dtype(leaf)
    return tensor_of(leaf) if isinstance(leaf, Tensor) else leaf


def _slot(node: Node, slot: str) -> str:
    return node.own.slot if node.own is not None else slot
