"""Finds where a divergence began: walks the data flow of both runs and parts causes from heirs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from dumpcmp.nouns.key import ROOT, Key
from dumpcmp.nouns.row import Row, Verdict, Why

Links = Mapping[Key, Key]  # a value -> the earlier value of the same run that it is
Site = tuple[str, int, str, int, bool]  # a call: model, step, op, number; whether golden has it


def site_of(row: Row) -> Site:
    """The call that the value of `row` belongs to."""
    key = row.key
    return key.model, key.step, key.op, key.call, row.golden_key is not None


def is_hidden(row: Row) -> bool:
    """Whether the target computes the value inside a kernel: what stores its result is blamed."""
    return row.verdict is Verdict.FUSED and row.judgement.why is not Why.REMOVED


@dataclass(frozen=True, slots=True)
class Blamed:
    """All rows, each heir with its cause; and the rows where divergences began."""

    rows: tuple[Row, ...]
    roots: tuple[Row, ...]


def blame(rows: Iterable[Row], golden_links: Links, target_links: Links) -> Blamed:
    """Mark the roots among `rows`, which are in execution order, and name the others' causes.

    A call is a root where all that it was given agrees and what it gave out does not. A value from
    outside is one where nothing diverged before. A call that only one side has is one where what
    it was given agrees and what took its output does not. A module inherits from what is inside.
    """
    walk = _Walk(tuple(rows), golden_links, target_links)
    walk.forward()
    walk.backward()
    return walk.blamed()


@dataclass
class _Walk:
    """A walk over all calls in order, which knows of each failing row why it fails."""

    rows: tuple[Row, ...]
    golden_links: Links
    target_links: Links
    causes: dict[int, int] = field(default_factory=dict)  # failing row -> root row
    roots: list[int] = field(default_factory=list)  # in the order in which they were found
    golden_index: dict[Key, int] = field(default_factory=dict)
    target_index: dict[Key, int] = field(default_factory=dict)
    consumers: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    sites: dict[Site, list[int]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        for i, row in enumerate(self.rows):
            if row.golden_key:
                self.golden_index.setdefault(row.golden_key, i)
            if row.target_key:
                self.target_index.setdefault(row.target_key, i)
            self.sites[site_of(row)].append(i)
        for i in range(len(self.rows)):
            for source in self.sources(i):
                self.consumers[source].append(i)

    def sources(self, i: int) -> list[int]:
        """The rows of the earlier values that row `i` is, by the links of golden and target."""
        row = self.rows[i]
        golden = self.golden_links.get(row.golden_key) if row.golden_key else None
        target = self.target_links.get(row.target_key) if row.target_key else None
        found = [
            self.golden_index.get(golden) if golden else None,
            self.target_index.get(target) if target else None,
        ]
        return [source for source in dict.fromkeys(found) if source is not None and source != i]

    def fails(self, i: int) -> bool:
        return self.rows[i].verdict.fails

    def add_root(self, i: int) -> int:
        self.roots.append(i)
        self.causes[i] = i
        return i

    def latest_root(self) -> int | None:
        return self.roots[-1] if self.roots else None

    # Forward

    def forward(self) -> None:
        """Visit each call when it begins, and each module once more when it ends."""
        open_modules: list[_Visit] = []
        for site, rows in self.sites.items():
            indices = [i for i in rows if not self.rows[i].key.slot.is_gradient]
            while open_modules and not _is_inside(site, open_modules[-1].site):
                self._leave(open_modules.pop())
            visit = _Visit(site, indices, num_roots=len(self.roots))
            self._enter(visit)
            if "/" in site[2]:
                self._leave(visit)
            else:
                open_modules.append(visit)
        while open_modules:
            self._leave(open_modules.pop())

    def _enter(self, visit: _Visit) -> None:
        """Find out why inputs fail: what they inherit from, or that they are roots themselves."""
        for i in visit.indices:
            if not self.rows[i].key.slot.is_input:
                continue
            if self._is_alone(i):
                cause = self._inherited(i)
            else:
                cause = self._cause_of_input(i) if self.fails(i) else None
            if cause is not None:
                self.causes[i] = cause
                visit.cause = cause if visit.cause is None else visit.cause

    def _is_alone(self, i: int) -> bool:
        """Whether only one side has row `i`."""
        return self.rows[i].golden_key is None or self.rows[i].target_key is None

    def _inherited(self, i: int) -> int | None:
        causes = (self.causes.get(source) for source in self.sources(i))
        return next((cause for cause in causes if cause is not None), None)

    def _cause_of_input(self, i: int) -> int:
        inherited = self._inherited(i)
        if inherited is not None:
            return inherited
        before = None if self.sources(i) else self.latest_root()
        return self.add_root(i) if before is None else before

    def _leave(self, visit: _Visit) -> None:
        """Find out why outputs fail: by their inputs, by what ran inside, or here."""
        outputs = [i for i in visit.indices if not self.rows[i].key.slot.is_input]
        if visit.indices and all(self._is_alone(i) for i in visit.indices):
            self._leave_alone(visit, outputs)
            return
        for i in outputs:
            if self.fails(i):
                cause = self._cause_of_output(i, visit)
                visit.cause = cause if visit.cause is None else visit.cause
                self.causes[i] = cause
            elif self.rows[i].verdict is Verdict.FUSED and visit.cause is not None:
                self.causes[i] = visit.cause

    def _cause_of_output(self, i: int, visit: _Visit) -> int:
        inherited = self._inherited(i)
        if inherited is not None:
            return inherited
        if visit.cause is not None:
            return visit.cause
        if len(self.roots) > visit.num_roots:  # something inside this module
            return self.roots[-1]
        given = any(self.rows[j].key.slot.is_input for j in visit.indices)
        before = None if given else self.latest_root()
        return self.add_root(i) if before is None else before

    def _leave_alone(self, visit: _Visit, outputs: list[int]) -> None:
        """A call that only one side has: a root, if it matters and what it was given agrees."""
        hidden = all(is_hidden(self.rows[i]) or not self.fails(i) for i in outputs)
        if visit.cause is None and not hidden and any(self._matters(i) for i in outputs):
            if len(self.roots) > visit.num_roots:
                visit.cause = self.roots[-1]
            else:
                visit.cause = self.add_root(outputs[0])
        if visit.cause is not None:
            for i in visit.indices:
                self.causes.setdefault(i, visit.cause)

    def _matters(self, i: int) -> bool:
        """Whether a value that both sides have and that took row `i` fails, at any remove."""
        seen, waiting = {i}, [i]
        while waiting:
            for j in self.consumers[waiting.pop()]:
                if not self._is_alone(j) and self.fails(j):
                    return True
                follows = self._outputs_beside(j) if self._is_alone(j) else []
                waiting += [k for k in follows if k not in seen]
                seen.update(follows)
        return False

    def _outputs_beside(self, i: int) -> list[int]:
        """The outputs of the call that row `i` is an input of."""
        rows = self.sites[site_of(self.rows[i])]
        return [j for j in rows if not self.rows[j].key.slot.is_input]

    # Backward

    def backward(self) -> None:
        """Visit the gradients against the order of the forward pass, on which they depend."""
        gradients = [i for i, row in enumerate(self.rows) if row.key.slot.is_gradient]
        failed_before = self.latest_root()
        for i in reversed(gradients):
            if self.sources(i):
                continue
            if self.fails(i):
                self.causes[i] = self._cause_of_gradient(i, failed_before)
            elif self.rows[i].verdict is Verdict.FUSED:
                cause = self._given_cause(i)
                self.causes |= {} if cause is None else {i: cause}
        for i in gradients:
            inherited = self._inherited(i) if self.fails(i) else None
            if inherited is not None:
                self.causes.setdefault(i, inherited)

    def _cause_of_gradient(self, i: int, failed_before: int | None) -> int:
        if failed_before is not None:
            return failed_before
        cause = self._given_cause(i)
        takers = self._takers(i)
        return self.add_root(takers[0] if takers else i) if cause is None else cause

    def _takers(self, i: int) -> list[int]:
        """The rows of gradient `i` at the calls whose backward pass gave it out."""
        return [j for j in (*self.consumers[i], i) if _is_given_back(self.rows[j].key.slot)]

    def _given_cause(self, i: int) -> int | None:
        """Why what those calls were given in the backward pass does not agree."""
        for j in self._takers(i):
            for k in self.sites[site_of(self.rows[j])]:
                given = self.rows[k].key.slot.startswith("grad_output")
                cause = self.causes.get(k, self._inherited(k)) if given and k != i else None
                if cause is not None:
                    return cause
        return None

    def blamed(self) -> Blamed:
        """The rows with what was found out about them."""
        roots = set(self.roots)
        rows = tuple(
            replace(row, root=i in roots, cause=None if i in roots else self._cause_key(i))
            for i, row in enumerate(self.rows)
        )
        return Blamed(rows, tuple(rows[i] for i in sorted(roots)))

    def _cause_key(self, i: int) -> Key | None:
        cause = self.causes.get(i)
        return self.rows[cause].key if cause is not None and self.fails(i) else None


@dataclass
class _Visit:
    """One call while the walk is in it."""

    site: Site
    indices: list[int]
    num_roots: int  # roots that were known when it began
    cause: int | None = None  # why what it was given does not agree


def _is_given_back(slot: str) -> bool:
    """Whether a gradient slot holds what the backward pass of a call gives out."""
    return not slot.startswith("grad_output")


def _is_inside(site: Site, module: Site) -> bool:
    """Whether a call of op `site` can run inside the call of `module`."""
    if site[:2] != module[:2] or site[2] == module[2]:
        return False
    path = site[2].partition("/")[0].partition("@")[0]
    holder = module[2]
    return holder == ROOT or path == holder or path.startswith(holder + ".")
