"""Effects of two runs, held against each other: which belong together, and a row for each.

Tensors that an effect has of its own are pairs like others. What it holds by value has one row.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from dumpcmp.align.counting import Counting
from dumpcmp.align.listing import Listing
from dumpcmp.align.pairing import with_repeats
from dumpcmp.archive.read.reader import Archive
from dumpcmp.comparing.requests import Asking
from dumpcmp.comparing.side import EffectCalls, Side, StepName
from dumpcmp.comparing.tree_differences import (
    LeafDifference,
    NumberRule,
    TreeComparison,
    compare_trees,
)
from dumpcmp.nouns.effects import (
    Effect,
    EffectLeaf,
    EffectTree,
    TreeLeafKind,
    effect_of,
    state_names,
    tree_of,
)
from dumpcmp.nouns.given import argument_tree
from dumpcmp.nouns.key import ROOT, Key, Op, Site
from dumpcmp.nouns.record import Call
from dumpcmp.nouns.row import Judgement, Pair, PairedBy, Row, Verdict, Why

_NUMBER = re.compile(r"[-+]?\d+\.\d+(?:[eE][-+]?\d+)?")
_INTERRUPTS = ("builtins.KeyboardInterrupt", "builtins.SystemExit")  # from outside of the model
_RETURNED = (Effect.RESULT, Effect.YIELDED)
EXACTLY = NumberRule()
_Named = tuple[Op, int]  # an effect within its step


@dataclass(frozen=True)
class StepEffects:
    """The effects of one step of golden and of the target's that is the same."""

    golden_name: StepName | None
    target_name: StepName | None
    golden: EffectCalls
    target: EffectCalls

    @cached_property
    def named(self) -> list[_Named]:
        """All effects that either side has, golden's first."""
        calls = (c for side in (self.golden, self.target) for one in side.values() for c in one)
        return list(dict.fromkeys((call.op, call.call) for call in calls))

    def of(self, named: _Named) -> tuple[dict[int, Call], dict[int, Call]]:
        """One effect on both sides, by rank."""
        return _called(self.golden, named), _called(self.target, named)

    def sides_with(self, effect: Effect) -> tuple[bool, bool]:
        """Whether either side has effects of this kind."""
        has = [any(c.op == effect.op for one in side.values() for c in one)
               for side in (self.golden, self.target)]  # fmt: skip
        return has[0], has[1]

    @property
    def is_paired(self) -> bool:
        """Whether both sides have the step."""
        return self.golden_name is not None and self.target_name is not None


def _called(side: EffectCalls, named: _Named) -> dict[int, Call]:
    found = {rank: [c for c in calls if (c.op, c.call) == named] for rank, calls in side.items()}
    return {rank: calls[0] for rank, calls in found.items() if calls}


def steps_together(
    golden: Mapping[StepName, EffectCalls], target: Mapping[StepName, EffectCalls],
    counting: Counting,
) -> list[StepEffects]:  # fmt: skip
    """The steps of both sides with their effects, each beside the one that it is in the other."""
    terms = {
        (counting.names.get(model, model), counting.in_golden_terms(model, step)): (model, step)
        for model, step in target
    }
    found = [
        StepEffects(name, terms.get(name), calls, target[terms[name]] if name in terms else {})
        for name, calls in golden.items()
    ]
    left = [name for term, name in terms.items() if term not in golden]
    return found + [StepEffects(None, name, {}, target[name]) for name in left]


def records_effects(archive: Archive) -> bool:
    """Whether the run recorded what its models returned: earlier versions did not."""
    runs = [facts.get("run", {}) for facts in archive.run.values()]
    return bool(runs) and all(isinstance(run.get("effects"), list) for run in runs)


