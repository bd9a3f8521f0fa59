"""Writes what was found as a mapping file: a line for all layers, with what speaks for it."""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from dumpcmp.align.port.faces import Face, Faces
from dumpcmp.align.port.joining import Joint
from dumpcmp.align.port.loose import Belonging
from dumpcmp.align.port.proposing import Likeness, Port
from dumpcmp.align.renaming import value_name
from dumpcmp.nouns.key import Key
from dumpcmp.nouns.spoken import counted, plural

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.|$)")
_PLAIN = re.compile(r"[\w.*<>-]+")


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a mapping, and why it is there."""

    golden: str
    target: str
    evidence: str
    groups: int = 1
    axis: int | None = -1  # along which pieces take turns; None: as the shapes tell
    order: tuple[int, ...] = ()  # of my dims, to be golden's; none where they lie alike

    def __str__(self) -> str:
        target = _quoted(self.target)
        if not isinstance(self.terms, str):
            said = (f"{word}: {number}" for word, number in self.terms.items() if word != "to")
            target = f"{{to: {target}, {', '.join(said)}}}"
        return f"{_quoted(self.golden)}: {target}"

    @property
    def terms(self) -> str | dict[str, str | int | list[int]]:
        """What stands behind the colon, as YAML reads it."""
        if self.order:
            return {"to": self.target, "order": list(self.order)}
        if self.groups == 1:
            return self.target
        axis = {} if self.axis is None else {"axis": self.axis}
        return {"to": self.target, **axis, "groups": self.groups}


def lines_of(port: Port) -> list[Line]:
    """The mapping: pieces first, then what lies deepest, since the first line that matches counts.

    A line that says that a name is itself is left out, where no line before it takes it away.
    """
    merged = list(_merged(port.joined))
    pairs = sorted(port.pairs.values(), key=lambda one: (-one.golden.depth, one.golden.place))
    plain = list(_plain(pairs, port))
    changed = any(line.golden != line.target for line in plain)
    return [
        *merged,
        *_moved(pairs, port),
        *(line for line in plain if changed or line.golden != line.target),
    ]


def loose_lines(found: Iterable[Belonging]) -> Iterator[Line]:
    """A line for values that belong together, one for all layers where their names agree."""
    named: dict[tuple[str, str, int, bool], list[Belonging]] = defaultdict(list)
    for one in found:
        keys = [*one.golden, *one.target]
        names = starred_first([value_name(key) for key in keys])
        num = len(one.golden)
        both = _valued(names[:num]), _valued(names[num:])
        named[*both, one.groups, one.of_weights].append(one)
    for (golden, target, groups, of_weights), some in named.items():
        yield Line(golden, target, _said_of_values(some), groups, None if of_weights else -1)


def starred_first(names: Sequence[str]) -> list[str]:
    """`names` with a star for the first number, that of the layer, where all have the same.

    >>> starred_first(["h.2.experts.0.w", "h.2.experts.1.w", "layers.2.w"])
    ['h.*.experts.0.w', 'h.*.experts.1.w', 'layers.*.w']
    """
    ops = [name.partition("#")[0] for name in names]
    numbers = {next(iter(_NUMBER.findall(op)), None) for op in ops}
    if len(numbers) > 1 or None in numbers:
        return list(names)
    return [
        _NUMBER.sub("*", op, count=1) + name[len(op) :] for op, name in zip(ops, names, strict=True)
    ]


def _valued(names: Sequence[str]) -> str:
    """One value, or several as one name."""
    ends = {name.partition("#")[2] for name in names}
    if len(names) == 1:
        return names[0]
    if len(ends) == 1:
        return f"{braced([name.partition('#')[0] for name in names])}#{ends.pop()}"
    return braced(names)


def _said_of_values(some: Sequence[Belonging]) -> str:
    first = some[0]
    num = f"{len(some)} layers; " if len(some) > 1 else ""
    pieces = max(len(first.golden), len(first.target))
    what = "weights" if first.of_weights else "what is computed with these weights"
    known = [one.rel_l2 for one in some if one.rel_l2 is not None]
    near = _near(what, known) if known else what
    if len(known) < len(some):
        others = counted(len(some) - len(known), "is another value", "are other values")
        near += f"; {others}, or {plural(len(some) - len(known), 'was', 'were')} not kept"
    turns = f", taking turns in {first.groups} groups" if first.groups > 1 else ""
    return f"{num}{near}" + (f"; {pieces} pieces in one{turns}" if pieces > 1 else "")


def starred(names: Sequence[str]) -> tuple[str, ...]:
    """`names` with stars for their numbers, where all have the same; as they are, where not.

    >>> starred(("model.layers.3.mlp", "h.3.ffn")), starred(("layers.0.a", "first.a"))
    (('model.layers.*.mlp', 'h.*.ffn'), ('layers.0.a', 'first.a'))
    """
    numbers = {tuple(_NUMBER.findall(name)) for name in names}
    return tuple(_NUMBER.sub("*", name) for name in names) if len(numbers) == 1 else tuple(names)


def _plain(pairs: Iterable[Likeness], port: Port) -> Iterator[Line]:
    """A line for each name with stars; names of their own, where two layers do not agree."""
    found: dict[tuple[str, ...], list[Likeness]] = defaultdict(list)
    for one in pairs:
        found[starred((one.golden.op, one.target.op))].append(one)
    ways: dict[str, list[tuple[str, ...]]] = defaultdict(list)
    for names in found:
        ways[names[0]].append(names)
    for names, likes in found.items():
        most = max(ways[names[0]], key=lambda way: len(found[way]))
        for one in likes if names != most else ():
            yield _line((one.golden.op, one.target.op), [one], port)
    for names, likes in found.items():
        if names == max(ways[names[0]], key=lambda way: len(found[way])):
            yield _line(names, likes, port)


def _line(names: Sequence[str], likes: Sequence[Likeness], port: Port) -> Line:
    """A line for modules, with the order of dims where what they give out has another one."""
    orders = {port.order(one) for one in likes if one.outputs is not None}
    order = next(iter(orders)) if len(orders) == 1 else None
    said = f"; my dims in golden's order: {' '.join(map(str, order))}" if order else ""
    return Line(names[0], names[1], _said(likes, port) + said, order=order or ())


def _moved(pairs: Iterable[Likeness], port: Port) -> Iterator[Line]:
    """Single values that a module gives out elsewhere, as one that is fused with a norm does."""
    found: dict[tuple[str, ...], int] = defaultdict(int)
    for one in pairs:
        golden, target = starred((one.golden.op, one.target.op))
        for slot, other in port.moved(one):
            found[f"{golden}#*/{slot}", f"{target}#*/{other}"] += 1
    for (golden, target), num in found.items():
        values = counted(num, "value is the same, and stands", "values are the same, and stand")
        yield Line(golden, target, f"{values} in another place")


def _merged(joints: Iterable[Joint]) -> Iterator[Line]:
    found: dict[tuple[object, ...], list[Joint]] = defaultdict(list)
    for joint in joints:
        called = starred([joint.whole.op, *(face.op for face in joint.pieces)])
        found[(*called, joint.groups, joint.of_golden)].append(joint)
    for some in found.values():
        first = some[0]
        whole, *names = starred([first.whole.op, *(face.op for face in first.pieces)])
        golden, target = (braced(names), whole) if first.of_golden else (whole, braced(names))
        yield Line(golden, target, _said_of_pieces(some), first.groups)


def braced(names: Sequence[str]) -> str:
    """Several names as one: ``attn.{q,k,v}``."""
    rows = [name.split(".") for name in names]
    start = 0
    while all(len(row) > start + 1 and row[start] == rows[0][start] for row in rows):
        start += 1
    ends = [".".join(row[start:]) for row in rows]
    tail = ""
    while all("." in end for end in ends) and len({end.rpartition(".")[2] for end in ends}) == 1:
        tail = f".{ends[0].rpartition('.')[2]}{tail}"
        ends = [end.rpartition(".")[0] for end in ends]
    before = "".join(f"{segment}." for segment in rows[0][:start])
    return f"{before}{{{','.join(ends)}}}{tail}"


def _said(likes: Sequence[Likeness], port: Port) -> str:
    """What speaks for a line: of how many modules, their weights, their values, what is inside."""
    words = [f"{len(likes)} modules"] if len(likes) > 1 else []
    weights = [one.weights for one in likes if one.weights is not None]
    outputs = [one.outputs for one in likes if one.outputs is not None]
    if weights:
        words.append(f"{_shape(likes[0].golden.weights, port.golden)} {_near('weights', weights)}")
    if outputs:
        words.append(f"{_shape(likes[0].golden.outputs, port.golden)} {_near('outputs', outputs)}")
    if len(outputs) < len(likes):
        others = counted(len(likes) - len(outputs), "gives", "give")
        words.append(f"{others} out other values, or none that is kept")
    if any(one.inside for one in likes):
        inside = sum(one.inside for one in likes)
        same = counted(inside, "module with weights inside is", "modules with weights inside are")
        words.append(f"{same} the same")
    return "; ".join(words)


def _near(what: str, found: Sequence[float]) -> str:
    largest = max(found)
    return f"{what} equal to the bit" if not largest else f"{what} within rel_l2 {largest:.2g}"


def _shape(keys: Sequence[Key], faces: Faces) -> str:
    shapes = [faces.listing.record(key).shape for key in keys]
    return str(list(max(shapes, key=math.prod)))


def _said_of_pieces(joints: Sequence[Joint]) -> str:
    first = joints[0]
    apart = max(joint.rel_l2 for joint in joints)
    near = "to the bit" if not apart else f"within rel_l2 {apart:.2g}"
    turns = f", taking turns in {first.groups} groups" if first.groups > 1 else ""
    num = f"{len(joints)} modules; " if len(joints) > 1 else ""
    axis = {"weight": "axis 0 of the weight", "weight.T": "axis -1 of the weight"}
    place = axis.get(first.seen_in, "axis -1 of the output")
    return f"{num}{len(first.pieces)} pieces lie along {place}{turns}, {near}"


def _quoted(name: str) -> str:
    """A name as YAML takes it: what is not plain, in quotes."""
    return name if _PLAIN.fullmatch(name) and name[0] not in "*-<>" else json.dumps(name)


def unpaired_names(faces: Iterable[Face]) -> list[str]:
    """The names of modules, those that differ by numbers alone once."""
    return list(dict.fromkeys(_NUMBER.sub("*", face.op) for face in faces))
