"""Finds where a divergence began: walks the data flow of both runs and parts causes from heirs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dumpcmp.align.listing import Listing
from dumpcmp.align.synonyms import keeps_elements
from dumpcmp.comparing.laying import like
from dumpcmp.comparing.taping import tensor_of
from dumpcmp.comparing.visits import RowGradient, RowNode, Visit, strongest
from dumpcmp.nouns.key import ROOT, Key, Op, Site
from dumpcmp.nouns.op_names import BACKWARD
from dumpcmp.nouns.replay import Origin
from dumpcmp.nouns.row import Judgement, Row, Verdict, Why


def blame(rows: Sequence[Row], golden: Listing, target: Listing) -> list[Row]:
    """Mark the roots among `rows`, which are in execution order, and name the others' causes.

    A call is a root where it did something wrong with what it was given. Of one that could not be
    run again, that is supposed where all that it was given agrees and what it gave out does not. A
    value from outside is a root where nothing diverged before, or where it is known to be another.
    A call that only one side has is one where what it was given agrees, what took its output does
    not, and nothing that was measured explains that; where it only fetches a weight or a constant,
    it is the call that computes with it. A module inherits from what is inside.
    """
    return blame_after(None, rows, golden, target)[0]


def blame_after(
    before: Row | None, rows: Sequence[Row], golden: Listing, target: Listing
) -> tuple[list[Row], Row | None]:
    """The same of later steps, where `before` is the latest root of all earlier ones.

    Gives the latest root of these steps, too.
    """
    flow = _Flow.of(rows, golden, target)
    if before is not None:
        flow.add_root(RowNode(before, Visit(before.key.site)))
    for step in sorted(flow.steps):  # what backward made wrong in one, the next begins with
        flow.forward(flow.steps[step])
        flow.backward(flow.steps[step])
    latest, idle, unread = flow.latest_root, flow.idle_roots(), flow.unread_roots()
    blamed = [_blamed(value, target, idle, unread) for value in flow.values]
    return blamed, latest.row if latest else None


def in_order(roots: Iterable[Row]) -> list[Row]:
    """`roots`, which are in the order of rows, as they came about: step by step, backward last.

    The backward pass runs against the order of the rows. What a parameter's gradient is in the
    end is known after it. Ops of the pass itself, which the dispatcher shows, ran when the
    gradients in their module came about. What could not be read may be a root: it comes after those
    of its step that are.
    """
    listed = list(enumerate(roots))
    passed = {
        (row.key.step, row.key.op.module): -index
        for index, row in listed
        if row.key.slot.is_gradient
    }

    def when(item: tuple[int, Row]) -> tuple[int, bool, bool, bool, float]:
        index, row = item
        key, slot = row.key, row.key.slot
        at = -index if slot.is_gradient else index
        if _is_backward(key) and not slot.is_gradient:
            at = passed.get((key.step, key.op.module), -len(listed))
        is_unread = row.verdict is Verdict.ERROR
        return key.step, is_unread, _is_backward(key), slot.is_parameter_gradient, at

    return [row for _, row in sorted(listed, key=when)]


@dataclass(frozen=True, slots=True)
class _KnownOfRoots:
    """What is known of the roots of a run when those that only lead to others are sought."""

    covered: Container[Key]  # what is, in any layer
    measured: Mapping[tuple[int, bool], RowNode]  # the first that both sides have, of each pass
    founded: Mapping[tuple[int, bool], RowNode]  # that is made of more than weights and constants
    made_alone: Mapping[RowNode, Sequence[RowNode]]  # by root: what one side alone made of it


@dataclass(eq=False, slots=True)
class _Flow:
    """The values and calls of both runs in order, and the roots that were found among them."""

    values: list[RowNode]
    steps: dict[int, list[Visit]]
    golden_links: Mapping[Key, Key]
    target_links: Mapping[Key, Key]
    mattering: set[RowNode] = field(default_factory=set)
    roots: list[RowNode] = field(default_factory=list)  # in the order in which they were found
    taken: Mapping[Visit, Sequence[RowNode]] = field(default_factory=dict)  # by functions
    unfounded: set[RowNode] = field(default_factory=set)  # made of nothing that both sides have
    laid_out: set[RowNode] = field(default_factory=set)  # weights, of which nothing was computed

    @classmethod
    def of(cls, rows: Sequence[Row], golden: Listing, target: Listing) -> _Flow:
        """Link the rows; what golden lacks of a call is a call apart."""
        calls: dict[tuple[Site, bool], Visit] = {}
        values: list[RowNode] = []
        ours: dict[Key | None, RowNode] = {}
        theirs: dict[Key | None, RowNode] = {}
        for row in rows:
            site = row.key.site
            call = calls.setdefault((site, row.golden_key is not None), Visit(site))
            values.append(RowNode(row, call))
            call.values.append(values[-1])
            ours.setdefault(row.golden_key, values[-1])
            theirs.setdefault(row.target_key, values[-1])
        for value in values:
            one, other = value.row.golden_key, value.row.target_key
            before = golden.links.get(one) if one else None
            beside = target.origins(other) if other else ()
            found = [ours.get(before) if before else None, *map(theirs.get, beside)]
            value.sources = [s for s in dict.fromkeys(found) if s is not None and s is not value]
            for source in value.sources:
                source.takers.append(value)
        steps: dict[int, list[Visit]] = defaultdict(list)
        for call in calls.values():
            steps[call.site.step].append(call)
        taken = {
            call: _inputs(site, golden, ours) if is_ours else _inputs(site, target, theirs)
            for (site, is_ours), call in calls.items()
            if not site.op.is_module
        }
        return cls(values, dict(steps), golden.links, target.links, _mattering(values), taken=taken)

    def add_root(self, value: RowNode) -> RowNode:
        self.roots.append(value)
        value.cause = value
        return value

    @property
    def latest_root(self) -> RowNode | None:
        measured = (root for root in reversed(self.roots) if not root.is_alone)
        return next(measured, self.roots[-1] if self.roots else None)

    def idle_roots(self) -> dict[RowNode, RowNode]:
        """Calls of one side alone that are no roots, and those that are in their stead.

        They are weights that are laid out anew; or made of constants alone, such as another way to
        a table or a mask; or their likes in other layers are covered.
        """
        known = _KnownOfRoots(
            {like(v.row.key) for v in self.values if v.row.verdict is Verdict.COVERED},
            self._firsts(lambda root: not root.is_alone),
            self._firsts(lambda root: not self._is_slight(root)),
            self._made_alone(),
        )
        found = ((root, self._instead_of(root, known)) for root in self.roots if root.is_alone)
        return {root: other for root, other in found if other is not None}

    def unread_roots(self) -> set[RowNode]:
        """Values that could not be read, and that nothing which was measured fails from.

        Nobody knows whether they differ: no divergence began there.
        """
        unread = {root for root in self.roots if root.is_unread}
        if not unread:
            return unread
        heirs = (value for value in self.values if value.fails and not value.is_unread)
        return unread - {heir.cause for heir in heirs if heir.cause is not None}

    def _instead_of(self, root: RowNode, known: _KnownOfRoots) -> RowNode | None:
        """What is wrong where `root`, which one side alone has, only leads there.

        That was measured, in no later pass if anything was; or no other layer has it; or it is made
        of `root` and of more.
        """
        key, unfounded = root.row.key, root in self.unfounded
        measured, is_covered = _first_until(key, known.measured), like(key) in known.covered
        if root in self.laid_out:
            return self._meeting(root, known) or measured
        if not unfounded and not is_covered:
            return None
        found = measured or (_first_until(key, known.founded) if unfounded else None)
        found = found or (self._stranger(root, known) if is_covered else None)
        found = found or (self._meeting(root, known) if unfounded else None)
        return found or known.measured.get((key.step, True))

    def _firsts(self, counts: Callable[[RowNode], bool]) -> dict[tuple[int, bool], RowNode]:
        """The first root that `counts`, of each step: forward, and backward."""
        found: dict[tuple[int, bool], RowNode] = {}
        for root in filter(counts, self.roots):
            found.setdefault((root.row.key.step, _is_backward(root.row.key)), root)
        return found

    def _made_alone(self) -> dict[RowNode, list[RowNode]]:
        """What calls of one side alone made that fails, by the root that it fails from."""
        found: dict[RowNode, list[RowNode]] = defaultdict(list)
        for value in self.values:
            if value.cause and value.is_alone and value.fails and not value.is_input:
                found[value.cause].append(value)
        return found

    def _is_slight(self, value: RowNode) -> bool:
        """Whether it is made of constants alone, or is a weight that is laid out anew."""
        return value in self.unfounded or value in self.laid_out

    def _meeting(self, root: RowNode, known: _KnownOfRoots) -> RowNode | None:
        """The first that one side alone made of what `root` is and of what came in the step."""
        for value in known.made_alone.get(root, ()):
            matters = value in self.mattering and not value.is_gradient
            if matters and not self._is_slight(value):
                value.cause = value
                return value
        return None

    def _stranger(self, root: RowNode, known: _KnownOfRoots) -> RowNode | None:
        """The first that one side alone made of what `root` is and that no other layer has."""
        for value in known.made_alone.get(root, ()):
            if like(value.row.key) not in known.covered:
                value.cause = value
                return value
        return None

    def forward(self, calls: Sequence[Visit]) -> None:
        """Visit each call of a step when it begins, and each module once more when it ends."""
        open_modules: list[Visit] = []
        for call in calls:
            foreign = call.is_foreign
            while not foreign and open_modules and not open_modules[-1].holds(call):
                self._leave(open_modules.pop())
            call.num_roots = len(self.roots)
            self._enter(call)
            if call.site.op.is_module and not foreign:
                open_modules.append(call)
            else:
                self._leave(call)
        while open_modules:
            self._leave(open_modules.pop())

    def _enter(self, call: Visit) -> None:
        """Find out why inputs fail: what they inherit from, or that they are roots themselves."""
        for value in call.forward:
            if not value.is_input:
                continue
            if value.is_alone and not value.begins:
                value.cause = value.inherited
            elif value.fails:
                value.cause = self._cause_of_input(value)
            call.cause = strongest((call.cause, value.cause))
            value.upstream = value.cause or _upstream_of(value, None)
            call.upstream = call.upstream or value.upstream

    def _cause_of_input(self, value: RowNode) -> RowNode:
        if value.begins:
            made = self._added(value)
            return (made.cause or self.add_root(made)) if made else self.add_root(value)
        before = None if value.sources else self.latest_root
        if value.is_heir:
            before = before or _upstream_of(value, None) or self.latest_root
        return value.inherited or before or self.add_root(value)

    def _added(self, value: RowNode) -> RowNode | None:
        """What a call of the target alone made of values that agree, and gave to this one.

        Nothing was wrong with the input, then: the call is one too many.
        """
        for source in value.sources:
            alone = source.is_alone and source.row.golden_key is None and not source.is_hidden
            taken = self.taken.get(source.call, ()) if alone and not source.is_input else ()
            if taken and not any(v.fails and not v.is_alone for v in taken):
                return source
        return None

    def _leave(self, call: Visit) -> None:
        """Find out why outputs fail: by their inputs, by what ran inside, or here."""
        if not call.site.op.is_module and not self._is_founded(call):
            self.unfounded.update(call.outputs)
        elif self._lays_out_weights(call):
            self.laid_out.update(call.outputs)
        if call.is_alone:
            self._leave_alone(call)
            return
        for value in call.outputs:
            if value.fails:
                value.cause = self._cause_of_output(value, call)
                call.cause = strongest((call.cause, value.cause))
            elif value.row.verdict is Verdict.FUSED:
                value.cause = call.cause
            value.upstream = value.cause or _upstream_of(value, call)

    def _cause_of_output(self, value: RowNode, call: Visit) -> RowNode:
        if value.begins:
            return self.add_root(value)
        cause = strongest((value.inherited, call.cause))
        if value.is_heir:
            cause = cause or _upstream_of(value, call) or self.latest_root
        if (cause is None or cause.is_unread) and len(self.roots) > call.num_roots:
            cause = self.roots[-1]  # something inside this module
        given = any(other.is_input for other in call.forward)
        before = None if given else self.latest_root
        return cause or before or self.add_root(value)

    def _is_founded(self, call: Visit) -> bool:
        """Whether a function took anything that came to both sides, or was made of such."""
        return any(
            source not in self.unfounded and not (source.is_alone and source.comes_from_outside)
            for source in self._taken_from(call)
        )

    def _lays_out_weights(self, call: Visit) -> bool:
        """Whether a function computes nothing, and took weights or such as it gives out."""
        taken = self._taken_from(call)
        is_plain = all(value.row.key.slot.is_weight or value in self.laid_out for value in taken)
        return is_plain and bool(taken) and keeps_elements(call.site.op.function)

    def _taken_from(self, call: Visit) -> list[RowNode]:
        """What a function took, where that was given out."""
        return [source for v in self.taken.get(call, ()) for source in v.sources or [v]]

    def _leave_alone(self, call: Visit) -> None:
        """A call that only one side has: a root, if it matters and what it was given agrees."""
        hidden = all(value.is_hidden or not value.fails for value in call.outputs)
        matters = any(value in self.mattering for value in call.outputs)
        if call.cause is None and not hidden and matters:
            inside = len(self.roots) > call.num_roots
            call.cause = self.roots[-1] if inside else self.add_root(call.outputs[0])
        for value in call.forward:
            value.cause = value.cause or call.cause

    def backward(self, calls: Sequence[Visit]) -> None:
        """Visit the gradients of a step as the backward pass came by them."""
        for gradient in self._gradients_of(calls):
            gradient.cause = self._cause_of_gradient(gradient)
            gradient.upstream = gradient.cause or gradient.before
            for value in gradient.values:
                if value.fails or value.row.verdict is Verdict.FUSED:
                    value.cause = gradient.cause

    def _gradients_of(self, calls: Sequence[Visit]) -> list[RowGradient]:
        """The gradients of a step; first those of what the forward pass used last."""
        found: dict[tuple[Key | None, Key], RowGradient] = {}
        for value in (value for call in calls for value in call.values if value.is_gradient):
            value.gradient = found.setdefault(self._tensor(value), RowGradient())
            value.gradient.values.append(value)
        functions: dict[str, list[Visit]] = defaultdict(list)
        for call in calls:
            if not call.site.op.is_module:
                functions[call.site.op.module].append(call)
        for gradient in found.values():
            gradient.calls = _calls_of(gradient, functions)
        place = {call: index for index, call in enumerate(calls)}
        return sorted(found.values(), key=lambda gradient: gradient.when(place), reverse=True)

    def _tensor(self, gradient: RowNode) -> tuple[Key | None, Key]:
        """Names the tensor that `gradient` is of."""
        key, links = gradient.row.golden_key, self.golden_links
        if key is None:
            key, links = gradient.row.key, self.target_links
        known = {key.site.key(value.row.key.slot) for value in gradient.call.forward}
        return tensor_of(key, links, known)

    def _cause_of_gradient(self, gradient: RowGradient) -> RowNode | None:
        """Why it fails: here, by what its calls were given in either pass, or from outside."""
        failing = gradient.failing
        if any(value.begins for value in failing):
            return self.add_root(gradient.culprit)
        cause = gradient.given_cause or (gradient.value_cause if gradient.fails else None)
        if cause is None and gradient.fails and not gradient.given:
            cause = self._cause_outside(gradient)
        if cause is None and failing and all(value.is_heir for value in failing):
            cause = gradient.before or self.latest_root
        return cause or (self.add_root(failing[0]) if failing else None)

    def _cause_outside(self, gradient: RowGradient) -> RowNode | None:
        """Why it fails where nobody was seen to give it: it comes from a loss, say.

        A loss depends on what the model gave out, and is later in the step.
        """
        key = gradient.values[0].row.key
        roots = (call for call in self.steps[key.step] if call.site[:3] == (*key.site[:2], ROOT))
        results = [value for call in roots for value in call.outputs]
        is_reached = not results or any(value.cause for value in results)
        return next(
            (
                root
                for root in reversed(self.roots)
                if root.row.key.step == key.step and (is_reached or root.is_gradient)
            ),
            None,
        )


def _first_until(key: Key, firsts: Mapping[tuple[int, bool], RowNode]) -> RowNode | None:
    """The first of the step of `key`, in no later pass than its own."""
    passes = (False, True) if _is_backward(key) else (False,)
    return next((firsts[key.step, each] for each in passes if (key.step, each) in firsts), None)


def _is_backward(key: Key) -> bool:
    """Whether it came about in the backward pass: a gradient, or an op that autograd ran."""
    return key.slot.is_gradient or key.op.function.startswith(BACKWARD)


def _calls_of(gradient: RowGradient, functions: Mapping[str, Sequence[Visit]]) -> list[Visit]:
    """The calls that gave `gradient` out; functions first.

    Where a parameter's is known at its module alone, they are the functions of that module.
    """
    givers = [value for value in gradient.values if value.is_giver]
    found = list(dict.fromkeys(value.call for value in givers))
    if givers and all(value.row.key.slot.is_parameter_gradient for value in givers):
        modules = dict.fromkeys(value.call.site.op for value in givers)
        found += [call for module in modules for call in functions.get(module, ())]
    return sorted(found, key=lambda call: call.site.op.is_module)


def _upstream_of(value: RowNode, call: Visit | None) -> RowNode | None:
    """A root on the way to `value`, which `call` gave out; none where its bits are golden's."""
    if value.row.origin is Origin.EQUAL:
        return None
    found = next((source.upstream for source in value.sources if source.upstream), None)
    return found or (call.upstream if call else None)


