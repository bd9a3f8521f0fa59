"""Reading: lazy, picklable, several ranks, live and incomplete archives, other writers' parts."""

from __future__ import annotations

import json
import pickle
import time
from pathlib import Path

import h5py
import numpy as np
import pytest

from dumpcmp.archive.integrity import audit
from dumpcmp.archive.read.partfile import PartFile, hard_links, root_address
from dumpcmp.archive.read.reader import Archive
from dumpcmp.archive.write.writer import ArchiveWriter
from dumpcmp.nouns.errors import ArchiveError
from dumpcmp.nouns.key import Key, Op
from dumpcmp.nouns.record import Call, Phase
from tests.archive.values import SMALL_NUMBERS, Dense, key, loaded, parts, put, record


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    for rank in (0, 1, 3):
        with ArchiveWriter(tmp_path / "d", rank=rank, world_size=4, run={"rank": rank}) as sink:
            for step in range(3):
                put(sink, key("whole", step=step), np.full(3, float(rank)))
                put(sink, key(f"only{rank}", step=step), np.full(3, float(rank)))
            put(sink, Key("Draft", 0, "a", 0, "output.0"), np.ones(2))
    return Archive(tmp_path / "d")


def test_ranks_models_and_steps_are_told(archive: Archive) -> None:
    assert (archive.ranks, archive.world_size, archive.missing_ranks) == ((0, 1, 3), 4, (2,))
    assert archive.models == ("Draft", "Model") and archive.steps("Model") == (0, 1, 2)
    assert not archive.complete and archive.problems == ("rank 2 is missing",)
    assert [archive.run[rank]["run"] for rank in archive.ranks] == [{"rank": r} for r in (0, 1, 3)]


def test_a_key_gives_the_lowest_rank_and_shards_give_all(archive: Archive) -> None:
    assert archive[key("whole")].rank == 0 and archive[key("only3")].rank == 3
    assert [shard.rank for shard in archive.shards(key("whole"))] == [0, 1, 3]
    assert [archive.load(s).bits[0] for s in archive.shards(key("whole"))] == [0, 1, 3]
    assert key("nothing") not in archive and archive.shards(key("nothing")) == ()
    with pytest.raises(KeyError):
        archive[key("nothing")]
    assert len(archive) == 3 * 4 + 1 == len(set(archive))


def test_an_archive_travels_as_its_path(archive: Archive) -> None:
    assert len(archive)
    travelled = pickle.dumps(archive)
    assert len(travelled) < 500
    assert dict(pickle.loads(travelled)) == dict(archive)  # noqa: S301


def test_opening_reads_no_part(archive: Archive, tmp_path: Path) -> None:
    for part in parts(tmp_path):
        part.write_bytes(b"nonsense" * 100)
    again = Archive(archive.path)
    assert again.models and again.steps("Model") and again.ranks
    with pytest.raises(ArchiveError, match=r"part-0000\.h5"):
        len(again)


def test_values_are_mapped_and_read_only(archive: Archive) -> None:
    bits = loaded(archive, key("whole"))
    assert not bits.flags.owndata and not bits.flags.writeable


def test_a_live_archive_can_be_read_and_says_that_it_is(tmp_path: Path) -> None:
    with ArchiveWriter(tmp_path / "d") as sink:
        put(sink, key("early"), np.arange(3.0))
        deadline = time.monotonic() + 5
        while key("early") not in Archive(tmp_path / "d") and time.monotonic() < deadline:
            time.sleep(0.01)
        live = Archive(tmp_path / "d")
        np.testing.assert_array_equal(loaded(live, key("early")), np.arange(3.0))
        assert live.problems == ("rank 0: the capture is still running",)
        while time.monotonic() < deadline:  # a commit, within 100 ms, shows it to everybody
            with h5py.File(parts(tmp_path)[0]) as file:
                if "early#0/output.0" in file:
                    break
        else:
            pytest.fail("nothing was committed")
        assert audit(tmp_path / "d", repair=True).sound
        put(sink, key("late"), np.arange(3.0))
    assert {name.op for name in Archive(tmp_path / "d")} == {"early", "late"}


CALL = Call("Model", 0, Op("layers.0/linear"), 0, 1, "torch.f", "m.py:3", Phase.BACKWARD, '["x"]',
            ("a#0",), "triton")  # fmt: skip


def rewritten(part: Path, **options: object) -> None:
    """Copy a part through h5py, as h5repack would: other headers, no journal, no index."""
    draft = part.with_suffix(".draft")
    with h5py.File(part) as old, h5py.File(draft, "w", libver="latest") as new:
        new.attrs.update(old.attrs)
        for name in old:
            if name != "_index":
                old.copy(name, new)
        if options:
            _compress(new, **options)
    draft.replace(part)


def _compress(file: h5py.File, **options: object) -> None:
    found: list[str] = []
    file.visititems(lambda name, it: found.append(name) if isinstance(it, h5py.Dataset) else None)
    for name in found:
        old = file[name]
        if not old.shape or not old.size:
            continue
        raw = np.empty(old.shape, old.id.get_type().dtype)
        attrs = dict(old.attrs)
        raw = np.empty(old.size * old.id.get_type().get_size(), np.uint8)
        old.id.read(h5py.h5s.ALL, h5py.h5s.ALL, raw, old.id.get_type())
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_chunk(old.shape)
        plist.set_deflate(6)
        kind, space = old.id.get_type(), old.id.get_space()
        del file[name]
        new = h5py.h5d.create(file.id, name.encode(), kind, space, plist)
        new.write(h5py.h5s.ALL, h5py.h5s.ALL, raw, kind)
        h5py.Dataset(new).attrs.update(attrs)


