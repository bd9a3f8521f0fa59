"""Archives made to harm: nothing outside of them is read, followed, written or removed."""

from __future__ import annotations

import lzma
import os
import resource
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from click.testing import CliRunner

from dumpcmp.archive.integrity import audit
from dumpcmp.archive.read.reader import Archive
from dumpcmp.archive.upload import upload
from dumpcmp.archive.write.writer import ArchiveWriter
from dumpcmp.cli import main
from dumpcmp.compacting import compact
from dumpcmp.golden import pack_golden
from dumpcmp.nouns.errors import ArchiveError
from dumpcmp.nouns.record import Record
from tests.archive.values import key, loaded, parts, put

SECRET = np.arange(16.0)


def written(path: Path) -> Path:
    """An archive with two parts, the second of which links into the first."""
    with ArchiveWriter(path, part_nbytes=1) as sink:
        put(sink, key("first"), SECRET * 2)
        put(sink, key("second"), SECRET * 3, 1)
        again = Record(key("third"), 2, "float64", (16,), (1,), same_as=key("first"))
        sink.put(again, None)
    return path


def rewritten(part: Path, change: Callable[[h5py.File], None] = lambda _: None) -> None:
    """Write a part anew with h5py, as tools do, and `change` it."""
    with h5py.File(part) as before, h5py.File(part.with_suffix(".new"), "w") as after:
        for name in before:
            if name != "_index":
                before.copy(name, after, expand_external=False)
        for name, value in before.attrs.items():
            after.attrs[name] = value
        change(after)
    part.with_suffix(".new").replace(part)


def test_rewritten_parts_are_read_with_their_links(tmp_path: Path) -> None:
    path = written(tmp_path / "d")
    assert len(parts(path)) == 3
    for part in parts(path):
        rewritten(part)
    archive = Archive(path)
    for op, factor in (("first", 2), ("second", 3), ("third", 2)):
        np.testing.assert_array_equal(loaded(archive, key(op)), SECRET * factor)


def external(file: h5py.File, outside: Path) -> None:
    file["first#0"].create_dataset("output.1", (16,), "f8", external=[(str(outside), 0, 128)])


def virtual(file: h5py.File, outside: Path) -> None:
    layout = h5py.VirtualLayout((16,), "f8")
    layout[:] = h5py.VirtualSource(str(outside), "secret", (16,))
    file["first#0"].create_virtual_dataset("output.1", layout)


def linked(file: h5py.File, outside: Path) -> None:
    file["first#0"]["output.1"] = h5py.ExternalLink(str(outside), "secret")


def soft(file: h5py.File, outside: Path) -> None:
    file["door"] = h5py.ExternalLink(str(outside), "/")
    file["first#0"]["output.1"] = h5py.SoftLink("/door/secret")


@pytest.mark.parametrize("lead_out", [external, virtual, linked, soft])
def test_nothing_outside_of_an_archive_is_read(
    tmp_path: Path, lead_out: Callable[[h5py.File, Path], None]
) -> None:
    path, outside = written(tmp_path / "d"), tmp_path / "secret"
    with h5py.File(outside, "w") as file:
        file["secret"] = SECRET
    rewritten(parts(path)[0], lambda file: lead_out(file, outside))
    archive = Archive(path)
    with pytest.raises(ArchiveError, match=r"outside of the archive|leads out of the archive"):
        archive.load(archive[key("first", "output.1")])


def test_a_web_of_links_is_walked_once(tmp_path: Path) -> None:
    def weave(file: h5py.File) -> None:
        rooms = [file.create_group(f"room{number}") for number in range(60)]
        for room in rooms:
            for number, other in enumerate(rooms):
                room[f"door{number}"] = other

    path = written(tmp_path / "d")
    rewritten(parts(path)[0], weave)
    np.testing.assert_array_equal(loaded(Archive(path), key("first")), SECRET * 2)


