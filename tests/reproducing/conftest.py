"""Scripts are tried by one process for all tests, which has torch at hand: importing takes long.

A page of the docs runs the command, which starts a process of its own.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

import pytest

from dumpcmp.reproducing import making_repros
from dumpcmp.reproducing.trials import Trials, trying


@pytest.fixture(scope="session")
def served() -> Iterator[Trials]:
    with trying() as trials:
        yield trials


@pytest.fixture(autouse=True)
def tried_at_hand(served: Trials, monkeypatch: pytest.MonkeyPatch) -> None:
    def counted_anew() -> AbstractContextManager[Trials]:
        return nullcontext(Trials(served.server, served.room))

    monkeypatch.setattr(making_repros, "trying", counted_anew)