def with_effect_values(
    pairs: Sequence[Pair], golden: Side, target: Side, counting: Counting
) -> tuple[list[Pair], Side, Side]:
    """`pairs`, and those of tensors that effects have of their own; the sides list these, too."""
    more = list(_value_pairs(golden, target, counting))
    if not more:
        return list(pairs), golden, target
    golden, target = _listing_effects(golden), _listing_effects(target)
    return with_repeats([*pairs, *more], golden.listing, target.listing), golden, target


def _listing_effects(side: Side) -> Side:
    own = side.listing
    return replace(side, listing=Listing({**own.values, **side.effect_values}, own.calls,
                                         own.num_ranks))  # fmt: skip


def _value_pairs(golden: Side, target: Side, counting: Counting) -> Iterator[Pair]:
    if not golden.effect_values and not target.effect_values:
        return
    ours = {**golden.listing.values, **golden.effect_values}
    theirs = {**target.listing.values, **target.effect_values}
    for step in steps_together(golden.effects, target.effects, counting):
        for named in step.named if step.is_paired else ():
            one, other = step.of(named)
            if named[0] == Effect.STATE.op:
                continue  # which is a step of weights by itself
            for leaf, partner in _tensors(one, other):
                pair = Pair(_key(one, leaf), _key(other, partner), PairedBy.KEY)
                is_own = "root" not in (leaf.value, partner.value) or leaf.value != partner.value
                if is_own and pair.golden in ours and pair.target in theirs:
                    yield pair


def _tensors(
    golden: Mapping[int, Call], target: Mapping[int, Call]
) -> Iterator[tuple[EffectLeaf, EffectLeaf]]:
    """The tensors of one effect that both sides have, as the lowest rank tells."""
    ours, theirs = next(iter(golden.values()), None), next(iter(target.values()), None)
    if ours is not None and theirs is not None:
        found = compare_trees(tree_of(ours), tree_of(theirs), EXACTLY).tensors
        yield from (both for both in found if both[0].slot and both[1].slot)


def _key(calls: Mapping[int, Call], leaf: EffectLeaf) -> Key:
    """The value that a leaf of an effect is: of the effect itself, or of the root."""
    call = next(iter(calls.values()))
    if leaf.value == "root":
        return Key(call.model, call.step, ROOT, 0, leaf.slot)
    return call.site.key(leaf.slot)


@dataclass(frozen=True, slots=True)
class EffectFinding:
    """What is to be said of one effect."""

    verdict: Verdict
    reason: str = ""
    limit: float = 0.0