def test_elements_cannot_be_unpacked_from_nothing(tmp_path: Path) -> None:
    def inflate(file: h5py.File) -> None:
        file["first#0"].create_dataset("output.1", (1 << 40,), "f8", chunks=(1 << 20,))

    path = written(tmp_path / "d")
    rewritten(parts(path)[0], inflate)
    archive = Archive(path)
    with pytest.raises(ArchiveError, match="cannot be packed"):
        archive.load(archive[key("first", "output.1")])


@pytest.mark.parametrize("what", ["part", "run.json"])
def test_nobody_waits_for_a_pipe(tmp_path: Path, what: str) -> None:
    path = written(tmp_path / "d")
    place = parts(path)[0] if what == "part" else next(path.glob("*/run.json"))
    place.unlink()
    os.mkfifo(place)
    assert not audit(path).sound
    if what == "part":
        with pytest.raises(ArchiveError, match="is no file"):
            len(Archive(path))


@pytest.mark.parametrize("depth", ["rank", "model", "step", "part"])
def test_links_to_other_places_are_not_followed(tmp_path: Path, depth: str) -> None:
    other, path = written(tmp_path / "other"), tmp_path / "d"
    step = parts(other)[0].parent
    (step / ".draft-mine").mkdir()
    lost = {"rank": step.parents[1], "model": step.parent, "step": step, "part": parts(other)[0]}
    place = path / lost[depth].relative_to(other)
    place.parent.mkdir(parents=True)
    place.symlink_to(lost[depth])
    before = {file: file.read_bytes() for file in other.rglob("*") if file.is_file()}
    for act in (
        lambda: audit(path, repair=True),
        lambda: compact(path),
        lambda: list(Archive(path)),
    ):
        try:
            act()
        except ArchiveError:
            continue
    assert {file: file.read_bytes() for file in other.rglob("*") if file.is_file()} == before
    assert (step / ".draft-mine").is_dir()
    if depth != "part":
        with pytest.raises(ArchiveError, match="symbolic link"):
            list(Archive(path))


def outside(file: Path, secret: Path) -> None:
    file.symlink_to(secret)


def pipe(file: Path, _: Path) -> None:
    os.mkfifo(file)


def directory(file: Path, _: Path) -> None:
    file.mkdir()


@pytest.mark.parametrize(
    "name", [".moved", ".uploaded", "run.json", "manifest.json", "Model/a.txt", ".compacting"]
)
@pytest.mark.parametrize("made", [outside, pipe, directory])
def test_files_beside_the_parts_lead_nowhere(
    tmp_path: Path, name: str, made: Callable[[Path, Path], None]
) -> None:
    """What they lead to is neither told, nor uploaded, nor packed, nor written to."""
    memory = pytest.importorskip("fsspec").filesystem("memory")
    path, secret = written(tmp_path / "d"), tmp_path / "secret"
    secret.write_text("correct horse")
    file = parts(path)[0].parents[2] / name
    file.unlink(missing_ok=True)
    made(file, secret)
    told: list[str] = []
    for act in (
        lambda: told.extend(Archive(path).problems),
        lambda: told.append(str(audit(path, repair=True))),
        lambda: upload(path, f"memory://{tmp_path.name}/up"),
        lambda: pack_golden(path, tmp_path / "golden.tar"),
    ):
        try:
            act()
        except (ArchiveError, IsADirectoryError) as error:
            told.append(str(error))
    assert "correct horse" not in "".join(told)
    stored = memory.store
    assert not any(b"correct horse" in each.getvalue() for each in stored.values())
    assert secret.read_text() == "correct horse"
    if (tmp_path / "golden.tar").exists():
        assert b"correct horse" not in lzma.decompress((tmp_path / "golden.tar").read_bytes())


@pytest.mark.parametrize("name", ["../evil", "run/../../evil", "a/./b", "run/.."])
def test_a_store_that_lists_names_which_lead_out_is_refused(tmp_path: Path, name: str) -> None:
    """A copy of it here would be written there."""
    store = pytest.importorskip("fsspec").filesystem("memory")
    path = written(tmp_path / "d")
    url = f"{tmp_path.name}/run"
    store.put(f"{path}/", f"/{url}", recursive=True)
    store.store[f"/{url}/{name}"] = store.store[next(k for k in store.store if "run.json" in k)]
    for act in (
        lambda: pack_golden(f"memory://{url}", tmp_path / "golden.tar"),
        lambda: audit(f"memory://{url}", repair=True),
        lambda: Archive(f"memory://{url}"),
    ):
        with pytest.raises(ArchiveError, match="whose name leads out of where it lies"):
            act()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["d"]


