"""An archive in a notebook: tensors by name, selections, tables, and what it says of itself."""

from __future__ import annotations

import pickle
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from dumpcmp.archive.read.reader import Archive
from dumpcmp.archive.write.writer import ArchiveWriter
from dumpcmp.nouns.errors import ArchiveError, MissingValueError, SelectionError
from dumpcmp.nouns.key import Key, Op
from dumpcmp.nouns.record import Call, Kept, Record, Stored
from tests.archive.values import SMALL_NUMBERS, Dense, key, parts, put, record

LINEAR = Op("layers.0.attn/linear")
LAYERS = {"layers.0.attn/linear", "layers.1", "layers.1@1/gelu"}
LARGE = np.arange(40_000.0)


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    """Two models; the larger has three steps, a function called twice, links and a Summary."""
    with ArchiveWriter(tmp_path / "d") as sink:
        for step in range(3):
            sink.call(Call("Model", step, LINEAR, 0, 0, "torch.f", "m.py:7"))
            put(sink, key("layers.0.attn/linear", step=step), np.full(3, float(step)))
            put(sink, key("layers.0.attn/linear", "input.0", step), np.full(2, 9.0))
            put(sink, key("layers.0.attn/linear", step=step, call=1), np.full(3, -1.0))
            again = record(key("layers.1", "input.0", step), np.full(3, float(step)), order=1)
            sink.put(replace(again, same_as=key("layers.0.attn/linear", step=step)), None)
            put(sink, key("layers.1@1/gelu", step=step), np.full(3, 0.5), 2)
            put(sink, key("large", step=step), LARGE, 3)
        stored = Stored("float64", (4,))
        summary = Record(key("short"), 4, "float32", (1000,), kept=Kept.SUMMARY, stored=stored)
        sink.put(summary, Dense(np.ones(4)))
        sink.put(Record(key("sparse"), 5, "float32", (2,), problem="it is sparse"), None)
        for model in ("Model", "Draft"):
            put(sink, Key(model, 0, "head", 0, "output.0"), np.ones(2), 6)
    return Archive(tmp_path / "d")


def test_a_tensor_by_name_by_key_and_by_record(archive: Archive) -> None:
    wanted = torch.full((3,), 2.0, dtype=torch.float64)
    name = key("layers.0.attn/linear", step=2)
    assert torch.equal(archive.tensor("layers.0.attn/linear", step=2), wanted)
    assert torch.equal(archive.tensor(name), wanted)
    assert torch.equal(archive.tensor(archive[name]), wanted)
    assert torch.equal(archive.tensor("layers.1", step=2, slot="input.0"), wanted)
    assert archive.tensor("layers.0.attn/linear", call=1)[0] == -1
    assert archive.tensor("head", model="Draft").shape == (2,)


@pytest.mark.parametrize("shape", [(3,), (1,), (0,), ()])
def test_every_dtype_comes_back_as_torch_calls_it(tmp_path: Path, shape: tuple[int, ...]) -> None:
    with ArchiveWriter(tmp_path / "d") as sink:
        for name, three in SMALL_NUMBERS.items():
            bits = three[: shape[0] if shape else 1].reshape(shape)
            sink.put(record(key(name), bits, name), Dense(bits))
            many = np.resize(three, 70_000)
            sink.put(record(key(name, "output.1"), many, name), Dense(many))
    archive = Archive(tmp_path / "d")
    for name, three in SMALL_NUMBERS.items():
        small, large = archive.tensor(name), archive.tensor(name, slot="output.1")
        assert (str(small.dtype), small.shape) == (f"torch.{name}", shape)
        assert str(large.dtype) == f"torch.{name}"
        raw = large.view(torch.uint8).numpy().tobytes()
        assert raw == np.resize(three, 70_000).tobytes()


