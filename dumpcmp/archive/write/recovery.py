"""Mends a part that a crash or a full disk has left without its index: in place, no copy."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from dumpcmp.archive.paths import dataset_path, parts_in, shared_in
from dumpcmp.archive.read.contents import Contents, check_known
from dumpcmp.archive.read.part_index import read_index
from dumpcmp.archive.read.partfile import PartFile
from dumpcmp.archive.read.scan import Found, gather, journal_records, part_facts, scan
from dumpcmp.archive.schema import ABSENT, DENSE, NO_ROW, PREFIX_HEADER, SHARED, lost_row
from dumpcmp.archive.write.objects import CallText, Template
from dumpcmp.archive.write.part import LOST_PATH, Owner, Part
from dumpcmp.nouns.errors import ArchiveError


def recover(path: Path, stranded: list[Found], others: dict[int, Contents]) -> int:
    """Seal the part at `path` with all that its journal and the ring hold for it: so many values.

    `others` are the contents of the other parts of the step, and of those that steps share, to
    which it may link.
    """
    with PartFile(path) as file:
        facts, records = part_facts(file), list(journal_records(file, []))
        if any(found.fields.kind == DENSE for found in records):
            raise ArchiveError(
                f"{path}: the index of a sealed part is damaged, and it stays as it is",
                hint="copy it again; its values can still be read as plain HDF5",
            )
        written, contents = gather(file, records, []), gather(file, [*records, *stranded], [])
    check_known(path, contents.forms)
    part = Part.resume(path, facts, records[0].fields.nonce)
    part.end = records[-1].end
    part.sequence = 1 + max(found.fields.sequence for found in records)
    _declare(part, written, contents)
    for number, row in enumerate(contents.rows.tolist()):
        _take(part, number, row, written, contents, others)
    part.seal()
    return int((contents.rows["call"] != ABSENT).sum())


def rescue(path: Path) -> None:
    """Seal a part that its own writer had to give up, where the disk has room for it again."""
    others: dict[int, Contents] = {}
    for number, other in (parts_in(path.parent) | shared_in(path.parent.parent)).items():
        with suppress(ArchiveError), PartFile(other) as file:
            if other != path:
                others[number] = read_index(file) or scan(file, [])
    with suppress(OSError, ArchiveError):  # its journal still has everything
        recover(path, [], others)


def _declare(part: Part, written: Contents, contents: Contents) -> None:
    """Tell `part` of the calls and forms that it has, and append those that only the ring has."""
    calls = contents.calls()
    for number in range(len(contents.listed_calls)):
        if number not in calls:
            part.told.append(None)
        elif number < len(written.listed_calls):
            part.told.append((calls[number], CallText(calls[number])))
        else:
            part.append_call(calls[number])
    forms, num_written = [Template(form) for form in contents.forms], len(written.forms)
    part.forms += forms[:num_written]
    for form in forms[num_written:]:
        part.append_form(form)


def _take(
    part: Part, number: int, row: tuple[Any, ...], written: Contents, contents: Contents,
    others: dict[int, Contents],
) -> None:  # fmt: skip
    """Tell `part` of a row that it has; append one that only the ring has."""
    call, form, order, where, same, header, offset, nbytes, digest = row
    if call == ABSENT:
        part.add_lost()
        return
    owner: Owner = (call, part.forms[form], form, order)
    new = not written.has_row(number)
    if same != NO_ROW:
        target, path = _target(part, where, same, contents, others)
        (part.append_link if new else part.add_link)(owner, where, same, target, path)
    elif new:
        lies = contents.location(number, offset, nbytes)
        with PartFile(lies.part) as ring:
            part.append_value(owner, memoryview(ring.read(lies.offset, nbytes)))
    else:
        if number in contents.elsewhere:  # and in the ring: a kill may have torn its bytes here
            lies = contents.location(number, offset, nbytes)
            with PartFile(lies.part) as ring:
                part.write(ring.read(lies.offset, nbytes), offset)
        part.add_value(*owner, header - PREFIX_HEADER, offset, digest)


def _target(
    part: Part, number: int, row: int, contents: Contents, others: dict[int, Contents]
) -> tuple[tuple[Any, ...], str]:
    """The row that a link leads to, and the path of its dataset in that part."""
    own = number == part.number
    holder = contents if own else others.get(number)
    if holder is None or not holder.has_row(row):
        return lost_row(number), LOST_PATH
    target = part.row(row) if own else holder.rows[row].item()
    if number >= SHARED:
        target = (*target[:3], number, *target[4:])
    elif target[3] >= SHARED:  # the value itself leads to a shared part
        holder, row = others.get(target[3]), target[4]
        if holder is None or not holder.has_row(row):
            return target, LOST_PATH
    return target, dataset_path(*holder.name(row))
