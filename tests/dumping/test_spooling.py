"""Dumps into a store: written here first, whole there at the end, and refused before they begin."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

pytest.importorskip("fsspec")

import fsspec

import dumpcmp
from dumpcmp.archive.copies import SPOOL
from dumpcmp.archive.read.reader import Archive
from dumpcmp.archive.stores.urls import RemotePath, place
from dumpcmp.dumping.spooling import Spool
from dumpcmp.nouns.errors import ArchiveError, SelectionError

URL = "memory://bucket/run"


@pytest.fixture(autouse=True)
def spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(SPOOL, str(tmp_path))
    fsspec.filesystem("memory").store.clear()
    return tmp_path


def _run(model: nn.Module) -> None:
    with dumpcmp.capture(model, URL):
        model(torch.ones(1, 4))


def test_what_is_captured_into_a_store_is_there_at_the_end(spool: Path) -> None:
    _run(nn.Linear(4, 4))
    (here,) = spool.iterdir()
    ours, theirs = Archive(here), Archive(URL)
    assert theirs.complete and list(ours) == list(theirs) and len(theirs)


def test_a_place_that_is_taken_is_refused_before_the_run(spool: Path) -> None:
    _run(nn.Linear(4, 4))
    called: list[bool] = []
    with pytest.raises(ArchiveError, match="already holds a run"), dumpcmp.capture(None, URL):
        called.append(True)
    assert not called and len(list(spool.iterdir())) == 1


def test_compaction_beside_the_run_is_refused() -> None:
    kept = dumpcmp.Retention(compact=True)
    with (
        pytest.raises(SelectionError, match="stay on this machine"),
        dumpcmp.capture(None, URL, keep=kept),
    ):
        pass


def test_an_upload_that_fails_says_how_to_go_on(tmp_path: Path) -> None:
    url = place("s3://bucket/run")
    assert isinstance(url, RemotePath)
    nothing = Spool(tmp_path / "nothing", url)
    said = "not all of it in s3://bucket/run"
    with pytest.raises(ArchiveError, match=said) as raised, nothing.uploading():
        pass
    assert "dumpcmp upload" in raised.value.hint
    with pytest.raises(ZeroDivisionError), nothing.uploading():
        raise ZeroDivisionError  # the program's own error is the one that counts
