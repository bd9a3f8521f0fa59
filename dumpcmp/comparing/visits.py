"""The rows of a comparison while blame walks through them: values, calls, and gradients."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from dumpcmp.nouns.arithmetic import feeds_gradient
from dumpcmp.nouns.key import Site
from dumpcmp.nouns.replay import Origin
from dumpcmp.nouns.row import Row, Verdict, Why

# Faults, whatever came before.
_OWN = frozenset((Why.INTRODUCED, Why.GOLDEN, Why.LEAF, Why.CALL, Why.WIRED))
_INHERITING = frozenset((Origin.INHERITED, Origin.AMPLIFIED, Origin.FLIPPED))


@dataclass(eq=False, slots=True)
class RowNode:
    """A row while its cause is sought: the earlier values that it is, and the later ones."""

    row: Row
    call: Visit
    sources: list[RowNode] = field(default_factory=list)
    takers: list[RowNode] = field(default_factory=list)
    cause: RowNode | None = None  # the root that it fails from, which may be itself
    upstream: RowNode | None = None  # a root on the way to it, whether it fails or not
    gradient: RowGradient | None = None  # of a gradient: all that stand for the same one

    @property
    def begins(self) -> bool:
        """Whether it is a fault of its own, whatever came before."""
        return self.row.judgement.why in _OWN

    @property
    def is_heir(self) -> bool:
        """Whether it is known that its op is right, so that what differs was there before."""
        return self.row.origin in _INHERITING

    @property
    def fails(self) -> bool:
        return self.row.verdict.fails

    @property
    def is_alone(self) -> bool:
        """Whether only one side has the value."""
        return self.row.golden_key is None or self.row.target_key is None

    @property
    def is_unread(self) -> bool:
        """Whether a side of it could not be read, so that nobody knows whether they differ."""
        return self.row.verdict is Verdict.ERROR

    @property
    def is_input(self) -> bool:
        return self.row.key.slot.is_input

    @property
    def comes_from_outside(self) -> bool:
        """Whether no op of its run was seen to give it: a weight, a buffer, a plain tensor."""
        return self.is_input and not self.sources

    @property
    def is_gradient(self) -> bool:
        return self.row.key.slot.is_gradient

    @property
    def is_giver(self) -> bool:
        """Whether it is a gradient at a call whose backward pass gave it out."""
        return self.is_gradient and self.row.key.slot.kind != "grad_output"

    @property
    def is_hidden(self) -> bool:
        """Whether the target computes it inside a kernel: what stores its result is blamed."""
        return self.row.verdict is Verdict.FUSED and self.row.judgement.why is not Why.REMOVED

    @property
    def inherited(self) -> RowNode | None:
        """Why a value that it is fails."""
        return strongest(source.cause for source in self.sources)


def strongest(causes: Iterable[RowNode | None]) -> RowNode | None:
    """The first of `causes` that both sides have and that could be read, or else the first.

    What one side alone computes may be another way to the same: what was measured tells more.
    """
    found = [cause for cause in causes if cause is not None]
    measured = (cause for cause in found if not cause.is_alone and not cause.is_unread)
    return next(measured, found[0] if found else None)


@dataclass(eq=False, slots=True)
class Visit:
    """One call of either run, and what is known of it while the walk is in it."""

    site: Site
    values: list[RowNode] = field(default_factory=list)
    num_roots: int = 0  # roots that were known when it began
    cause: RowNode | None = None  # why what it was given does not agree
    upstream: RowNode | None = None  # a root on the way to what it was given

    @property
    def forward(self) -> list[RowNode]:
        return [value for value in self.values if not value.is_gradient]

    @property
    def outputs(self) -> list[RowNode]:
        return [value for value in self.forward if not value.is_input]

    @property
    def is_alone(self) -> bool:
        """Whether only one side has it."""
        return bool(self.forward) and all(value.is_alone for value in self.forward)

    @property
    def is_foreign(self) -> bool:
        """Whether golden has no such call, so that its name tells not what it ran inside of.

        What a collective of the target moved is golden's value, and yet no call of golden.
        """
        return all(value.row.key != value.row.golden_key for value in self.values)

    @property
    def grad_outputs(self) -> list[RowNode]:
        """What it was given in the backward pass."""
        return [value for value in self.values if value.row.key.slot.kind == "grad_output"]

    def holds(self, other: Visit) -> bool:
        """Whether the call `other` can run inside this call of a module."""
        same_step = self.site[:2] == other.site[:2]
        return same_step and other.site.op.is_inside(self.site.op)


@dataclass(eq=False, slots=True)
class RowGradient:
    """The gradient of one tensor: the rows that hold it, and the calls whose VJPs it is made of."""

    values: list[RowNode] = field(default_factory=list)
    calls: list[Visit] = field(default_factory=list)  # functions before modules
    cause: RowNode | None = None
    upstream: RowNode | None = None  # a root on the way to it, whether it fails or not

    @property
    def fails(self) -> bool:
        return any(value.fails for value in self.values)

    def when(self, place: Mapping[Visit, int]) -> float:
        """When the backward pass came by it, as a place in the forward pass."""
        if all(value.row.key.slot.is_parameter_gradient for value in self.values):
            return -1  # nothing depends on it
        used = [place[call] for call in self.calls if not call.site.op.is_module]
        return min(used, default=min(place[value.call] for value in self.values) + 0.5)

    @property
    def failing(self) -> list[RowNode]:
        """Its rows that fail at calls of both sides; first those of functions that gave it."""
        found = [value for value in self.values if value.fails and not value.call.is_alone]
        return sorted(found, key=lambda value: (value.call.site.op.is_module, not value.is_giver))

    @property
    def culprit(self) -> RowNode:
        """The failing row of the call that gave a wrong part of it, where that is known."""
        replays = [value.row.replay for value in self.failing if value.row.replay]
        named = {replay.blamed[0] for replay in replays if replay.blamed}
        at = (value for value in self.failing if str(value.call.site) in named and value.is_giver)
        return next(at, self.failing[0])

    @property
    def given(self) -> list[RowNode]:
        """What the calls that gave it out were given in the backward pass."""
        found = [value for call in self.calls for value in call.grad_outputs]
        return [value for value in found if value.gradient is not self]

    @property
    def given_cause(self) -> RowNode | None:
        """Why that fails, or another gradient that it is."""
        return strongest(other.cause for other in self._others)

    @property
    def before(self) -> RowNode | None:
        """A root on the way to what it is made of, backward or forward."""
        forward = (value.upstream for call in self.calls for value in call.forward)
        return strongest((*(other.upstream for other in self._others), *forward))

    @property
    def _others(self) -> list[RowGradient]:
        """The gradients that it is made of, or is."""
        same = (source for value in self.values for source in value.sources)
        found = [v.gradient for v in (*self.given, *same)]
        return [one for one in found if one is not None and one is not self]

    @property
    def value_cause(self) -> RowNode | None:
        """Why a value of the forward pass fails that it is computed from."""
        return strongest(value.cause for call in self.calls for value in self._feeding(call))

    def _feeding(self, call: Visit) -> Iterator[RowNode]:
        """The values of the forward pass that the backward pass of `call` makes it of."""
        own = [value.row.key.slot for value in call.values if value.gradient is self]
        for value in call.forward:
            slot, op = value.row.key.slot, call.site.op
            if value.cause and any(feeds_gradient(op, slot, one) for one in (own or (None,))):
                yield value
