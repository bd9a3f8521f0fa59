"""The groups of a part that is being written: made when others are to see them, not before."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Protocol

from dumpcmp.archive import encoder, schema
from dumpcmp.archive.paths import op_path
from dumpcmp.archive.schema import ABSENT, MAX_CACHED
from dumpcmp.archive.write.objects import (
    SHARED_FACTS,
    CallText,
    Group,
    Template,
    shared_attributes,
)
from dumpcmp.nouns.built import built
from dumpcmp.nouns.record import Call

_core: Any = built("dumpcmp.archive.write._finish")
_DEPTH = attrgetter("depth")
_EMPTY = encoder.group_header(b"", 0, b"", 0)
# How groups of calls are made, for the way in C: attributes as messages without their content.
_HOW = (
    Group, op_path, Call, ("op", "call", "order", "arguments", "origins"), SHARED_FACTS,
    shared_attributes, encoder.attribute("order", 0)[:-8],
    encoder.attribute("op", "x")[:-8], MAX_CACHED,
)  # fmt: skip

ToldCall = tuple[Call, CallText] | None  # a call and what is said of it; None where it was lost


class Growing(Protocol):
    """A part as its tree sees it."""

    told: list[ToldCall]
    rows: bytearray
    forms: list[Template]
    outside: dict[int, tuple[str, str]]

    @property
    def num_rows(self) -> int: ...

    def row(self, number: int) -> tuple[Any, ...]: ...


@dataclass(frozen=True, slots=True)
class LaidTree:
    """All groups of a part but the root, as bytes; and the links that the root has to them."""

    groups: bytes
    root_links: bytes
    num_root_links: int

    def root_header(self, root: Group, index: int) -> bytes:
        """The header of the root, with the attributes of `root`, and its index at that address."""
        foremost = encoder.hard_link(schema.INDEX_GROUP, self.num_root_links, index)
        return encoder.group_header(
            foremost + self.root_links, self.num_root_links + 1, root.attributes,
            root.num_attributes,
        )  # fmt: skip


class PartTree:
    """The groups of a part, as far as they have grown: a group for each call, and its parents."""

    def __init__(self, facts: dict[str, Any]) -> None:
        self.root = Group(None)
        self.root.describe(list(facts.items()))
        self.groups: dict[tuple[str, ...], Group] = {}
        self.call_groups: list[Group] = []
        self.dirty: list[Group] = []  # that have changed since they were laid down
        self._num_rows = 0  # that have their links
        self._touch(self.root)

    def grow(self, part: Growing) -> None:
        """Take all that has come to `part` since: calls as groups, rows as links in them."""
        self.grow_calls(part.told)
        first, self._num_rows = self._num_rows, part.num_rows
        if _core is not None:
            _core.link_rows(
                first, part.rows, part.forms, part.outside, self.call_groups, self.dirty,
                self._link_outside,
            )  # fmt: skip
            return
        for number in range(first, part.num_rows):
            call, form, _, _, _, header, *_ = part.row(number)
            if call == ABSENT:
                continue
            group = self.call_groups[call]
            if number in part.outside:
                self._link_outside(group, part.forms[form], part.outside[number])
            else:
                group.add(encoder.hard_link(part.forms[form].slot, group.num_links, header))
            self._touch(group)

    def grow_calls(self, told: list[ToldCall]) -> None:
        """Take the calls that have come since."""
        if _core is not None:
            _core.grow_calls(
                told, self.call_groups, self.groups, self.root, self.dirty, self._group, _HOW
            )
            return
        for each in told[len(self.call_groups) :]:
            group = Group(None)
            if each is not None:
                call, text = each
                group = self._group(text.path(call))
                text.describe(group, call)
            self.call_groups.append(group)

    def _link_outside(self, group: Group, form: Template, place: tuple[str, str]) -> None:
        group.add(encoder.external_link(form.slot, group.num_links, *place))

    def _group(self, path: tuple[str, ...]) -> Group:
        """The group at `path`, made along with its parents where it is missing."""
        group = self.groups.get(path)
        if group is None:
            parent = self._group(path[:-1]) if len(path) > 1 else self.root
            group = self.groups[path] = Group(parent)
            parent.add_group(path[-1], group)
            self._touch(group)
        return group

    def _touch(self, group: Group | None) -> None:
        while group is not None and not group.changed:
            group.changed = True
            self.dirty.append(group)
            group = group.parent

    @property
    def cost(self) -> int:
        """Bytes that it takes to lay down what has changed, without what is always there."""
        return sum(len(group.links) + len(group.attributes) for group in self.dirty)

    def moved(self) -> None:
        """All groups were told of other addresses than those of this file."""
        for group in (*self.groups.values(), self.root):
            self._touch(group)

    def show_index(self, address: int) -> None:
        """Have the root link to the index, whose header is at `address`, before all else."""
        root = self.root
        root.foremost = encoder.hard_link(schema.INDEX_GROUP, root.num_links, address)
        self._touch(root)

    @property
    def is_bare(self) -> bool:
        """Whether it has not grown yet."""
        return not self.call_groups and not self._num_rows and not self.root.long_texts

    def lay_all(self, part: Growing, start: int) -> LaidTree:
        """Grow by all that `part` has, and lay down all groups but the root, from `start` on."""
        self.grow(part)
        block = self._lay_changed(start)
        return LaidTree(bytes(block), bytes(self.root.links), self.root.num_links)

    def lay(self, start: int) -> tuple[bytes, int]:
        """The headers of all groups that have changed, to lie at `start`; and where the root is."""
        block = self._lay_changed(start)
        address = self._put(self.root, block, start)
        return bytes(block), address

    def _lay_changed(self, start: int) -> bytearray:
        """Those of all but the root, children before their parents, who tell where they are."""
        root = self.root
        changed = [group for group in self.dirty if group is not root]
        changed.sort(key=_DEPTH, reverse=True)
        self.dirty.clear()
        root.changed = False
        if _core is not None:
            found: bytearray = _core.lay_groups(changed, start, _EMPTY, self._put)
            return found
        block = bytearray()
        for group in changed:
            self._put(group, block, start)
        return block

    def _put(self, group: Group, block: bytearray, start: int) -> int:
        """Lay `group` behind `block`, which lies at `start`, its long texts before it."""
        for name, text in group.long_texts:
            group.add(encoder.hard_link(name, group.num_links, start + len(block)))
            block += encoder.text_dataset(text, start + len(block))
        group.long_texts = ()
        address = start + len(block)
        block += group.header()
        group.moved(address)
        group.changed = False
        return address