@pytest.mark.parametrize("options", [{}, {"deflate": 6}])
def test_a_part_rewritten_by_hdf5_is_read_by_its_groups(
    tmp_path: Path, options: dict[str, int]
) -> None:
    with ArchiveWriter(tmp_path / "d") as sink:
        sink.call(CALL)
        for order, (name, bits) in enumerate(SMALL_NUMBERS.items()):
            sink.put(record(key(name), bits, name, order), Dense(bits))
        put(sink, key("layers.0/linear", "é%#/"), np.ones(3), 1)
    before = Archive(tmp_path / "d")
    wanted = {name: loaded(before, name).tobytes() for name in before}
    told = {name: before[name] for name in before}
    rewritten(parts(tmp_path)[0], **options)
    after = Archive(tmp_path / "d")
    assert {name: loaded(after, name).tobytes() for name in after} == wanted
    for where, was in told.items():
        found = after[where]
        assert (found.dtype, found.shape, found.stride, found.digest) == (
            was.dtype, was.shape, was.stride, was.digest,
        )  # fmt: skip
    assert after.calls[key("layers.0/linear").site] == CALL
    assert audit(tmp_path / "d").sound


def test_mixed_world_sizes_are_refused(archive: Archive) -> None:
    (archive.path / "worldsize8_global_rank0").mkdir()
    with pytest.raises(ArchiveError, match="mixes runs"):
        Archive(archive.path)


NOT_ARCHIVES = {"nothing": None, "empty": "", "file": "x"}


@pytest.mark.parametrize("name", NOT_ARCHIVES)
def test_what_is_no_archive_is_refused_with_a_hint(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name == "empty":
        path.mkdir()
    elif name == "file":
        path.write_text("x")
    said = "does not exist" if name == "nothing" else "is not an archive"
    with pytest.raises(ArchiveError, match=said) as caught:
        Archive(path)
    assert caught.value.hint


@pytest.mark.parametrize("content", ["", "[]", "{", '{"complete": "yes"}', "[" * 100_000])
def test_a_damaged_run_file_makes_the_archive_incomplete(archive: Archive, content: str) -> None:
    (archive.path / "worldsize4_global_rank1" / "run.json").write_text(content)
    again = Archive(archive.path)
    assert any(problem.startswith("rank 1: ") for problem in again.problems)
    assert len(again) == 13


def test_an_index_that_names_another_version_is_not_guessed_at(archive: Archive) -> None:
    place = archive.path / "worldsize4_global_rank0" / "run.json"
    place.write_text(json.dumps(json.loads(place.read_text()) | {"schema": 99}))
    assert "schema 99" in " ".join(Archive(archive.path).problems)


def test_thousands_of_parts_open_in_reasonable_time(tmp_path: Path) -> None:
    num_steps = 2000
    with ArchiveWriter(tmp_path / "d") as sink:
        for step in range(num_steps):
            put(sink, key(step=step), np.full(2, float(step)))
    began = time.process_time()
    archive = Archive(tmp_path / "d")
    assert len(archive) == num_steps
    assert sum(loaded(archive, name)[0] for name in archive) == sum(range(num_steps))
    assert time.process_time() - began < 20


def test_a_part_that_plain_h5py_wrote_is_read(tmp_path: Path) -> None:
    place = tmp_path / "d" / "worldsize1_global_rank0" / "Model" / "0"
    place.mkdir(parents=True)
    with h5py.File(place / "part-0000.h5", "w") as file:
        group = file.create_group("layers.0/linear#1")
        group.attrs.update({"op": "layers.0/linear", "call": 1, "order": 4, "target": "f"})
        group["output.0"] = np.arange(6.0).reshape(2, 3)
        group["input.0"] = group["output.0"]
    archive = Archive(tmp_path / "d")
    found = archive[key("layers.0/linear", call=1)]
    assert (found.order, found.dtype, found.shape) == (4, "float64", (2, 3))
    first = key("layers.0/linear", "input.0", call=1)
    assert found.same_as == first or archive[first].same_as == found.key
    np.testing.assert_array_equal(loaded(archive, found.key), np.arange(6.0).reshape(2, 3))
    assert archive.calls[found.key.site].target == "f"


def test_directories_that_are_no_steps_are_let_alone(archive: Archive) -> None:
    for name in ("007", "٣", "-1", "1" * 30, "notes"):
        (archive.path / "worldsize4_global_rank0" / "Model" / name).mkdir()
    assert Archive(archive.path).steps("Model") == (0, 1, 2) and len(Archive(archive.path)) == 13


def test_a_part_that_grows_while_it_is_open_is_read_to_its_end(tmp_path: Path) -> None:
    with ArchiveWriter(tmp_path / "d") as sink:
        put(sink, key("whole"), np.arange(4000.0))
    (part,) = parts(tmp_path / "d")
    content = part.read_bytes()
    part.write_bytes(content[:4096])
    with PartFile(part) as file:
        with part.open("r+b") as writer:
            writer.write(content)
        assert dict(hard_links(file, root_address(file)))
