"""Judges effects of two runs by what they hold by value: a row for each.

Tensors that an effect has of its own are pairs like others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dumpcmp.align.counting import Counting
from dumpcmp.archive.read.reader import Archive
from dumpcmp.comparing.effect_facts import (
    first_generators,
    last_recorded,
    last_step,
    records_effects,
)
from dumpcmp.comparing.requests import Asking
from dumpcmp.comparing.rounding_spread import Spread
from dumpcmp.comparing.side import Side
from dumpcmp.comparing.step_effects import EffectName, StepEffects, first_tree, steps_together
from dumpcmp.comparing.tree_differences import (
    LeafDifference,
    NumberRule,
    TrainingRule,
    TreeComparison,
    compare_trees,
)
from dumpcmp.nouns.effects import (
    Effect,
    EffectTree,
    TreeLeafKind,
    effect_of,
    parts_of_effect,
    tree_of,
)
from dumpcmp.nouns.given import argument_tree
from dumpcmp.nouns.key import ROOT, Key, Op, Site
from dumpcmp.nouns.record import Call
from dumpcmp.nouns.row import Judgement, PairedBy, Row, Verdict, Why

_NUMBER = re.compile(r"[-+]?\d+\.\d+(?:[eE][-+]?\d+)?")
_INTERRUPTS = ("builtins.KeyboardInterrupt", "builtins.SystemExit")  # from outside of the model
_RETURNED = (Effect.RESULT, Effect.YIELDED)


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
    spread: Spread = field(default_factory=Spread)
    chosen: Any = None  # whether integers that differ are what another choice gave: `ChosenNumbers`

    def rows(self) -> Iterator[Row]:
        """A row for each effect that holds anything by value, or that one side alone has."""
        for step in steps_together(self.golden, self.target, self.counting):
            for named in step.named:
                ours, theirs = step.of(named)
                finding = self._finding(step, named, ours, theirs)
                if finding is not None:
                    yield _row(named, ours, theirs, finding)

    def _finding(
        self, step: StepEffects, named: EffectName, ours: Mapping[int, Call],
        theirs: Mapping[int, Call],
    ) -> EffectFinding | None:  # fmt: skip
        effect = effect_of(named[0])
        if effect is None:
            said = f"effects of the kind {named[0].function!r} are not known"
            return EffectFinding(Verdict.INCONCLUSIVE, said)
        sides = self.golden.archive, self.target.archive
        if not all(records_effects(side, effect) for side in sides):
            return self._beside_others(effect, ours, theirs)
        if effect.is_of_end and (said := self._other_end(ours, theirs)):
            return EffectFinding(Verdict.SKIPPED, said)
        if effect is Effect.STATE:
            return None  # it has rows of its own
        if effect is Effect.GENERATORS:
            return self._of_generators(ours, theirs)
        if ours and theirs:
            return self._of_both(effect, ours, theirs, step.is_split)
        if not step.is_paired:
            return self._alone_in_step(effect, named, ours, theirs)
        return self._alone(effect, step, ours, theirs)

    def _other_end(self, ours: Mapping[int, Call], theirs: Mapping[int, Call]) -> str:
        """Why the ends of both runs are not to be compared; empty where they are."""
        call = next(iter({**theirs, **ours}.values()))
        golden = call.model if ours else self.counting.names.get(call.model, call.model)
        names = {name: mine for mine, name in self.counting.names.items()}
        mine = names.get(call.model, call.model) if ours else call.model
        for step, said in (
            (last_step, f"golden's run of {golden} ended after token {{}}, mine after {{}}"),
            (last_recorded, "golden's end is recorded with token {}, mine with {}"),
        ):
            ends = step(self.golden, golden), step(self.target, mine)
            if ends[0] != self.counting.in_golden_terms(mine, ends[1]):
                return said.format(*ends)
        return ""

    def _of_generators(
        self, ours: Mapping[int, Call], theirs: Mapping[int, Call]
    ) -> EffectFinding | None:
        """Generators that began alike must end alike; those that did not tell nothing."""
        if self.golden.facts.num_ranks != self.target.facts.num_ranks:
            return EffectFinding(Verdict.SKIPPED, "each rank has generators of its own")
        found: list[EffectFinding] = []
        for rank in {**ours, **theirs}:
            sides = [_generators(side.archive, rank, calls.get(rank))
                     for side, calls in ((self.golden, ours), (self.target, theirs))]  # fmt: skip
            for name in {**sides[0], **sides[1]}:
                one, other = (side.get(name, _Generator()) for side in sides)
                if one.ended == other.ended:
                    found.append(EffectFinding(Verdict.PASS))
                elif one.began != other.began:
                    said = f"the {name} generators began in different states"
                    found.append(EffectFinding(Verdict.SKIPPED, said))
                else:
                    said = f"the {name} generator ends in another state in golden than in mine"
                    found.append(EffectFinding(Verdict.FAIL, f"{said}, though they began alike"))
        return max(found, key=lambda one: _BADNESS.get(one.verdict, 0), default=None)

    def _of_both(
        self, effect: Effect, ours: Mapping[int, Call], theirs: Mapping[int, Call], is_split: bool
    ) -> EffectFinding | None:
        """The first rank that differs; where the numbers of ranks differ nobody knows what fits.

        Nor where one side `is_split` into microbatches: what it does at the end of a step is known.
        """
        is_alike = self.golden.facts.num_ranks == self.target.facts.num_ranks
        is_part = is_split and effect in (*_RETURNED, Effect.INPUTS)
        first = next(iter(ours.values()))
        found: list[EffectFinding] = []
        for rank, call in theirs.items():
            beside = ours.get(rank, first) if is_alike else first
            one = self._of_calls(effect, beside, call)
            if is_part and (one is None or not one.verdict.fails):
                one = _of_its_own(beside, call) or one
            if one is None:
                continue
            if one.verdict.fails and (is_part or not is_alike):
                word = "rank" if not is_alike else "microbatch"
                said = f"{one.reason}; a {word} may return what belongs to its own share"
                one = EffectFinding(Verdict.INCONCLUSIVE, said)
            if one.reason and len(theirs) > 1:
                one = replace(one, reason=f"rank {rank}: {one.reason}")
            found.append(one)
        return max(found, key=lambda one: _BADNESS.get(one.verdict, 0), default=None)

    def _of_calls(self, effect: Effect, ours: Call, theirs: Call) -> EffectFinding | None:
        if (
            effect is Effect.EXCEPTION
            or "exception" in first_tree(ours)
            or "exception" in first_tree(theirs)
        ):
            return self._of_exceptions(ours, theirs)
        rule = self.rule
        if effect in (Effect.TRAINING, Effect.OPTIMIZER):
            rule = TrainingRule(self.spread.norms(rule.limit))
            if _kind_of(ours) != _kind_of(theirs):
                return self._of_other_kinds(ours, theirs, rule)
        found = self._of_trees(tree_of(ours), tree_of(theirs), rule)
        if found is not None and effect is Effect.TRAINING:
            return replace(found, reason=_of_object(found.reason, ours))
        return found

    def _of_other_kinds(self, ours: Call, theirs: Call, rule: NumberRule) -> EffectFinding:
        """What two classes say of training: numbers of one name, and the weights that they make.

        What one of them calls otherwise, or does not say, is no difference.
        """
        found = compare_trees(tree_of(ours), tree_of(theirs), rule)
        differing = [one for one in found.differences if one.is_of_numbers]
        if differing:
            return self._differing(replace(found, differences=differing))
        one, other = _object_of(ours), _object_of(theirs)
        one, other = (one, other) if one != other else (_kind_of(ours), _kind_of(theirs))
        said = f"golden trains with {one}, mine with {other}"
        sides = (self.golden.archive, self.target.archive)
        has_weights = all(records_effects(side, Effect.STATE) for side in sides)
        return EffectFinding(Verdict.SKIPPED if has_weights else Verdict.INCONCLUSIVE, said)

    def _of_trees(
        self, golden: EffectTree, target: EffectTree, rule: NumberRule
    ) -> EffectFinding | None:
        found = compare_trees(golden, target, rule)
        if found.differences:
            return self._differing(found)
        if found.open:
            return EffectFinding(Verdict.INCONCLUSIVE, _and_more(found.open))
        if unseen := [one for one in found.alone if not self._is_seen(one)]:
            said = f"{unseen[0].said}; it was compared with nothing"
            return EffectFinding(Verdict.INCONCLUSIVE, said)
        if found.kept:
            is_cast = any(one.is_of_dtypes for one in found.kept)
            verdict = Verdict.DTYPE if is_cast else Verdict.PASS
            return EffectFinding(verdict, _and_more([one.said for one in found.kept]))
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
        if self.rule.limit and all(map(self.spread.may_be_rounding, found.differences)):
            told = f"{said}; no gradients are recorded that would tell whether that is rounding"
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
        one, other = first_tree(ours), first_tree(theirs)
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
            said = f"{who} forward {_raised(first_tree(call))}, {other} did not"
            stopped = (self.golden if ours else self.target).facts.stopped
            is_open = bool(stopped) or first_tree(call).get("exception") in _INTERRUPTS
            rank = next(iter(calls))
            said = f"rank {rank}: {said}" if stopped or len(calls) > 1 else said
            return EffectFinding(Verdict.INCONCLUSIVE if is_open else Verdict.FAIL, said)
        if any(step.sides_with(Effect.EXCEPTION)):
            return None  # which says it
        if effect is Effect.OPTIMIZER and _is_followed(self.golden if ours else self.target, call):
            said = f"{who} run went on with another optimizer of the same parameters"
            return EffectFinding(Verdict.SKIPPED, said)
        if effect in (Effect.TRAINING, Effect.OPTIMIZER):
            return self._steered_alone(effect, step, call, who, is_golden=bool(ours))
        if effect is Effect.INPUTS:
            return self._changed_alone(call, who, other, is_golden=bool(ours))
        if effect is Effect.YIELDED:
            said = f"{who} generator yields {_told(call)} where {other} has ended"
            return EffectFinding(Verdict.FAIL, said)
        if tree_of(call).is_all_tensors:
            return None  # whose rows say it
        said = f"{who} result is {_told(call)}; what {other} model returned was not recorded"
        return EffectFinding(Verdict.INCONCLUSIVE, said)

    def _steered_alone(
        self, effect: Effect, step: StepEffects, call: Call, who: str, *, is_golden: bool
    ) -> EffectFinding:
        """What one side alone shows of its training: the other may train without torch's tools."""
        said = f"only {who} run shows {_object_of(call)}"
        keeps = any(leaf.slot for leaf in tree_of(call).leaves)
        others = step.sides_with(effect)[1 if is_golden else 0]
        is_open = others or (effect is Effect.OPTIMIZER and keeps)
        return EffectFinding(Verdict.INCONCLUSIVE if is_open else Verdict.SKIPPED, said)

    def _changed_alone(
        self, call: Call, who: str, other: str, *, is_golden: bool
    ) -> EffectFinding | None:
        """Inputs that one side alone changed in place, as far as the other was given them, too."""
        parts = first_tree(call).get("parts", {})
        side = self.target if is_golden else self.golden
        given = [name for name in parts if _is_given(side, call, name, self.counting)]
        if not given:
            return None  # the other side has no such argument
        said = f"{who} forward changed its argument {given[0]!r} in place, {other} did not"
        return EffectFinding(Verdict.FAIL, said)

    def _alone_in_step(
        self,
        effect: Effect,
        named: EffectName,
        ours: Mapping[int, Call],
        theirs: Mapping[int, Call],
    ) -> EffectFinding | None:
        """An effect of a step that one side alone has."""
        calls, who, other = _who(ours, theirs)
        call = next(iter(calls.values()))
        if effect in _RETURNED and tree_of(call).is_all_tensors:
            return None
        asked = Asking.of((self.target if ours else self.golden).archive, self.counting)
        key = Key(call.model, call.step, *named[:2], "output")
        why = self.counting.why_alone(call.model, call.step, is_golden=bool(ours))
        if option := why or asked.leaves_out(key):
            return EffectFinding(Verdict.SKIPPED, f"not compared: {option}")
        is_plain = self.golden.facts.num_ranks == self.target.facts.num_ranks == 1
        said = f"{who} {effect} is {_told(call)}; {other} has no such step"
        return EffectFinding(Verdict.UNPAIRED if is_plain else Verdict.INCONCLUSIVE, said)

    def _beside_others(
        self, effect: Effect, ours: Mapping[int, Call], theirs: Mapping[int, Call]
    ) -> EffectFinding | None:
        """An effect that the other side's version, or way to capture, does not record."""
        calls, who, other = _who(ours, theirs)
        call = next(iter(calls.values()))
        if effect in _RETURNED and tree_of(call).is_all_tensors:
            return None
        if effect.is_of_end or effect is Effect.TRAINING:
            said = f"{who} {effect} was compared with nothing: {other} archive does not record it"
            return EffectFinding(Verdict.SKIPPED, said)
        said = f"{who} {effect} is {_told(call)}; {other} archive does not record it: dump it again"
        return EffectFinding(Verdict.INCONCLUSIVE, said)