@dataclass(frozen=True, slots=True)
class EffectJudge:
    """Judges what effects hold by value, in the light of all other rows of the same steps."""

    golden: Side
    target: Side
    counting: Counting
    rule: NumberRule
    chosen: Any = None  # whether integers that differ are what another choice gave: `ChosenNumbers`

    def rows(self) -> Iterator[Row]:
        """A row for each effect that holds anything by value, or that one side alone has."""
        known = records_effects(self.golden.archive), records_effects(self.target.archive)
        for step in steps_together(self.golden.effects, self.target.effects, self.counting):
            for named in step.named:
                ours, theirs = step.of(named)
                finding = self._finding(step, named, ours, theirs, known)
                if finding is not None:
                    yield _row(named, ours, theirs, finding)

    def _finding(
        self, step: StepEffects, named: _Named, ours: Mapping[int, Call],
        theirs: Mapping[int, Call], known: tuple[bool, bool],
    ) -> EffectFinding | None:  # fmt: skip
        effect = effect_of(named[0])
        if effect is Effect.STATE:
            return self._of_state(ours, theirs)
        if effect is None:
            return EffectFinding(
                Verdict.INCONCLUSIVE, f"effects of the kind {named[0].function!r} are not known"
            )
        if ours and theirs:
            return self._of_both(effect, ours, theirs)
        if not all(known):
            return self._beside_old(effect, ours, theirs)
        if not step.is_paired:
            return self._alone_in_step(effect, named, ours, theirs)
        return self._alone(effect, step, ours, theirs)

    def _of_state(
        self, ours: Mapping[int, Call], theirs: Mapping[int, Call]
    ) -> EffectFinding | None:
        """Weights at the end have rows of their own, where both sides end at one step."""
        told = [state_names(call) for call in (*ours.values(), *theirs.values())]
        if not any(names for names, _ in told):
            return None
        if ours and theirs:
            mine = next(iter(theirs.values()))
            ends = told[0][1], self.counting.in_golden_terms(mine.model, told[-1][1])
            said = f"golden's weights are those after token {ends[0]}, mine those after {ends[1]}"
            return None if ends[0] == ends[1] else EffectFinding(Verdict.SKIPPED, said)
        who, side = ("golden", self.target) if ours else ("mine", self.golden)
        said = f"only {who} tells what weights are at the end, after token {told[0][1]}"
        is_told = side.facts.num_ranks > 1  # whose shards at the end are not recorded
        is_told |= any(_tells_state(side.archive, model) for model in side.archive.models)
        return EffectFinding(Verdict.SKIPPED if is_told else Verdict.INCONCLUSIVE, said)

    def _of_both(
        self, effect: Effect, ours: Mapping[int, Call], theirs: Mapping[int, Call]
    ) -> EffectFinding | None:
        """The first rank that differs; where the numbers of ranks differ nobody knows what fits."""
        is_alike = self.golden.facts.num_ranks == self.target.facts.num_ranks
        first = next(iter(ours.values()))
        found: list[EffectFinding] = []
        for rank, call in theirs.items():
            one = self._of_calls(effect, ours.get(rank, first) if is_alike else first, call)
            if one is None:
                continue
            if one.verdict.fails and not is_alike:
                said = f"rank {rank}: {one.reason}; a rank may return what belongs to its own share"
                one = EffectFinding(Verdict.INCONCLUSIVE, said)
            elif one.reason and len(theirs) > 1:
                one = replace(one, reason=f"rank {rank}: {one.reason}")
            found.append(one)
        return max(found, key=lambda one: _BADNESS.get(one.verdict, 0), default=None)

    def _of_calls(self, effect: Effect, ours: Call, theirs: Call) -> EffectFinding | None:
        if (
            effect is Effect.EXCEPTION
            or "exception" in _first(ours)
            or "exception" in _first(theirs)
        ):
            return self._of_exceptions(ours, theirs)
        one, other = tree_of(ours), tree_of(theirs)
        return self._of_trees(one, other)

    def _of_trees(self, golden: EffectTree, target: EffectTree) -> EffectFinding | None:
        found = compare_trees(golden, target, self.rule)
        if found.differences:
            return self._differing(found)
        if found.open:
            return EffectFinding(Verdict.INCONCLUSIVE, _and_more(found.open))
        if unseen := [one for one in found.alone if not self._is_seen(one)]:
            said = f"{unseen[0].said}; it was compared with nothing"
            return EffectFinding(Verdict.INCONCLUSIVE, said)
        if found.tensors and not found.num_same and not found.containers:
            return None  # whose rows say it all
        return EffectFinding(Verdict.PASS, _and_more(found.containers))

    def _differing(self, found: TreeComparison) -> EffectFinding:
        said = _and_more([one.said for one in found.differences])
        if self.chosen is not None and self.chosen.is_any:
            if all(self.chosen.explains(one) for one in found.differences):
                return EffectFinding(Verdict.FLIP, f"{said}; an op before it chose so")
            told = f"{said}; a choice before it was another, which may explain it"
            return EffectFinding(Verdict.INCONCLUSIVE, told)
        return EffectFinding(Verdict.FAIL, said, self.rule.limit)

    def _is_seen(self, alone: LeafDifference) -> bool:
        """Whether a tensor that one side alone returns is a value that has a row of its own."""
        side, leaf = (
            (self.golden, alone.golden) if alone.golden is not None else (self.target, alone.target)
        )
        if leaf is None or leaf.value in ("root", "tensor"):
            return True  # its own row tells; or nobody asked for it
        records = [r for key, r in side.effect_values.items() if key.slot == leaf.slot]
        return bool(records) and all(one.same_as is not None for some in records for one in some)

    def _of_exceptions(self, ours: Call, theirs: Call) -> EffectFinding:
        one, other = _first(ours), _first(theirs)
        is_type = one.get("exception") == other.get("exception")
        if is_type and _are_same_texts(one.get("message"), other.get("message"), self.rule):
            return EffectFinding(Verdict.PASS)
        said = f"golden's forward {_raised(one)}, mine {_raised(other)}"
        return EffectFinding(Verdict.FAIL, said)

    def _alone(
        self, effect: Effect, step: StepEffects, ours: Mapping[int, Call],
        theirs: Mapping[int, Call],
    ) -> EffectFinding | None:  # fmt: skip
        """An effect that one side alone has, of a step that both have."""
        calls, who, other = _who(ours, theirs)
        call = next(iter(calls.values()))
        if effect is Effect.EXCEPTION:
            said = f"{who} forward {_raised(_first(call))}, {other} did not"
            stopped = (self.golden if ours else self.target).facts.stopped
            is_open = bool(stopped) or _first(call).get("exception") in _INTERRUPTS
            rank = next(iter(calls))
            said = f"rank {rank}: {said}" if stopped or len(calls) > 1 else said
            return EffectFinding(Verdict.INCONCLUSIVE if is_open else Verdict.FAIL, said)
        if any(step.sides_with(Effect.EXCEPTION)):
            return None  # which says it
        if effect is Effect.INPUTS:
            return self._changed_alone(call, who, other, is_golden=bool(ours))
        if effect is Effect.YIELDED:
            said = f"{who} generator yields {_told(call)} where {other} has ended"
            return EffectFinding(Verdict.FAIL, said)
        if tree_of(call).is_all_tensors:
            return None  # whose rows say it
        said = f"{who} result is {_told(call)}; what {other} model returned was not recorded"
        return EffectFinding(Verdict.INCONCLUSIVE, said)

    def _changed_alone(
        self, call: Call, who: str, other: str, *, is_golden: bool
    ) -> EffectFinding | None:
        """Inputs that one side alone changed in place, as far as the other was given them, too."""
        parts = _first(call).get("parts", {})
        side = self.target if is_golden else self.golden
        given = [name for name in parts if _is_given(side, call, name, self.counting)]
        if not given:
            return None  # the other side has no such argument
        said = f"{who} forward changed its argument {given[0]!r} in place, {other} did not"
        return EffectFinding(Verdict.FAIL, said)

    def _alone_in_step(
        self, effect: Effect, named: _Named, ours: Mapping[int, Call], theirs: Mapping[int, Call]
    ) -> EffectFinding | None:
        """An effect of a step that one side alone has."""
        calls, who, other = _who(ours, theirs)
        call = next(iter(calls.values()))
        if effect in _RETURNED and tree_of(call).is_all_tensors:
            return None
        asked = Asking.of((self.target if ours else self.golden).archive, self.counting)
        key = Key(call.model, call.step, *named, "output")
        why = self.counting.why_alone(call.model, call.step, is_golden=bool(ours))
        if option := why or asked.leaves_out(key):
            return EffectFinding(Verdict.SKIPPED, f"not compared: {option}")
        is_plain = self.golden.facts.num_ranks == self.target.facts.num_ranks == 1
        said = f"{who} {effect} is {_told(call)}; {other} has no such step"
        return EffectFinding(Verdict.UNPAIRED if is_plain else Verdict.INCONCLUSIVE, said)

    def _beside_old(
        self, effect: Effect, ours: Mapping[int, Call], theirs: Mapping[int, Call]
    ) -> EffectFinding | None:
        """An effect that the other side's version, or way to capture, does not record."""
        calls, who, other = _who(ours, theirs)
        call = next(iter(calls.values()))
        if effect in _RETURNED and tree_of(call).is_all_tensors:
            return None
        said = f"{who} {effect} is {_told(call)}; {other} archive does not record it: dump it again"
        return EffectFinding(Verdict.INCONCLUSIVE, said)


