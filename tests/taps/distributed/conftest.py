"""The runs that the tests look at: each campaign is started once, in processes of its own."""

from pathlib import Path

import pytest

from tests.taps.distributed.launching import forked
from tests.taps.distributed.programs.names import FAULTS, ON_EIGHT, ON_FOUR, ON_TWO

CAMPAIGN = "tests.taps.distributed.programs.campaign"


@pytest.fixture(scope="session")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All runs on two ranks, right ones and faulty ones: ``NAME-2``."""
    path = tmp_path_factory.mktemp("two")
    forked(2, CAMPAIGN, str(path), *ON_TWO, *FAULTS)
    return path


@pytest.fixture(scope="session")
def four(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs on four ranks: ``NAME-4``."""
    path = tmp_path_factory.mktemp("four")
    forked(4, CAMPAIGN, str(path), *ON_FOUR)
    return path


@pytest.fixture(scope="session")
def eight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run on eight ranks: ``megatron-8``."""
    path = tmp_path_factory.mktemp("eight")
    forked(8, CAMPAIGN, str(path), *ON_EIGHT)
    return path
