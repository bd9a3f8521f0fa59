"""One program at random, held to the laws: as it is rewritten, and with a fault on either side."""

from __future__ import annotations

import json
import random
import shutil
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import dumpcmp
from dumpcmp.archive.paths import run_text
from dumpcmp.archive.read.reader import Archive
from dumpcmp.faults import Fault, on_output
from dumpcmp.nouns.key import Key
from dumpcmp.nouns.outcome import Outcome
from dumpcmp.nouns.row import Row
from tests.laws.drawing import (
    Effects,
    Plan,
    Planted,
    around,
    drawn,
    exact,
    how_far,
    made,
    name_of,
    rewritten,
    run,
    with_fault,
)
from tests.laws.lost_records import without_record

EXACT = 1e-8  # two ways to write a program are no further apart than that, in float64
REACHES = {torch.float32: 1e-3, torch.bfloat16: 0.03}  # an effect that a fault reaches
SAME, DIFFERENT, UNKNOWN = 0, 1, 2


@dataclass(frozen=True)
class Violation:
    """A law that was broken, of which program, and what was said."""

    law: int
    seed: int
    told: str

    def __str__(self) -> str:
        return f"law {self.law}, seed {self.seed}: {self.told}"


@dataclass
class Findings:
    """What trials came to. They add."""

    counts: Counter[str] = field(default_factory=Counter)
    violations: list[Violation] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)  # sound pairs of which nothing was shown

    def __iadd__(self, other: Findings) -> Findings:
        self.counts += other.counts
        self.violations += other.violations
        self.unknown += other.unknown
        return self

    def __str__(self) -> str:
        laws = Counter(each.law for each in self.violations)
        lines = [f"{name:32} {count}" for name, count in sorted(self.counts.items())]
        lines += [f"violations of law {law:<13} {laws[law]}" for law in range(1, 6)]
        return "\n".join([*lines, *map(str, self.violations)])


def dumped(plan: Plan, path: Path, mode: str = "eager") -> Path:
    """Run all steps of a program under a capture."""
    model = made(plan)
    call: Any = torch.compile(model) if mode == "compiled" else None
    with around(model), dumpcmp.capture(model, path, mode=mode, backward=plan.trains):
        for _ in run(model, plan, call):
            pass
    return path


def _scale(output: Tensor) -> None:
    output.mul_(1.1)


def _zero_channel(output: Tensor) -> None:
    output[..., -1] = 0


def _swap_rows(output: Tensor) -> None:
    output.copy_(output.roll(1, 0) if output.shape[0] > 1 else -output)


