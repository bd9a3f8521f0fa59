"""Archives in stores: read by ranges, as if they lay here, and never half."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from click.testing import CliRunner

pytest.importorskip("fsspec")

import fsspec

import dumpcmp
from dumpcmp.archive.integrity import audit
from dumpcmp.archive.read.reader import Archive
from dumpcmp.archive.stores import store as stores
from dumpcmp.archive.stores.kept import CACHE, DiskCache, KeptRanges, parse_cache
from dumpcmp.archive.stores.ranges import LONGEST_RUN, runs_of
from dumpcmp.archive.stores.store import Store, store_of
from dumpcmp.archive.stores.urls import RemotePath, is_url, place
from dumpcmp.archive.upload import upload
from dumpcmp.archive.write.writer import ArchiveWriter
from dumpcmp.cli import main
from dumpcmp.nouns.errors import ArchiveError
from dumpcmp.nouns.key import ROOT, Key, Op
from dumpcmp.nouns.record import Call
from tests.archive.bucket import KEYS, Bucket, Trouble, bucket_served
from tests.archive.hub import REPO, hub_served
from tests.archive.serving import Failing, s3_server, web_server
from tests.archive.values import put


def _write(path: Path, wrong: bool = False, size: int = 20_000, count: int = 12) -> Path:
    rng = np.random.default_rng(0)
    with ArchiveWriter(path, run={"mode": "eager"}) as sink:
        for step in range(2):
            for number in range(count):
                op = Op(f"layers.{number}") if number + 1 < count else Op(ROOT)
                bits = rng.normal(size=size).astype(np.float32)
                if wrong and number >= 7:
                    bits[3] += 1
                sink.call(Call("100% Net", step, op, 0, number, target="torch.nn.Linear"))
                put(sink, Key("100% Net", step, op, 0, "output.0"), bits)
    return path


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two archives of which one is wrong from layer 7 on, and one of small values."""
    path = tmp_path_factory.mktemp("stores")
    _write(path / "golden")
    _write(path / "mine", wrong=True)
    _write(path / "small", size=20, count=60)
    return path


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(stores, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(stores, "_STORES", {})
    monkeypatch.setattr(Failing, "share", 0.0)
    yield
    for name in ("memory", "failing"):
        system = fsspec.filesystem(name)
        system.store.clear()


def _copied(here: Path, scheme: str = "memory") -> str:
    fsspec.filesystem(scheme).put(f"{here}/", "/bucket/runs", recursive=True)
    return f"{scheme}://bucket/runs"


def _verdict(golden: str | Path, mine: str | Path, **options: Any) -> tuple[Any, ...]:
    outcome = dumpcmp.compare(golden, mine, replay="off", **options)
    rows = [(row.key, row.verdict, repr(row.metrics)) for row in outcome.rows]
    return outcome.word, outcome.exit_code, str(outcome.first_divergence), rows


def _same_as_local(here: Path, url: str) -> None:
    ours, theirs = Archive(here / "golden"), Archive(f"{url}/golden")
    assert list(ours) == list(theirs) and theirs.complete and ours.run == theirs.run
    for key, record in ours.items():
        assert np.array_equal(ours.load(record).bits, theirs.load(theirs[key]).bits)
    wanted = _verdict(here / "golden", here / "mine")
    assert wanted[1] == 1
    assert _verdict(f"{url}/golden", f"{url}/mine") == wanted


def test_a_store_in_memory_gives_the_same_answer(here: Path) -> None:
    url = _copied(here)
    _same_as_local(here, url)
    assert audit(f"{url}/golden").sound
    assert audit(f"{url}/small").num_records == audit(here / "small").num_records == 120


def test_a_web_server_gives_the_same_answer(here: Path) -> None:
    pytest.importorskip("aiohttp")
    with web_server(here) as url:
        _same_as_local(here, url)


def test_a_file_url_is_a_path(here: Path) -> None:
    assert place(f"file://{here}/golden") == here / "golden"
    assert not is_url(f"file://{here}") and not is_url("a/b:c") and is_url("s3://a")
    _same_as_local(here, f"file://{here}")


@pytest.fixture(scope="module")
def served() -> Iterator[Bucket]:
    """A server that speaks S3, which its library is led to."""
    pytest.importorskip("s3fs")
    with pytest.MonkeyPatch.context() as patch, bucket_served() as (bucket, variables):
        _lead(patch, variables)
        yield bucket


def _lead(patch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    for name, said in variables.items():
        patch.setenv(name, said)
    patch.setattr("s3fs.S3FileSystem.retries", 1)  # who asks again is this room
    fsspec.get_filesystem_class("s3").clear_instance_cache()


@pytest.fixture
def bucket(served: Bucket) -> Iterator[str]:
    """A URL where nothing lies."""
    yield "s3://bucket"
    served.objects.clear()


def _in_bucket(here: Path, url: str) -> str:
    fsspec.filesystem("s3").put(f"{here}/", f"{url}/runs", recursive=True)
    return f"{url}/runs"


def test_s3_gives_the_same_answer(here: Path, bucket: str) -> None:
    _same_as_local(here, _in_bucket(here, bucket))


def test_s3_that_fails_at_times_gives_the_same_answer(
    here: Path, bucket: str, served: Bucket
) -> None:
    url = _in_bucket(here, bucket)
    with served.troubled(every=5):
        _same_as_local(here, url)
    assert store_of("s3").meter.num_failed >= len(Trouble)  # each kind of it


def test_s3_that_fails_for_good_is_named(here: Path, bucket: str, served: Bucket) -> None:
    url = _in_bucket(here, bucket)
    archive = Archive(f"{url}/golden")
    record = next(iter(archive.values()))
    with served.troubled(every=1), pytest.raises(ArchiveError, match="cannot read 80000 bytes at"):
        archive.load(record)
    with served.troubled(every=1), pytest.raises(ArchiveError, match="cannot list"):
        Archive(f"{url}/golden")
    assert archive.load(record).shape == (20_000,)


def test_the_server_of_another_project_gives_the_same_answer(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("s3fs")
    pytest.importorskip("moto")
    with s3_server() as address:
        _lead(monkeypatch, {**KEYS, "AWS_ENDPOINT_URL": address})
        fsspec.filesystem("s3").mkdir("bucket")
        _same_as_local(here, _in_bucket(here, "s3://bucket"))
    fsspec.get_filesystem_class("s3").clear_instance_cache()


def test_the_hub_gives_the_same_answer_and_little_more_than_is_needed(here: Path) -> None:
    library = pytest.importorskip("huggingface_hub")
    library.HfFileSystem.clear_instance_cache()
    with hub_served(here) as (hub, address):
        stores._STORES[os.getpid(), "hf"] = Store("hf", library.HfFileSystem(endpoint=address))
        golden, mine = (f"hf://{REPO}/{name}" for name in ("golden", "mine"))
        assert _verdict(golden, mine) == _verdict(here / "golden", here / "mine")
        needed = _needed(Archive(here / "golden")) + _needed(Archive(here / "mine"))
        assert hub.nbytes <= 1.1 * needed
        with pytest.raises(ArchiveError, match="is not an archive"):
            Archive(f"hf://{REPO}/nothing")


def test_the_emulator_of_google_cloud_gives_the_same_answer(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Installed by hand: gcsfs and gcp-storage-emulator bring 40 packages."""
    gcsfs = pytest.importorskip("gcsfs")
    server = pytest.importorskip("gcp_storage_emulator.server").create_server(
        "127.0.0.1", 9023, in_memory=True, default_bucket="runs"
    )
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9023")
    server.start()
    try:
        gcsfs.GCSFileSystem.clear_instance_cache()
        for name in ("golden", "mine"):
            assert upload(here / name, f"gs://runs/{name}").is_whole
        assert _verdict("gs://runs/golden", "gs://runs/mine") == _verdict(
            here / "golden", here / "mine"
        )
        assert dumpcmp.compact("gs://runs/mine").total.num_parts
        assert audit("gs://runs/mine").sound
    finally:
        server.stop()


def test_commands_take_urls(here: Path, tmp_path: Path) -> None:
    url, run = _copied(here), CliRunner().invoke
    shown = run(main, ["show", f"{url}/golden", "layers.3"])
    assert shown.exit_code == 0 and "layers.3" in shown.output
    out = ["--output", str(tmp_path / "out"), "--replay", "off"]
    paths = ["--golden-path", f"{url}/golden", "--my-path", f"{url}/mine"]
    compared = run(main, ["compare", *paths, *out])
    assert compared.exit_code == 1 and "layers.7" in compared.output
    assert run(main, ["audit", f"{url}/golden"]).exit_code == 0
    assert run(main, ["explain", f"{url}/mine", f"{url}/golden", "layers.7"]).exit_code == 1
    run(main, ["compare", *paths, *out, "--format", "json"])
    (report,) = (tmp_path / "out").glob("*.json")
    fsspec.filesystem("memory").put(str(report), "/bucket/compare.json")
    page = run(main, ["report", "memory://bucket/compare.json", "--to", f"{tmp_path}/page.html"])
    assert page.exit_code == 0 and (tmp_path / "page.html").stat().st_size > 10_000
    assert run(main, ["report", "memory://bucket"]).exit_code == 2
    refused = run(main, ["compact", "--watch", f"{url}/golden"])
    assert refused.exit_code == 2 and "store" in refused.output


def test_a_url_stays_one_whatever_is_asked_of_it() -> None:
    url = place("s3://bucket/a//b/")
    assert isinstance(url, RemotePath) and str(url) == "s3://bucket/a/b"
    assert str(url / "c") == "s3://bucket/a/b/c" and str(url.parent) == "s3://bucket/a"
    assert str(url.with_name("d")) == "s3://bucket/a/d" and url.name == "b"
    again = pickle.loads(pickle.dumps(url))  # noqa: S301
    assert str(again) == str(place(url)) == str(url) and again == url
    with pytest.raises(NotImplementedError, match="no file of this machine"):
        os.stat(url)  # noqa: PTH116


# Ranges


def _needed(archive: Archive) -> int:
    """Bytes of values, each once."""
    places = {record.location for record in archive.values() if record.location}
    return sum(place.nbytes for place in places)


def test_a_comparison_reads_little_more_than_it_needs(here: Path) -> None:
    url, local = _copied(here), Archive(here / "golden")
    layers = [f"layers.{number}" for number in range(7)]
    differing = _needed(local) - _needed(local.select(layers))
    _verdict(f"{url}/golden", f"{url}/mine")
    meter = store_of("memory").meter
    assert meter.nbytes <= 1.1 * (_needed(local) + differing)
    assert meter.num_requests < 60


@pytest.mark.parametrize("name", ["golden", "small"])
def test_all_values_come_in_few_requests(here: Path, name: str) -> None:
    archive = Archive(f"{_copied(here)}/{name}")
    records = list(archive.values())
    meter = store_of("memory").meter
    index = meter.num_requests
    assert index <= 2 * 4 + 1  # of them one for the manifest
    archive.expect(records)
    for record in records:
        archive.load(record)
    assert meter.num_requests - index <= 2 * 2


def test_one_value_is_one_range(here: Path) -> None:
    archive = Archive(f"{_copied(here)}/golden")
    record = next(iter(archive.values()))
    meter = store_of("memory").meter
    before = meter.nbytes
    assert archive.load_own(record).bits.flags.writeable
    assert meter.nbytes - before == 80_000
    assert before < 0.02 * _needed(Archive(here / "golden"))


def test_neighbours_join_and_others_do_not() -> None:
    far = [(0, 100), (150, 100), (1 << 20, 50), ((1 << 20) + 2000, 50)]
    assert [run.ranges for run in runs_of(far)] == [far[:2], far[2:3], far[3:]]
    large = [(0, LONGEST_RUN), (LONGEST_RUN, 10)]
    assert [run.nbytes for run in runs_of(large)] == [LONGEST_RUN, 10]
    assert [run.nbytes for run in runs_of([(0, 100_000), (104_000, 100_000)])] == [204_000]


def test_a_part_that_another_program_wrote_is_read_as_well(here: Path) -> None:
    url = _copied(here)
    part = next((here / "small").rglob("part-0000.h5"))
    foreign = here / "foreign.h5"
    with h5py.File(part) as source, h5py.File(foreign, "w", libver="latest") as copy:
        for name in source:
            source.copy(name, copy)
    inside = part.relative_to(here / "small")
    fsspec.filesystem("memory").put(str(foreign), f"/bucket/runs/small/{inside}")
    foreign.unlink()
    ours, theirs = Archive(here / "small"), Archive(f"{url}/small")
    assert list(ours) == list(theirs)
    for key, record in ours.items():
        assert np.array_equal(ours.load(record).bits, theirs.load(theirs[key]).bits)


# Trouble


def test_a_store_that_fails_at_times_gives_the_same_answer(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = _copied(here, "failing")
    monkeypatch.setattr(Failing, "share", 0.1)
    monkeypatch.setattr(Failing, "cut", 0.1)
    monkeypatch.setattr(Failing, "seconds", 0.001)
    _same_as_local(here, url)
    assert store_of("failing").meter.num_failed > 0


def test_a_store_that_fails_for_good_is_named(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = _copied(here, "failing")
    archive = Archive(f"{url}/golden")
    record = next(iter(archive.values()))
    monkeypatch.setattr(Failing, "share", 1.0)
    with pytest.raises(ArchiveError, match=r"cannot read 80000 bytes at .*connection was lost"):
        archive.load(record)
    with pytest.raises(ArchiveError, match="cannot list"):
        Archive(f"{url}/golden")
    monkeypatch.setattr(Failing, "share", 0.0)
    assert archive.load(record).shape == (20_000,)  # a failure is not remembered


def test_values_that_cannot_be_read_are_no_verdict(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = _copied(here, "failing")
    read = Store.read

    def lost(self: Store, key: str, start: int, nbytes: int) -> bytes:
        if nbytes > 70_000:
            Failing.share = 1.0
        try:
            return read(self, key, start, nbytes)
        finally:
            Failing.share = 0.0

    monkeypatch.setattr(Store, "read", lost)
    try:
        _, code, _, rows = _verdict(f"{url}/golden", f"{url}/mine")
    except ArchiveError:
        return
    assert code == 2 and all(metrics == "None" for _, _, metrics in rows)


def test_bytes_that_are_not_what_was_recorded_are_refused(here: Path) -> None:
    url = _copied(here)
    archive = Archive(f"{url}/golden")
    record = next(iter(archive.values()))
    assert record.location is not None
    file = fsspec.filesystem("memory").store[record.location.part.key]  # type: ignore[attr-defined]
    file.seek(record.location.offset)
    file.write(b"12345")
    with pytest.raises(ArchiveError, match="another digest"):
        archive.load(record)
    assert not audit(f"{url}/golden").sound


def test_a_web_server_without_ranges_is_refused(here: Path) -> None:
    pytest.importorskip("aiohttp")
    from http.server import SimpleHTTPRequestHandler

    class Plain(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    with web_server(here, Plain) as url, pytest.raises(ArchiveError, match="cannot read"):
        len(Archive(f"{url}/golden"))


def test_what_is_not_there_and_what_is_not_known_is_said() -> None:
    with pytest.raises(ArchiveError, match="is not an archive"):
        Archive("memory://nothing/there")
    with pytest.raises(ArchiveError, match="nosuch:// is no store"):
        Archive("nosuch://a/b")
    with pytest.raises(ArchiveError, match="chain of stores"):
        Archive("simplecache::s3://a/b")


def test_without_a_library_the_extra_is_named() -> None:
    code = (
        "import sys; sys.modules['s3fs'] = None\n"
        "from dumpcmp.cli import main\n"
        "main(['show', 's3://bucket/run'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "pip install 'dumpcmp[s3]'" in done.stderr
    assert "Traceback" not in done.stderr


# What is kept


def test_what_was_read_once_is_not_asked_for_again(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE, f"{tmp_path}/kept:1G")
    url = _copied(here)
    first = _verdict(f"{url}/golden", f"{url}/mine")
    monkeypatch.setattr(stores, "_STORES", {})
    assert _verdict(f"{url}/golden", f"{url}/mine") == first
    meter = store_of("memory").meter
    assert meter.nbytes < 10_000  # run.json alone


def test_what_is_kept_and_damaged_is_asked_for_again(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE, f"{tmp_path}/kept")
    url = _copied(here)
    first = _verdict(f"{url}/golden", f"{url}/mine")
    for path in (tmp_path / "kept").glob("*.bytes"):
        path.write_bytes(bytes(path.stat().st_size))
    monkeypatch.setattr(stores, "_STORES", {})
    assert _verdict(f"{url}/golden", f"{url}/mine") == first


def test_what_is_kept_stays_below_its_bound(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 4 << 20)
    for number in range(40):
        kept = KeptRanges(cache, f"{number:032x}")
        kept.put(1 << 30, bytes(256 << 10))
        assert kept.get(1 << 30, 256 << 10) == bytes(256 << 10)
        assert sum(path.stat().st_blocks for path in tmp_path.iterdir()) * 512 <= 4 << 20
    assert any(tmp_path.iterdir())


def test_caches_are_written_as_directory_and_size(tmp_path: Path) -> None:
    assert parse_cache(f"{tmp_path}:2G") == (tmp_path, 2 << 30)
    assert parse_cache(str(tmp_path)) == (tmp_path, 10 << 30)


# Uploads


def _whole(url: str, local: Path) -> None:
    ours, theirs = Archive(local), Archive(url)
    assert theirs.complete and list(ours) == list(theirs) and audit(url).sound


def test_an_upload_is_whole_and_is_not_done_twice(here: Path, tmp_path: Path) -> None:
    spool = shutil.copytree(here / "golden", tmp_path / "spool")
    done = upload(spool, "memory://bucket/up")
    assert (done.num_files, done.is_whole) == (2, True)
    _whole("memory://bucket/up", here / "golden")
    assert upload(spool, "memory://bucket/up").num_files == 0
    with pytest.raises(ArchiveError, match="already holds a run"):
        upload(here / "mine", "memory://bucket/up")
    assert upload(here / "mine", "memory://bucket/up", overwrite=True).is_whole
    _whole("memory://bucket/up", here / "mine")


def test_a_store_that_fails_at_times_takes_all(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Failing, "share", 0.1)
    monkeypatch.setattr(Failing, "cut", 0.1)
    upload(shutil.copytree(here / "golden", tmp_path / "spool"), "failing://bucket/up")
    _whole("failing://bucket/up", here / "golden")


def test_an_upload_that_is_cut_short_is_not_taken_for_whole_and_goes_on(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool, url = shutil.copytree(here / "golden", tmp_path / "spool"), "failing://bucket/up"
    put = Failing.put_file

    def once(self: Failing, *words: Any, **options: Any) -> None:
        put(self, *words, **options)
        Failing.share = 1.0

    monkeypatch.setattr(Failing, "put_file", once)
    with pytest.raises(ArchiveError, match="cannot read"):
        upload(spool, url)
    monkeypatch.setattr(Failing, "share", 0.0)
    assert not Archive(url).complete and _verdict(url, url)[1] == 2
    monkeypatch.setattr(Failing, "put_file", put)
    assert upload(spool, url).num_files == 2  # what was not read back is uploaded again
    _whole(url, here / "golden")


def test_an_archive_is_compacted_in_its_store(here: Path, tmp_path: Path) -> None:
    local = shutil.copytree(here / "golden", tmp_path / "golden")
    url = f"{_copied(here)}/golden"
    Archive(url)  # its listing is known, and is not believed afterwards
    ran = CliRunner().invoke(main, ["compact", url])
    assert ran.exit_code == 0 and "24 values" in ran.output
    assert dumpcmp.compact(local).total == dumpcmp.compact(f"{_copied(here)}/golden").total
    there, at_home = Archive(url), Archive(local)
    assert [r.kept for r in there.values()] == [r.kept for r in at_home.values()]
    assert _verdict(url, local) == _verdict(local, local)
    assert not [n for n in fsspec.filesystem("memory").find("/bucket/runs/golden") if "draft" in n]
    assert dumpcmp.compact(url).total.num_parts == 0


def test_a_part_stays_as_it_is_where_its_summaries_do_not_arrive(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{_copied(here, 'failing')}/golden"

    def damaged(self: Failing, local: str, key: str, **_: Any) -> None:
        self.pipe_file(key, Path(local).read_bytes()[::-1])

    monkeypatch.setattr(Failing, "put_file", damaged)
    done = dumpcmp.compact(url)
    assert not done.total.num_parts and len(done.problems) == 2
    assert "has the digest" in done.problems[0]
    _whole(url, here / "golden")


def test_a_copy_that_is_not_the_same_is_refused(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(self: Failing, local: str, key: str, **_: Any) -> None:
        content = Path(local).read_bytes()
        self.pipe_file(key, content[:-1] + bytes([content[-1] ^ 1]))

    monkeypatch.setattr(Failing, "put_file", damaged)
    spool = shutil.copytree(here / "golden", tmp_path / "spool")
    with pytest.raises(ArchiveError, match="has the digest"):
        upload(spool, "failing://bucket/up", spool_limit=1)
    assert Archive(spool).complete and not Archive("failing://bucket/up").complete


def test_parts_make_room_once_they_are_uploaded(here: Path, tmp_path: Path) -> None:
    spool, url = shutil.copytree(here / "golden", tmp_path / "spool"), "memory://bucket/up"
    done = upload(spool, url, spool_limit=1_500_000)
    assert done.num_removed == 1 and len(list(spool.rglob("*.h5"))) == 1
    _whole(url, here / "golden")
    assert Archive(spool).problems == ("rank 0: parts of it were moved to memory://bucket/up",)
    assert upload(spool, url).is_whole
    with pytest.raises(ArchiveError, match="were moved to"):
        upload(spool, "memory://bucket/other")


def test_a_run_is_uploaded_while_it_goes_on(tmp_path: Path) -> None:
    url = "memory://bucket/live"
    with ArchiveWriter(tmp_path / "d") as sink:
        put(sink, Key("Net", 0, Op("a"), 0, "output.0"), np.ones(4))
        sink.finish_step("Net", 0)
        put(sink, Key("Net", 1, Op("a"), 0, "output.0"), np.ones(4))
        sink.settle()
        while not list((tmp_path / "d").rglob("0/part-0000.h5")):
            time.sleep(0.01)
        first = upload(tmp_path / "d", url)
        assert not first.is_whole and "still being written" in first.left[-1]
        assert not Archive(url).complete
    assert upload(tmp_path / "d", url, follow=True).is_whole
    _whole(url, tmp_path / "d")


def test_a_capture_into_a_store_is_read_from_there(
    bucket: str, served: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setenv("DUMPCMP_SPOOL", str(tmp_path))
    model, url = torch.nn.Linear(4, 4), f"{bucket}/captured"
    with served.troubled(every=5), dumpcmp.capture(model, url):
        model(torch.ones(1, 4))
    assert served.num_troubled
    (spool,) = tmp_path.iterdir()
    _whole(url, spool)
    with pytest.raises(ArchiveError, match="already holds a run"), dumpcmp.capture(model, url):
        pass


def test_a_run_that_was_killed_is_never_whole_in_a_store(tmp_path: Path) -> None:
    code = (
        "import os, sys, time, numpy as np\n"
        "from dumpcmp.archive.write.writer import ArchiveWriter\n"
        "from tests.archive.values import key, put\n"
        "sink = ArchiveWriter(sys.argv[1])\n"
        "for step in range(2):\n"
        "    put(sink, key(step=step), np.ones(4))\n"
        "sink.settle()\n"
        "os.kill(os.getpid(), 9)\n"
    )
    spool, url = tmp_path / "d", "memory://bucket/killed"
    subprocess.run([sys.executable, "-c", code, str(spool)], check=False)
    done = upload(spool, url, follow=True)  # which ends, since nobody writes any more
    assert not done.is_whole and "not sealed" in done.left[-1]
    assert not Archive(url).complete
    assert audit(spool, repair=True).sound
    assert upload(spool, url).is_whole
    assert len(Archive(url)) == 2 and not Archive(url).complete