def _tells_state(archive: Archive, model: str) -> bool:
    """Whether a run says what the weights of `model` were at its end."""
    last = max(archive.steps(model), default=None)
    if last is None:
        return False
    calls = archive.effects_at(model, last).values()
    return any(call.op == Effect.STATE.op for some in calls for call in some)


def _is_given(side: Side, call: Call, name: str, counting: Counting) -> bool:
    """Whether the root of the other side was given an argument that it calls so."""
    for (model, step), effects in side.effects.items():
        term = counting.names.get(model, model), counting.in_golden_terms(model, step)
        if (call.model, call.step) in ((model, step), term) and effects:
            root = side.listing.calls.get(Site(model, step, Op(ROOT), 0))
            return root is None or _takes(root, name)
    return False


def _takes(root: Call, name: str) -> bool:
    """Whether a call of a root was given what is called `name`: by keyword, or by position."""
    given = argument_tree(root)
    by_name = given.get("kwargs", {}).get(name)
    return by_name is not None or any(part is not None for part in given.get("args", []))


_BADNESS = {Verdict.FAIL: 3, Verdict.INCONCLUSIVE: 2, Verdict.FLIP: 1}


def _who(ours: Mapping[int, Call], theirs: Mapping[int, Call]) -> tuple[Any, str, str]:
    """The side that has an effect, and what both are called."""
    return (ours, "golden's", "mine") if ours else (theirs, "my", "golden's")


