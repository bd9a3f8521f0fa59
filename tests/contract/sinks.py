"""What every Sink owes to a capture, as tests that a subclass runs against its own."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from dumpcmp.nouns.key import Key
from dumpcmp.nouns.record import Call, Kept, Record, Sink
from tests.archive.values import Dense

KEY = Key("Model", 0, "layers.0/linear", 0, "output.0")
LINK = Key("Model", 0, "layers.1", 0, "input.0")
BITS = np.arange(12.0).reshape(3, 4)


class SinkContract(ABC):
    """Subclass it, say how to open the sink and how to look into it, and run pytest."""

    @abstractmethod
    def opened(self, path: Path) -> AbstractContextManager[Sink]:
        """A sink that ends with the block."""

    @abstractmethod
    def received(self, path: Path) -> dict[Key, Record]:
        """The Records that the closed sink has received."""

    @abstractmethod
    def elements(self, path: Path, key: Key) -> NDArray[np.generic]:
        """The elements that it has received for `key`."""

    def record(self, key: Key = KEY, **fields: object) -> Record:
        told = {"order": 0, "dtype": "float64", "shape": (3, 4), "stride": (4, 1)} | fields
        return Record(key, **told)  # type: ignore[arg-type]

    def test_a_value_arrives_with_its_elements(self, tmp_path: Path) -> None:
        with self.opened(tmp_path / "d") as sink:
            sink.call(Call("Model", 0, KEY.op, 0, 0))
            sink.put(self.record(), Dense(BITS))
        np.testing.assert_array_equal(self.elements(tmp_path / "d", KEY), BITS)

    def test_the_elements_are_copied_before_put_returns(self, tmp_path: Path) -> None:
        bits = BITS.copy()
        with self.opened(tmp_path / "d") as sink:
            sink.put(self.record(), Dense(bits))
            bits[:] = -1
        np.testing.assert_array_equal(self.elements(tmp_path / "d", KEY), BITS)

    def test_a_copy_that_is_under_way_is_waited_for(self, tmp_path: Path) -> None:
        arrived = threading.Event()
        with self.opened(tmp_path / "d") as sink:
            sink.put(self.record(), Dense(BITS, wait=lambda: _arrive(arrived)))
            arrived.set()
        np.testing.assert_array_equal(self.elements(tmp_path / "d", KEY), BITS)

    def test_a_link_leads_to_the_first_value(self, tmp_path: Path) -> None:
        with self.opened(tmp_path / "d") as sink:
            sink.put(self.record(), Dense(BITS))
            sink.put(self.record(LINK, same_as=KEY), None)
        assert self.received(tmp_path / "d")[LINK].same_as == KEY
        np.testing.assert_array_equal(self.elements(tmp_path / "d", LINK), BITS)

    def test_a_problem_is_received_as_one(self, tmp_path: Path) -> None:
        with self.opened(tmp_path / "d") as sink:
            sink.put(self.record(problem="quantised", kept=Kept.NOTHING), None)
        found = self.received(tmp_path / "d")[KEY]
        assert (found.kept, found.problem) == (Kept.NOTHING, "quantised")

    @pytest.mark.parametrize("num_threads", [4])
    def test_threads_may_share_it(self, tmp_path: Path, num_threads: int) -> None:
        keys = [Key("Model", 0, f"op{n}", call, "output.0") for n in range(4) for call in range(25)]
        with self.opened(tmp_path / "d") as sink:

            def put(mine: list[Key]) -> None:
                for key in mine:
                    sink.put(self.record(key), Dense(BITS))

            threads = [
                threading.Thread(target=put, args=(keys[start::num_threads],))
                for start in range(num_threads)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert set(self.received(tmp_path / "d")) == set(keys)


def _arrive(arrived: threading.Event) -> None:
    assert arrived.wait(5)