def filtered(group: h5py.Group) -> None:
    """Elements behind a filter that would have to be loaded."""
    made = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    made.set_chunk((4,))
    made.set_filter(32_015, h5py.h5z.FLAG_OPTIONAL, ())
    space = h5py.h5s.create_simple((16,))
    h5py.h5d.create(group.id, b"output.1", h5py.h5t.IEEE_F64LE, space, made).write_direct_chunk(
        (0,), bytes(32)
    )


def nested(group: h5py.Group) -> None:
    for _ in range(1000):
        group = group.create_group("a")


ODD: dict[str, Callable[[h5py.Group], object]] = {
    "a filter": filtered,
    "groups in groups": nested,
    "as many chunks as elements": lambda g: g.create_dataset(
        "output.1", data=np.ones(5000), chunks=(1,)
    ),
    "more elements than numbers": lambda g: g.create_dataset(
        "output.1", (2**40, 2**40), "f8", chunks=(1, 1)
    ),
    "nothing": lambda g: g.create_dataset("output.1", data=h5py.Empty("f8")),
    "texts": lambda g: g.create_dataset("output.1", (2,), h5py.string_dtype()),
    "fields": lambda g: g.create_dataset("output.1", (2,), [("a", "f8"), ("b", "i4", (99,))]),
    "references": lambda g: g.create_dataset("output.1", (2,), h5py.ref_dtype),
    "lists": lambda g: g.create_dataset("output.1", (2,), h5py.vlen_dtype("f8")),
    "words": lambda g: g.create_dataset("output.1", (4,), h5py.enum_dtype({"A": 0}, "i1")),
    "other bytes": lambda g: g.create_dataset("output.1", data=np.arange(4, dtype=">f8")),
    "many dims": lambda g: g.create_dataset("output.1", (1,) * 32, "f8"),
    "a type": lambda g: g.file.__setitem__("first#0/output.1", np.dtype("f8")),
    "itself": lambda g: g.__setitem__("output.1", h5py.SoftLink("/first#0/output.1")),
    "its group": lambda g: g.__setitem__("output.1", g),
    "attributes": lambda g: [g.attrs.create(f"a{n}", "x" * 99) for n in range(500)],
    "a name": lambda g: g.file.__setitem__("evil\n\x1b[31m#0", g),
}


@pytest.mark.parametrize("name", ODD)
def test_other_things_that_hdf5_can_hold_are_read_or_refused_in_a_sentence(
    tmp_path: Path, name: str
) -> None:
    path = written(tmp_path / "d")

    def hold(file: h5py.File) -> None:
        ODD[name](file["first#0"])

    rewritten(parts(path)[0], hold)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def load_all() -> None:
        archive = Archive(path)
        for record in archive.values():
            try:
                archive.load(record)
            except ArchiveError:
                continue

    for act in (lambda: audit(path), load_all, lambda: compact(path)):
        try:
            act()
        except ArchiveError as error:
            assert "\n" not in error.message
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20


def test_texts_beside_the_parts_may_be_odd_and_not_large(tmp_path: Path) -> None:
    path = written(tmp_path / "d")
    text = parts(path)[0].parents[1] / "original-0.txt"
    text.write_bytes(b"\xff\xfe def \x1b[31m forward\n")
    shown = CliRunner().invoke(main, ["show", str(path), "--graph", "original"])
    assert shown.exit_code == 0 and "forward" in shown.output and "\x1b" not in shown.output
    with text.open("r+b") as file:
        file.truncate(1 << 40)
    refused = CliRunner().invoke(main, ["show", str(path), "--graph", "original"])
    assert refused.exit_code == 2 and "is no plain file of at most" in refused.output