def _first(call: Call) -> Mapping[str, Any]:
    """The tree of a call, where it is an object."""
    given = argument_tree(call).get("args", [])
    return given[0] if given and isinstance(given[0], dict) else {}


def _raised(told: Mapping[str, Any]) -> str:
    if "exception" not in told:
        return "did not raise"
    kind = str(told["exception"]).rpartition(".")[2]
    message = str(told.get("message", ""))
    shown = message if len(message) <= _MOST_MESSAGE else f"{message[: _MOST_MESSAGE - 3]}..."
    place = f" at {told['place']}" if told.get("place") else ""
    return f"raised {kind}({shown!r}){place}" if shown else f"raised {kind}{place}"


_MOST_MESSAGE = 120


def _told(call: Call) -> str:
    """The first thing that an effect holds by value."""
    leaves = [leaf for leaf in tree_of(call).leaves if leaf.kind is not TreeLeafKind.TENSOR]
    leaf = next((each for each in leaves if not each.is_nothing), leaves[0] if leaves else None)
    if leaf is None:
        return "tensors"
    shown = leaf.shown if len(leaf.shown) <= _MOST_MESSAGE else f"{leaf.shown[:_MOST_MESSAGE]}..."
    return shown if leaf.path == call.op.function else f"{shown} at {leaf.path}"


def _are_same_texts(golden: Any, target: Any, rule: NumberRule) -> bool:
    """Whether two messages are the same but for floats in them, which may be rounded."""
    if golden == target:
        return True
    one, other = str(golden), str(target)
    ours, theirs = _NUMBER.findall(one), _NUMBER.findall(other)
    if not ours or len(ours) != len(theirs) or _NUMBER.sub("", one) != _NUMBER.sub("", other):
        return False
    return all(rule.are_same(float(a), float(b)) for a, b in zip(ours, theirs, strict=True))


def _and_more(said: Sequence[str]) -> str:
    if not said:
        return ""
    return said[0] if len(said) == 1 else f"{said[0]}, and {len(said) - 1} more"