def _one_element(output: Tensor) -> None:
    flat = output.view(-1)
    flat[flat.numel() // 2] += 0.5 * float(output.double().square().mean().sqrt())


def _stale_half(output: Tensor) -> None:
    half = output.shape[-1] // 2 or 1
    output[..., half:] *= 0.8


TAMPERED: dict[str, Callable[[Tensor], None]] = {
    "scaled": _scale, "zero channel": _zero_channel, "rows swapped": _swap_rows,
    "one element": _one_element, "half too small": _stale_half,
}  # fmt: skip
_UNTOUCHED = {"getitem", "setitem", "arange", "ones", "zeros", "item", "detach", "get", "copy"}


def with_wrong_kernel(plan: Plan, archive: Path, draws: random.Random) -> Planted | None:
    """`plan` with a function that gives a wrong result; none where it has none that could be."""
    held = Archive(archive)
    model = held.models[0]
    found = [
        first.key
        for first, *_ in held.shards_at(model, 0).values()
        if first.key.slot == "output.0"
        and not first.key.op.is_module
        and first.same_as is None
        and first.dtype in ("float32", "bfloat16")
        and first.shape
        and first.key.op.function not in _UNTOUCHED
        and first.key.site.key("output.1") not in held  # it gives one tensor
    ]
    if not found:
        return None
    key = draws.choice(found)
    name = draws.choice(sorted(TAMPERED))
    module = "" if key.op.module == "<root>" else key.op.module
    fault = Fault(name, module, key.op.function, on_output(TAMPERED[name]), call=key.call)
    return Planted(replace(plan, kernel=fault), f"kernel {name}", "kernel", _piece(plan, module))


def _piece(plan: Plan, module: str) -> int | None:
    names = [name_of(plan, at) for at in range(len(plan.kinds))]
    first = module.split(".")[0]
    return names.index(first) if first in names else None


@dataclass
class Trial:
    """One program: two ways to write it, in archives below `room`."""

    seed: int
    room: Path
    most: int = 5  # pieces
    found: Findings = field(default_factory=Findings)

    def run(self) -> Findings:
        """Hold it to the laws."""
        self.draws = random.Random(self.seed + (1 << 40))
        plan = drawn(self.seed, most=self.most)
        ours = rewritten(plan, self.draws) if self.draws.random() < 0.3 else plan
        theirs = rewritten(plan, self.draws)
        self.found.counts["programs"] += 1
        truths = exact(ours), exact(theirs)
        if (apart := how_far(*truths)) > EXACT:
            self._break(
                0, f"a way to write it is another program, by {apart:.2g}: {ours} | {theirs}"
            )
            return self.found
        plans, paths = (ours, theirs), (self.room / "golden", self.room / "target")
        for each, path in zip(plans, paths, strict=True):
            dumped(each, path)
        told = f"{ours} | {theirs}"
        outcome = self._compared("sound", paths, told)
        if outcome is not None:
            if outcome.exit_code == DIFFERENT:
                self._break(2, f"{outcome.word} OF {told}")
            elif outcome.exit_code == UNKNOWN:
                self.found.unknown.append(f"seed {self.seed}: {outcome.word} OF {told}")
            self._drop(outcome.exit_code, paths, told)
        self._fault(plans, paths, truths)
        return self.found

    def _break(self, law: int, told: str) -> None:
        self.found.violations.append(Violation(law, self.seed, told))

    def _compared(self, name: str, paths: tuple[Path, Path], told: str) -> Outcome | None:
        """Compare both ways; the laws about swapping and about ending are held here."""
        outcome = self._outcome(paths, told)
        if outcome is None:
            return None
        self.found.counts[f"{name}: {('SAME', 'DIFFERENT', 'UNKNOWN')[outcome.exit_code]}"] += 1
        if self.draws.random() < 0.5:
            swapped = self._outcome(paths[::-1], told)
            self.found.counts[f"{name}, swapped"] += 1
            if swapped is not None and swapped.exit_code != outcome.exit_code:
                said = f"{outcome.word} AND SWAPPED {swapped.word} OF {told}"
                self._break(3, said)
        return outcome

    def _outcome(self, paths: Iterable[Path], told: str) -> Outcome | None:
        try:
            return dumpcmp.compare(*paths)
        except Exception as error:  # whatever it is, a comparison must not end by it
            self._break(3, f"{error!r} OF {told}")
            return None

    def _fault(
        self, plans: tuple[Plan, Plan], paths: tuple[Path, Path], truths: tuple[Effects, Effects]
    ) -> None:
        for _ in range(4):
            side = self.draws.randrange(2)
            planted: Planted | None
            if self.draws.random() < 0.3:
                planted = with_wrong_kernel(plans[side], paths[side], self.draws)
            else:
                planted = with_fault(plans[side], self.draws)
            if planted is None:
                continue
            try:
                far = how_far(exact(planted.plan), truths[1 - side])
            except (RuntimeError, IndexError, TypeError):
                continue  # it cannot even be run
            if far > REACHES[planted.plan.dtype]:
                self._plant(planted, side, plans, paths)
                return
        self.found.counts["no fault reaches an effect"] += 1

    def _plant(
        self, planted: Planted, side: int, plans: tuple[Plan, Plan], paths: tuple[Path, Path]
    ) -> None:
        faulty = dumped(planted.plan, self.room / "faulty")
        pair = (faulty, paths[1]) if side == 0 else (paths[0], faulty)
        where = ("golden", "target")[side]
        told = f"{planted.name} in {where} of {plans[0]} | {plans[1]}"
        outcome = self._compared(planted.question, pair, told)
        if outcome is None:
            return
        if outcome.exit_code == SAME:
            self._break(1, f"{outcome.word} OF {told}")
        elif outcome.exit_code == DIFFERENT:
            near = _how_near(outcome.first_divergence, planted, plans, side)
            self.found.counts[f"named: {near}"] += 1
            self.found.counts[f"named, {planted.question}: {near}"] += 1
        if self.draws.random() < 0.3:
            lacking = self.draws.randrange(2)
            lost, path = self._lose(pair[lacking], is_told=False)
            other = (path, pair[1]) if lacking == 0 else (pair[0], path)
            left = self._outcome(other, told)
            self.found.counts["a record lost, wrong"] += 1
            if left is not None and left.exit_code == SAME:
                self._break(
                    4, f"without {lost} of {('golden', 'target')[lacking]}: {left.word} OF {told}"
                )

    def _drop(self, before: int, paths: tuple[Path, Path], told: str) -> None:
        if before != SAME or self.draws.random() > 0.2:
            return
        lacking = self.draws.randrange(2)
        _, path = self._lose(paths[lacking], is_told=True)
        pair = (path, paths[1]) if lacking == 0 else (paths[0], path)
        left = self._outcome(pair, told)
        self.found.counts["a record lost, sound"] += 1
        is_different = left is not None and left.exit_code == DIFFERENT
        self.found.counts["a record lost, sound: DIFFERENT"] += is_different

    def _lose(self, path: Path, is_told: bool) -> tuple[Key, Path]:
        archive = Archive(path)
        lost = self.draws.choice(list(archive))
        room = self.room / f"less-{path.name}-{is_told}"
        without_record(path, room, lost)
        if is_told:  # the run knows that it wrote more than there is
            facts = next(room.glob("*/run.json"))
            said = json.loads(facts.read_text())
            facts.write_text(run_text(said | {"num_records": said["num_records"] + 1}))
        return lost, room


def _how_near(first: Row | None, planted: Planted, plans: tuple[Plan, Plan], side: int) -> str:
    """Whether the root is the op or the piece that is wrong, one beside it, or elsewhere."""
    if first is None:
        return "elsewhere"
    modules = [key.op.module.split(".")[0] for key in (first.golden_key, first.target_key) if key]
    if planted.question == "kernel" and planted.plan.kernel is not None:
        key = first.target_key if side else first.golden_key
        own = planted.plan.kernel
        if key is not None and (key.op, key.call) == (own.op, own.call):
            return "exact"
        return "neighbour" if own.op.split("/")[0].split(".")[0] in modules else "elsewhere"
    if planted.question in ("start", "effect"):
        is_leaf = first.key.slot.is_weight or first.key.op.is_effect
        return "exact" if is_leaf or planted.question == "effect" else "neighbour"
    count = len(planted.plan.kinds)
    at = count if planted.piece is None else planted.piece
    mine = {_place(plan, module) for plan in plans for module in modules}
    if at in mine or first.key.op.is_effect:
        return "exact"
    takes = planted.plan.inputs[at] if at < count else (count,)
    beside = (
        {number - 1 for number in takes}
        | {other for other, given in enumerate(planted.plan.inputs) if at + 1 in given}
        | ({count} if at == count - 1 else set())
    )
    return "neighbour" if beside & mine else "elsewhere"


def _place(plan: Plan, module: str) -> int | None:
    return len(plan.kinds) if module in ("end", "tail") else _piece(plan, module)


def hold(seeds: Iterable[int], room: Path, most: int = 5) -> Iterator[Findings]:
    """What each seed comes to; all that it writes is removed again."""
    for seed in seeds:
        place = room / str(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = Trial(seed, place, most).run()
        shutil.rmtree(place, ignore_errors=True)
        yield found


def hold_modes(seeds: Iterable[int], mode: str, room: Path, most: int = 5) -> Iterator[Findings]:
    """What each seed comes to where the target is captured in another `mode`."""
    for seed in seeds:
        place = room / str(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield _in_mode(seed, mode, place, most)
        shutil.rmtree(place, ignore_errors=True)


def _in_mode(seed: int, mode: str, room: Path, most: int) -> Findings:
    """A sound pair and one with a fault: eager and `mode` give the same answer, or none."""
    found, draws = Findings(), random.Random(seed + (1 << 41))
    plan = drawn(seed, is_traced=mode != "aten", most=most)
    other = rewritten(plan, draws)
    planted = with_fault(other, draws)
    if mode != "aten":  # graphs have no place for what is written between them
        plan = replace(plan, lengths=plan.lengths[:1])
        other = replace(other, lengths=plan.lengths)
        planted = replace(planted, plan=replace(planted.plan, lengths=plan.lengths))
    golden = dumped(plan, room / "golden")
    pairs = {"sound": other}
    if planted.question != "effect" and _reaches(planted.plan, plan):
        pairs[planted.question] = planted.plan
    for name, target in pairs.items():
        codes = []
        for how in ("eager", mode):
            outcome = dumpcmp.compare(golden, dumped(target, room / f"{name}-{how}", how))
            codes.append(outcome.exit_code)
        found.counts[f"{mode}, {name}: {('SAME', 'DIFFERENT', 'UNKNOWN')[codes[1]]}"] += 1
        if UNKNOWN not in codes and codes[0] != codes[1]:
            told = f"{outcome.word} in {mode}, and {codes[0]} in eager, OF {plan} | {target}"
            found.violations.append(Violation(5, seed, told))
    return found


def _reaches(faulty: Plan, plan: Plan) -> bool:
    try:
        return how_far(exact(faulty), exact(plan)) > REACHES[plan.dtype]
    except (RuntimeError, IndexError):
        return False
