"""The groups of a part that is being written: made when others are to see them, not before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Protocol

from dumpcmp.archive import encoder, schema
from dumpcmp.archive.schema import ABSENT
from dumpcmp.archive.write.objects import CallText, Group, Template
from dumpcmp.nouns.built import built
from dumpcmp.nouns.record import Call

_core: Any = built("dumpcmp.archive.write._finish")
_DEPTH = attrgetter("depth")

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
        self.dirty: set[Group] = {self.root}  # that have changed since they were laid down
        self._num_rows = 0  # that have their links

    def grow(self, part: Growing) -> None:
        """Take all that has come to `part` since: calls as groups, rows as links in them."""
        self.grow_calls(part.told)
        first, self._num_rows = self._num_rows, part.num_rows
        if _core is not None:
            _core.link_rows(
                first, part.rows, part.forms, part.outside, self.call_groups, self.dirty,
                self._touch, self._link_outside,
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
            if group not in self.dirty:
                self._touch(group)

    def grow_calls(self, told: Sequence[ToldCall]) -> None:
        """Take the calls that have come since."""
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
        while group is not None and group not in self.dirty:
            self.dirty.add(group)
            group = group.parent

    @property
    def cost(self) -> int:
        """Bytes that it takes to lay down what has changed, without what is always there."""
        return sum(len(group.links) + len(group.attributes) for group in self.dirty)

    def moved(self) -> None:
        """All groups were told of other addresses than those of this file."""
        self.dirty.update(self.groups.values())
        self.dirty.add(self.root)

    def show_index(self, address: int) -> None:
        """Have the root link to the index, whose header is at `address`, before all else."""
        root = self.root
        root.foremost = encoder.hard_link(schema.INDEX_GROUP, root.num_links, address)
        self.dirty.add(root)

    @property
    def is_bare(self) -> bool:
        """Whether it has not grown yet."""
        return not self.call_groups and not self._num_rows and not self.root.long_texts

    def lay_all(self, part: Growing, start: int) -> LaidTree:
        """Grow by all that `part` has, and lay down all groups but the root, from `start` on."""
        self.grow(part)
        self.dirty.discard(self.root)
        block, _ = self.lay(start)
        return LaidTree(block, bytes(self.root.links), self.root.num_links)

    def lay(self, start: int) -> tuple[bytes, int]:
        """The headers of all groups that have changed, to lie at `start`; and where the root is."""
        block, address = bytearray(), start
        for group in sorted(self.dirty, key=_DEPTH, reverse=True):
            for name, text in group.long_texts:
                group.add(encoder.hard_link(name, group.num_links, start + len(block)))
                block += encoder.text_dataset(text, start + len(block))
            group.long_texts = ()
            address = start + len(block)
            block += group.header()
            group.moved(address)
        self.dirty.clear()
        return bytes(block), address
