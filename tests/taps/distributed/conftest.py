"""The runs that the tests look at: campaigns of many runs in one set of processes each."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.choosing_cases import asked_for
from tests.taps.distributed.launching import forked
from tests.taps.distributed.programs.names import FAULTS, ON_TWO

CAMPAIGN = "tests.taps.distributed.programs.campaign"


@pytest.fixture(scope="session")
def partitioned(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Callable[[str], Path]:
    """Where a run is, by its name and number of ranks, as in ``megatron-4``.

    The first that is asked for on two ranks brings all of them, with the faults that selected tests
    name. Others are run when they are asked for.
    """
    room = tmp_path_factory.mktemp("partitioned")
    on_two = [*ON_TWO, *asked_for(request.session.items, FAULTS)]

    def find(name: str) -> Path:
        run, _, num_ranks = name.rpartition("-")
        if not (room / name).exists():
            together = on_two if num_ranks == "2" and run in on_two else [run]
            forked(int(num_ranks), CAMPAIGN, str(room), *together)
        return room / name

    return find