def _is_followed(side: Side, call: Call) -> bool:
    """Whether an effect of this name was recorded in a later step as well."""
    later = (step for step in side.archive.steps(call.model) if step > call.step)
    return any(
        (other.op, other.call) == (call.op, call.call)
        for step in later
        for calls in side.archive.effects_at(call.model, step).values()
        for other in calls
    )


def _of_its_own(golden: Call, target: Call) -> EffectFinding | None:
    """What to say of tensors that no op gave out, and of which a microbatch has a part."""
    leaves = [leaf for call in (golden, target) for leaf in tree_of(call).leaves]
    own = [leaf for leaf in leaves if leaf.kind is TreeLeafKind.TENSOR and leaf.value == "slot"]
    if not own:
        return None
    said = f"{own[0].path} is of one microbatch, and was compared with nothing"
    return EffectFinding(Verdict.INCONCLUSIVE, said)


@dataclass(frozen=True, slots=True)
class _Generator:
    """A generator as a run began and ended."""

    began: Any = None
    ended: Any = None


def _generators(archive: Archive, rank: int, call: Call | None) -> dict[str, _Generator]:
    """The generators of a rank; one that drew nothing ended as it began."""
    began = first_generators(archive, rank)
    ended = (
        {name: told.get("dict", {}) for name, told in parts_of_effect(call).items()} if call else {}
    )
    found = {}
    for name in {**began, **ended}:
        first, last = began.get(name, {}), ended.get(name, began.get(name, {}))
        start = first.get("state") or ("seed", last.get("seed"))
        found[name] = _Generator(start, last.get("state"))
    return found


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


def _object_of(call: Call) -> str:
    """What steered training: an optimizer, a scaler, clipping."""
    return _kind_of(call).rpartition(".")[2]


def _kind_of(call: Call) -> str:
    """The same with the module that has it."""
    return str(first_tree(call).get("object", ""))


def _of_object(said: str, call: Call) -> str:
    """A difference in settings, with what has them: ``AdamW: groups[0]['lr'] is ...``."""
    kind = _object_of(call)
    return said.replace(f"{Effect.TRAINING}.", f"{kind}: ") if kind else said


def _who(ours: Mapping[int, Call], theirs: Mapping[int, Call]) -> tuple[Any, str, str]:
    """The side that has an effect, and what both are called."""
    return (ours, "golden's", "mine") if ours else (theirs, "my", "golden's")


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
    named: EffectName, ours: Mapping[int, Call], theirs: Mapping[int, Call],
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
