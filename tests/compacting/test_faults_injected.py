"""Whatever the system refuses a compactor: a part is as it was or compacted, and that is told."""

from __future__ import annotations

import errno
import os
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from dumpcmp.archive import rewrite
from dumpcmp.archive.integrity import audit
from dumpcmp.archive.read.reader import Archive
from dumpcmp.compacting import compact
from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.nouns.key import Key
from dumpcmp.nouns.record import Kept
from tests.archive.faulty import failing
from tests.compacting.archives import write_archive

TRIALS = int(os.environ.get("DUMPCMP_FAULTS", "30"))
SEED = int(os.environ.get("DUMPCMP_SEED", "0"))
ERRORS = ("ENOSPC", "EDQUOT", "EIO", "EMFILE", "ENOMEM", "EINTR")


def numbers(path: Path) -> dict[Key, tuple[str, bytes]]:
    archive = Archive(path)
    archive.checks_digests = True
    return {
        name: (record.kept, np.asarray(archive.load(record).bits).tobytes())
        for name, record in archive.items()
    }


@pytest.mark.parametrize("error", ERRORS)
def test_a_fault_anywhere_leaves_parts_whole(
    error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, done = tmp_path / "whole", tmp_path / "done"
    write_archive(whole)
    shutil.copytree(whole, done)
    compact(done)
    before, after = numbers(whole), numbers(done)
    draws = random.Random(f"{error} {SEED}")
    for trial in range(TRIALS // len(ERRORS)):
        path = tmp_path / f"d{trial}"
        shutil.copytree(whole, path)
        system = failing(draws.randrange(60), getattr(errno, error))
        problems: tuple[str, ...] = ()
        with monkeypatch.context() as patch:
            system.install(patch)
            patch.setattr(rewrite, "os", system)
            try:
                problems = compact(path).problems
            except (DumpcmpError, OSError) as raised:
                problems = (str(raised),)
        found = numbers(path)
        assert found.keys() == before.keys()
        for name, value in found.items():
            assert value in (before[name], after[name]), name
        summed = sum(kept == Kept.SUMMARY for kept, _ in found.values())
        assert problems or summed == sum(kept == Kept.SUMMARY for kept, _ in after.values())
        compact(path)  # the next one finds nothing in its way
        assert numbers(path) == after
        assert audit(path).sound and not list(path.rglob(".draft-*"))
        shutil.rmtree(path)