def _row(
    named: _Named, ours: Mapping[int, Call], theirs: Mapping[int, Call],
    finding: EffectFinding,
) -> Row:  # fmt: skip
    one = next(iter(ours.values()), None)
    other = next(iter(theirs.values()), None)
    first = one or other
    assert first is not None
    slot = str(named[0].function)
    keys = [Key(c.model, c.step, c.op, c.call, slot) if c is not None else None
            for c in (one, other)]  # fmt: skip
    key = keys[0] or keys[1]
    assert key is not None
    judgement = Judgement(finding.verdict, finding.reason, why=Why.EFFECT)
    paired = PairedBy.KEY if one and other else PairedBy.NOTHING
    return Row(
        key, first.order, judgement, golden_key=keys[0], target_key=keys[1], paired_by=paired,
        source=first.source,
    )  # fmt: skip


def with_effect_rows(rows: Sequence[Row], effects: Sequence[Row], before: Row | None) -> list[Row]:
    """`rows`, with those of effects after all others of their steps, and what fails for which.

    An effect that differs follows from what was wrong before, if anything was: `before` in earlier
    steps. What one side lacks since its forward raised follows from that.
    """
    found = _blaming_exceptions(rows, effects)
    placed: dict[StepName, list[Row]] = {}
    for row in effects:
        placed.setdefault((row.key.model, row.key.step), []).append(row)
    last = {(row.key.model, row.key.step): at for at, row in enumerate(found)}
    merged: list[Row] = []
    root = before
    for at, row in enumerate(found):
        name = row.key.model, row.key.step
        merged.append(row)
        root = row if row.root else root
        if last[name] == at:
            for effect in placed.pop(name, ()):
                merged.append(_as_root(effect, root))
                root = merged[-1] if merged[-1].root else root
    for some in placed.values():  # of steps without any other value
        for effect in some:
            merged.append(_as_root(effect, root))
            root = merged[-1] if merged[-1].root else root
    return merged


def _as_root(effect: Row, before: Row | None) -> Row:
    if not effect.verdict.fails:
        return effect
    return replace(effect, root=True) if before is None else effect.caused_by(before.key)


def _blaming_exceptions(rows: Sequence[Row], effects: Sequence[Row]) -> list[Row]:
    """`rows`, in which what a side lacks after its forward raised is no cause of its own."""
    raised = [
        row for row in effects if row.key.op == Effect.EXCEPTION.op and row.verdict.fails
        and not (row.golden_key and row.target_key)
    ]  # fmt: skip
    if not raised:
        return list(rows)
    first = min(raised, key=lambda row: row.key.step)
    is_ours = first.golden_key is not None  # golden raised: golden lacks what came after
    moved = {
        row.key: first.key for row in rows
        if row.root and row.key.step >= first.key.step
        and (row.golden_key is None) is is_ours and (row.target_key is None) is not is_ours
    }  # fmt: skip
    found = []
    for row in rows:
        if row.root and row.key in moved:
            row = replace(row, root=False, cause=moved[row.key])
        elif row.cause in moved:
            row = row.caused_by(moved[row.cause])
        found.append(row)
    return found


def silent_roots(side: Side, who: str) -> Iterator[str]:
    """Steps of an archive without effects whose root returned nothing that was recorded."""
    if records_effects(side.archive):
        return
    asked = Asking.of(side.archive)
    if not asked.is_stated or not asked.tap.outputs or not asked.tap.selects_op(ROOT):
        return
    found: Counter[str] = Counter()
    first: dict[str, int] = {}
    for site, call in side.listing.calls.items():
        if site.op != ROOT or site.call or not call.target:
            continue
        keys = side.listing.sites.get(site, ())
        if not any(key.slot.is_output for key in keys):
            found[site.model] += 1
            first.setdefault(site.model, site.step)
    for model in found:
        yield (
            f"{who}: {model} returned no tensor at token {first[model]}, and what it returned "
            "instead was not recorded: dump it again"
        )