def test_a_large_tensor_is_mapped_and_changes_nothing_but_itself(archive: Archive) -> None:
    before = [part.read_bytes() for part in parts(archive.path)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tensor, other = archive.tensor("large"), archive.tensor("large")
    tensor.zero_()
    assert other[7] == 7 and archive.tensor("large")[7] == 7
    assert archive.load(archive[key("large")]).bits[7] == 7
    assert [part.read_bytes() for part in parts(archive.path)] == before
    del archive
    assert tensor.sum() == 0 and other.sum() == LARGE.sum()  # they outlive the archive


MISSING = {
    "layers.0.atn/linear": ({}, "no op", "layers.0.attn/linear"),
    "layers.0.attn/linear": ({"step": 7}, "no step 7", "0-2"),
    "layers.1": ({"slot": "output.0"}, "no slot output.0", "input.0"),
    "large": ({"call": 3}, "no call 3", "0"),
    "head": ({"model": "Modle"}, "no model 'Modle'", "Model"),
}


@pytest.mark.parametrize("op", MISSING)
def test_what_is_not_there_is_said_with_the_closest_names(archive: Archive, op: str) -> None:
    asked, said, hint = MISSING[op]
    with pytest.raises(MissingValueError, match=said) as caught:
        archive.tensor(op, **asked)  # type: ignore[arg-type]
    assert isinstance(caught.value, KeyError) and hint in caught.value.hint
    assert str(caught.value).startswith(caught.value.message)


def test_a_key_or_selection_without_the_value_says_so_too(archive: Archive) -> None:
    with pytest.raises(MissingValueError, match="no op"):
        archive.tensor(key("nowhere"))
    with pytest.raises(MissingValueError, match="no op"):
        archive.select("layers.*").tensor("head", model="Model")
    with pytest.raises(MissingValueError, match="no model"):
        archive.select(steps=9).tensor("head")


def test_an_op_of_two_models_and_what_has_no_elements(archive: Archive) -> None:
    with pytest.raises(ArchiveError, match="ran in Draft and in Model") as caught:
        archive.tensor("head")
    assert caught.value.hint == "say which: model='Draft'"
    with pytest.raises(ArchiveError, match="only a Summary"):
        archive.tensor("short")
    with pytest.raises(ArchiveError, match="it is sparse"):
        archive.tensor("sparse")


def test_shards_need_a_rank_and_replicas_do_not(tmp_path: Path) -> None:
    for rank in (0, 1):
        with ArchiveWriter(tmp_path / "d", rank=rank, world_size=2) as sink:
            put(sink, key("replica"), np.ones(3))
            put(sink, key("shard"), np.full(3, float(rank)))
            put(sink, key(f"only{rank}"), np.full(3, float(rank)))
    archive = Archive(tmp_path / "d")
    assert archive.tensor("replica")[0] == 1 and archive.tensor("only1")[0] == 1
    assert archive.tensor("shard", rank=1)[0] == 1
    with pytest.raises(ArchiveError, match="in shards on ranks 0, 1") as caught:
        archive.tensor("shard")
    assert "rank=0" in caught.value.hint
    with pytest.raises(MissingValueError, match="rank 0 has no"):
        archive.tensor("only1", rank=0)
    assert "2 of 2 ranks" in repr(archive)
    assert len(archive.to_pandas()) == 6 and len(archive) == 4


def test_ops_and_keys_are_in_the_archive(archive: Archive) -> None:
    there: list[object] = ["layers.0.attn/linear", "layers.1/gelu", "layers.1@1/gelu"]
    assert all(name in archive for name in there)
    nowhere: list[object] = ["layers.9", 3, None]
    assert not any(name in archive for name in nowhere)
    assert key("large") in archive and key("large", step=8) not in archive


SELECTIONS = {
    "layers": ({"layers": "layers.0.*"}, {"layers.0.attn/linear"}, {0, 1, 2}),
    "function": ({"layers": ["layers.1/*", "large"]}, {"layers.1@1/gelu", "large"}, {0, 1, 2}),
    "module": ({"layers": "layers.1"}, {"layers.1", "layers.1@1/gelu"}, {0, 1, 2}),
    "steps": ({"layers": "large", "steps": "0,2"}, {"large"}, {0, 2}),
    "step": ({"layers": "large", "steps": 1}, {"large"}, {1}),
    "slots": ({"slots": "input.*"}, {"layers.0.attn/linear", "layers.1"}, {0, 1, 2}),
    "kind": ({"slots": ["input"], "steps": [2]}, {"layers.0.attn/linear", "layers.1"}, {2}),
    "nothing": ({"layers": "nowhere"}, set(), set()),
}


@pytest.mark.parametrize("name", SELECTIONS)
def test_a_selection_holds_what_its_filters_say(archive: Archive, name: str) -> None:
    filters, ops, steps = SELECTIONS[name]
    chosen = archive.select(**filters)  # type: ignore[arg-type]
    assert {found.op for found in chosen} == ops and {found.step for found in chosen} == steps
    assert set(chosen) <= set(archive) and len(chosen) == len(list(chosen))
    assert dict(chosen) == {found: archive[found] for found in chosen}
    assert all(found in chosen and chosen.shards(found) for found in chosen)
    left = set(archive) - set(chosen)
    assert not any(found in chosen for found in left)
    for found in left:
        with pytest.raises(KeyError):
            chosen[found]


def test_selections_narrow_and_travel(archive: Archive) -> None:
    assert len(archive.calls) == 19
    chosen = archive.select("layers.*").select(steps=1).select(slots="output.*")
    assert {(found.op, found.step) for found in chosen} == {
        ("layers.0.attn/linear", 1), ("layers.1@1/gelu", 1),
    }  # fmt: skip
    assert chosen.models == ("Model",) and chosen.steps("Model") == (1,)
    asked: list[object] = ["layers.0.attn/linear", "large"]
    assert [name in chosen for name in asked] == [True, False]
    assert chosen.tensor("layers.0.attn/linear", step=1)[0] == 1
    assert {site.op for site in chosen.calls} == {each.op for each in archive} & LAYERS
    assert {site.step for site in chosen.calls} == {1}
    assert dict(pickle.loads(pickle.dumps(chosen))) == dict(chosen)  # noqa: S301
    with pytest.raises(SelectionError):
        archive.select(steps="x")


def test_a_table_has_a_line_for_each_value(archive: Archive) -> None:
    table = archive.to_pandas()
    assert len(table) == len(archive)
    line = table[(table.op == "layers.0.attn/linear") & (table.token == 2)].iloc[0]
    assert (line.model, line.call, line.slot, line["rank"]) == ("Model", 0, "output.0", 0)
    assert (line["dtype"], line["shape"], line["nbytes"], line.kept) == (
        "float64",
        (3,),
        24,
        "full",
    )
    assert (line.source, line.target, line.phase) == ("m.py:7", "torch.f", "forward")
    assert line.digest == archive[key("layers.0.attn/linear", step=2)].digest
    links = table[table.same_as != ""]
    assert set(links.op) == {"layers.1"} and table[table.op == "sparse"]["nbytes"].item() == 0
    assert list(archive.select("nowhere").to_pandas().columns) == list(table.columns)


def test_it_says_what_it_is_in_a_line(archive: Archive) -> None:
    said = repr(archive)
    assert str(archive.path) in said and "Model 0-2" in said and "complete" in said
    assert f"{len(archive)} values" in said and len(said) < 200 + len(str(archive.path))
    html = archive._repr_html_()
    assert html.startswith("<table>") and "Model 0-2" in html and "complete" in html
    chosen = archive.select("layers.<b>*", steps="0-1")
    assert "layers.<b>*" in repr(chosen) and "0-1" in repr(chosen) and "values" not in repr(chosen)
    assert "<b>" not in chosen._repr_html_()


def test_one_that_was_cut_short_says_so(archive: Archive) -> None:
    (archive.path / "worldsize1_global_rank0" / "run.json").unlink()
    assert "incomplete: rank 0: run.json is missing" in repr(Archive(archive.path))