def _inputs(site: Site, listing: Listing, nodes: Mapping[Key | None, RowNode]) -> list[RowNode]:
    """What a call of one run took, wherever the rows of it stand."""
    keys = listing.sites.get(site, ())
    return [nodes[key] for key in keys if key.slot.is_input and key in nodes]


def _mattering(values: Iterable[RowNode]) -> set[RowNode]:
    """The values that something which both sides have and which fails took, at any remove."""
    found: set[RowNode] = set()
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


def _blamed(
    value: RowNode, target: Listing, idle: Mapping[RowNode, RowNode], unread: Container[RowNode]
) -> Row:
    """The row with what was found out about it."""
    row, cause = value.row, value.cause
    if cause is value and value in unread:
        return row
    if cause is not None and cause in idle:
        cause = None if value.is_alone else idle[cause]
    if cause is value:
        row = replace(row, judgement=_judged_at_start(value))
        return replace(row, root=True, **_shared(row, target))
    inherited = cause.row.key if cause and value.fails else None
    return row if row.cause == inherited else row.caused_by(inherited)


def _judged_at_start(value: RowNode) -> Judgement:
    """The judgement on a root; of a gradient that is golden's fault, wherever its row stands."""
    same = value.gradient.values if value.gradient else ()
    faults = (one.row.judgement for one in same if one.row.judgement.why is Why.GOLDEN)
    return next(faults, value.row.judgement)


def _shared(row: Row, target: Listing) -> dict[str, Any]:
    """The kernel that stores a root, and the ops in it that store nothing: any may be meant."""
    call = target.call(row.target_key) if row.target_key else None
    if call is None or row.key.slot.is_gradient or row.judgement.why is Why.LEAF:
        return {}
    sites = [
        Site(call.model, call.step, Op(op), int(number))
        for op, _, number in (origin.rpartition("#") for origin in call.origins)
    ]
    silent = [s for s in sites if not any(key.slot.is_output for key in target.sites.get(s, ()))]
    return {"kernel": call.kernel, "suspects": tuple(f"{s.op}#{s.call}" for s in silent)}
