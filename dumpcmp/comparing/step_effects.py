"""The effects of one step of both runs, each beside the one that it is in the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dumpcmp.align.counting import Counting
from dumpcmp.comparing.side import EffectCalls, Side, StepName
from dumpcmp.nouns.effects import Effect, tree_of
from dumpcmp.nouns.given import argument_tree
from dumpcmp.nouns.key import Op
from dumpcmp.nouns.record import Call

_OF_PARTS = frozenset((Effect.RESULT.op, Effect.INPUTS.op))
EffectName = tuple[Op, int, str]  # within its step: op, number, and of training its kind


@dataclass(frozen=True)
class StepEffects:
    """The effects of one step of golden and of the target's that is the same."""

    golden_name: StepName | None
    target_name: StepName | None
    golden: EffectCalls
    target: EffectCalls
    is_split: bool = False  # a microbatch of the one is no part of the other

    @cached_property
    def _calls(self) -> tuple[dict[EffectName, dict[int, Call]], dict[EffectName, dict[int, Call]]]:
        """The effects of both sides by name and rank."""
        golden, target = _by_name(self.golden), _by_name(self.target)
        return golden, _with_names_of(golden, target)

    @cached_property
    def named(self) -> list[EffectName]:
        """All effects that either side has, golden's first."""
        return list(dict.fromkeys(name for side in self._calls for name in side))

    def of(self, named: EffectName) -> tuple[dict[int, Call], dict[int, Call]]:
        """One effect on both sides, by rank.

        What a microbatch returned stands beside what the other side's first one did, if they are
        others.
        """
        found = self._calls[0].get(named, {}), self._calls[1].get(named, {})
        if not self.is_split or named[0] not in _OF_PARTS:
            return found
        first = (named[0], 0, named[2])
        return found[0] or self._calls[0].get(first, {}), found[1] or self._calls[1].get(first, {})

    def sides_with(self, effect: Effect) -> tuple[bool, bool]:
        """Whether either side has effects of this kind."""
        has = [any(c.op == effect.op for one in side.values() for c in one)
               for side in (self.golden, self.target)]  # fmt: skip
        return has[0], has[1]

    @property
    def is_paired(self) -> bool:
        """Whether both sides have the step."""
        return self.golden_name is not None and self.target_name is not None


def _by_name(side: EffectCalls) -> dict[EffectName, dict[int, Call]]:
    found: dict[EffectName, dict[int, Call]] = {}
    for rank, calls in side.items():
        numbers: Counter[str] = Counter()
        for call in calls:
            kind = ""
            number = call.call
            if call.op == Effect.TRAINING.op:  # one run may clip where the other does not
                kind = str(first_tree(call).get("object", ""))
                number = numbers[kind]
                numbers[kind] += 1
            found.setdefault((call.op, number, kind), {})[rank] = call
    return found


def _with_names_of(
    golden: Mapping[EffectName, dict[int, Call]], target: Mapping[EffectName, dict[int, Call]]
) -> dict[EffectName, dict[int, Call]]:
    """`target`, where what steers training is of another class, by the name of golden's.

    They have settings in common, such as the learning rate, and each side has one of them alone.
    """
    found = dict(target)
    alone = [name for name in golden if name[0] == Effect.TRAINING.op and name not in target]
    for name in [name for name in target if name not in golden]:
        others = [other for other in alone if name[0] == other[0]]
        settings = _settings(target[name])
        beside = next((each for each in others if settings & _settings(golden[each])), None)
        if beside is not None:
            alone.remove(beside)
            found = {beside if key == name else key: calls for key, calls in found.items()}
    return found


def _settings(calls: Mapping[int, Call]) -> set[str]:
    return {leaf.path for call in calls.values() for leaf in tree_of(call).leaves}


def steps_together(golden: Side, target: Side, counting: Counting) -> list[StepEffects]:
    """The steps of both sides with their effects, each beside the one that it is in the other."""
    terms = {
        (counting.names.get(model, model), counting.in_golden_terms(model, step)): (model, step)
        for model, step in target.effects
    }
    found = []
    for name, calls in golden.effects.items():
        mine = terms.get(name)
        is_split = mine is not None and golden.num_parts(name) != target.num_parts(mine)
        others = target.effects[mine] if mine is not None else {}
        found.append(StepEffects(name, mine, calls, others, is_split))
    left = [name for term, name in terms.items() if term not in golden.effects]
    return found + [StepEffects(None, name, {}, target.effects[name]) for name in left]


def first_tree(call: Call) -> Mapping[str, Any]:
    """The tree of a call, where it is an object."""
    given = argument_tree(call).get("args", [])
    return given[0] if given and isinstance(given[0], dict) else {}
