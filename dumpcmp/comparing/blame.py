"""Finds where a divergence began: walks the data flow of both runs and parts causes from heirs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dumpcmp.align.listing import Listing
from dumpcmp.nouns.key import Key, Op, Site
from dumpcmp.nouns.row import Row, Verdict, Why


def blame(rows: Sequence[Row], golden: Listing, target: Listing) -> list[Row]:
    """Mark the roots among `rows`, which are in execution order, and name the others' causes.

    A call is a root where all that it was given agrees and what it gave out does not. A value from
    outside is one where nothing diverged before. A call that only one side has is one where what
    it was given agrees and what took its output does not. A module inherits from what is inside.
    """
    flow = _Flow.of(rows, golden.links, target.links)
    flow.forward()
    flow.backward()
    return [_blamed(value, target) for value in flow.values]


@dataclass(eq=False, slots=True)
class _Node:
    """A row while its cause is sought: the earlier values that it is, and the later ones."""

    row: Row
    call: _Visit
    sources: list[_Node] = field(default_factory=list)
    takers: list[_Node] = field(default_factory=list)
    cause: _Node | None = None  # the root that it fails from, which may be itself

    @property
    def fails(self) -> bool:
        return self.row.verdict.fails

    @property
    def is_alone(self) -> bool:
        """Whether only one side has the value."""
        return self.row.golden_key is None or self.row.target_key is None

    @property
    def is_input(self) -> bool:
        return self.row.key.slot.is_input

    @property
    def is_gradient(self) -> bool:
        return self.row.key.slot.is_gradient

    @property
    def is_hidden(self) -> bool:
        """Whether the target computes it inside a kernel: what stores its result is blamed."""
        return self.row.verdict is Verdict.FUSED and self.row.judgement.why is not Why.REMOVED

    @property
    def inherited(self) -> _Node | None:
        """Why a value that it is fails."""
        return next((source.cause for source in self.sources if source.cause), None)


@dataclass(eq=False, slots=True)
class _Visit:
    """One call of either run, and what is known of it while the walk is in it."""

    site: Site
    values: list[_Node] = field(default_factory=list)
    num_roots: int = 0  # roots that were known when it began
    cause: _Node | None = None  # why what it was given does not agree

    @property
    def forward(self) -> list[_Node]:
        return [value for value in self.values if not value.is_gradient]

    @property
    def outputs(self) -> list[_Node]:
        return [value for value in self.forward if not value.is_input]

    def holds(self, other: _Visit) -> bool:
        """Whether the call `other` can run inside this call of a module."""
        same_step = self.site[:2] == other.site[:2]
        return same_step and other.site.op.is_inside(self.site.op)


@dataclass(eq=False, slots=True)
class _Flow:
    """The values and calls of both runs in order, and the roots that were found among them."""

    values: list[_Node]
    calls: list[_Visit]
    mattering: set[_Node] = field(default_factory=set)
    roots: list[_Node] = field(default_factory=list)  # in the order in which they were found

    @classmethod
    def of(
        cls, rows: Sequence[Row], golden_links: Mapping[Key, Key], target_links: Mapping[Key, Key]
    ) -> _Flow:
        """Link the rows; what golden lacks of a call is a call apart."""
        calls: dict[tuple[Site, bool], _Visit] = {}
        values: list[_Node] = []
        ours: dict[Key | None, _Node] = {}
        theirs: dict[Key | None, _Node] = {}
        for row in rows:
            site = row.key.site
            call = calls.setdefault((site, row.golden_key is not None), _Visit(site))
            values.append(_Node(row, call))
            call.values.append(values[-1])
            ours.setdefault(row.golden_key, values[-1])
            theirs.setdefault(row.target_key, values[-1])
        for value in values:
            golden, target = value.row.golden_key, value.row.target_key
            before = golden_links.get(golden) if golden else None
            beside = target_links.get(target) if target else None
            found = (ours.get(before) if before else None, theirs.get(beside) if beside else None)
            value.sources = [s for s in dict.fromkeys(found) if s is not None and s is not value]
            for source in value.sources:
                source.takers.append(value)
        return cls(values, list(calls.values()), _mattering(values))

    def add_root(self, value: _Node) -> _Node:
        self.roots.append(value)
        value.cause = value
        return value

    @property
    def latest_root(self) -> _Node | None:
        return self.roots[-1] if self.roots else None

    def forward(self) -> None:
        """Visit each call when it begins, and each module once more when it ends."""
        open_modules: list[_Visit] = []
        for call in self.calls:
            while open_modules and not open_modules[-1].holds(call):
                self._leave(open_modules.pop())
            call.num_roots = len(self.roots)
            self._enter(call)
            if call.site.op.is_module:
                open_modules.append(call)
            else:
                self._leave(call)
        while open_modules:
            self._leave(open_modules.pop())

    def _enter(self, call: _Visit) -> None:
        """Find out why inputs fail: what they inherit from, or that they are roots themselves."""
        for value in call.forward:
            if not value.is_input:
                continue
            if value.is_alone:
                value.cause = value.inherited
            elif value.fails:
                value.cause = self._cause_of_input(value)
            call.cause = call.cause or value.cause

    def _cause_of_input(self, value: _Node) -> _Node:
        before = None if value.sources else self.latest_root
        return value.inherited or before or self.add_root(value)

    def _leave(self, call: _Visit) -> None:
        """Find out why outputs fail: by their inputs, by what ran inside, or here."""
        if call.forward and all(value.is_alone for value in call.forward):
            self._leave_alone(call)
            return
        for value in call.outputs:
            if value.fails:
                value.cause = self._cause_of_output(value, call)
                call.cause = call.cause or value.cause
            elif value.row.verdict is Verdict.FUSED:
                value.cause = call.cause

    def _cause_of_output(self, value: _Node, call: _Visit) -> _Node:
        cause = value.inherited or call.cause
        if cause is None and len(self.roots) > call.num_roots:  # something inside this module
            cause = self.roots[-1]
        given = any(other.is_input for other in call.forward)
        before = None if given else self.latest_root
        return cause or before or self.add_root(value)

    def _leave_alone(self, call: _Visit) -> None:
        """A call that only one side has: a root, if it matters and what it was given agrees."""
        hidden = all(value.is_hidden or not value.fails for value in call.outputs)
        matters = any(value in self.mattering for value in call.outputs)
        if call.cause is None and not hidden and matters:
            inside = len(self.roots) > call.num_roots
            call.cause = self.roots[-1] if inside else self.add_root(call.outputs[0])
        for value in call.forward:
            value.cause = value.cause or call.cause

    def backward(self) -> None:
        """Visit the gradients against the order of the forward pass, on which they depend."""
        gradients = [value for value in self.values if value.is_gradient]
        failed_before = self.latest_root
        for value in reversed(gradients):
            if value.sources:
                continue
            if value.fails:
                value.cause = failed_before or self._cause_of_gradient(value)
            elif value.row.verdict is Verdict.FUSED:
                value.cause = value.cause or _given_cause(value)
        for value in gradients:
            if value.fails:  # one that is an earlier value which agrees began here, if nothing did
                value.cause = value.cause or value.inherited or self.latest_root
                value.cause = value.cause or self.add_root(value)

    def _cause_of_gradient(self, value: _Node) -> _Node:
        return _given_cause(value) or self.add_root(next(_givers(value), value))


def _mattering(values: Iterable[_Node]) -> set[_Node]:
    """The values that something which both sides have and which fails took, at any remove."""
    found: set[_Node] = set()
    waiting = [s for value in values if value.fails and not value.is_alone for s in value.sources]
    while waiting:
        value = waiting.pop()
        if value in found:
            continue
        found.add(value)
        if not value.is_input:  # then so do the values that a call of one side alone took
            taken = (other for other in value.call.values if other.is_alone)
            waiting += [source for other in taken for source in other.sources]
    return found


def _givers(gradient: _Node) -> Iterator[_Node]:
    """The rows of `gradient` at the calls whose backward pass gave it out."""
    rows = (*gradient.takers, gradient)
    return (value for value in rows if value.row.key.slot.kind != "grad_output")


def _given_cause(gradient: _Node) -> _Node | None:
    """Why what those calls were given in the backward pass does not agree."""
    for giver in _givers(gradient):
        for other in giver.call.values:
            if other.row.key.slot.kind == "grad_output" and other is not gradient:
                cause = other.cause or other.inherited
                if cause is not None:
                    return cause
    return None


def _blamed(value: _Node, target: Listing) -> Row:
    """The row with what was found out about it."""
    row = value.row
    if value.cause is value:
        return replace(row, root=True, **_shared(row, target))
    return replace(row, cause=value.cause.row.key if value.cause and value.fails else None)


def _shared(row: Row, target: Listing) -> dict[str, Any]:
    """The kernel that stores a root, and the ops in it that store nothing: any may be meant."""
    call = target.call(row.target_key) if row.target_key else None
    if call is None or row.key.slot.is_gradient:
        return {}
    sites = [
        Site(call.model, call.step, Op(op), int(number))
        for op, _, number in (origin.rpartition("#") for origin in call.origins)
    ]
    silent = [s for s in sites if not any(key.slot.is_output for key in target.sites.get(s, ()))]
    return {"kernel": call.kernel, "suspects": tuple(f"{s.op}#{s.call}" for s in silent)}
