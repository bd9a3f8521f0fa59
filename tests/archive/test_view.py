"""A view shows each value of an archive to h5py alone, links as well, with what is known of it."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from torch import nn

import dumpcmp
from dumpcmp.archive.read.reader import Archive
from dumpcmp.archive.view import write_view


@pytest.fixture(scope="module", params=["full", "summary"])
def archive(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Archive:
    room = tmp_path_factory.mktemp("view")
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2).to(torch.float32))
    keep = dumpcmp.Retention(keep=request.param)
    with torch.no_grad(), dumpcmp.capture(net, room / "d", keep=keep):
        net(torch.ones(3, 4))
        net(torch.zeros(3, 4))
    return Archive(room / "d")


def test_every_value_is_found_by_visititems_with_its_attributes(archive: Archive) -> None:
    path = archive.path.parent / "view.h5"
    num_values = write_view(archive, path)
    assert num_values == len(archive) == sum(1 for _ in archive)
    found: dict[tuple[Any, ...], Any] = {}

    def look(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            told = dict(item.attrs)
            step = int(name.split("/")[2])
            found[step, told["op"], told["call"], told["slot"]] = item, told

    with h5py.File(path) as file:
        file.visititems(look)
        assert len(found) == num_values
        for key, record in archive.items():
            item, told = found[key.step, key.op, key.call, key.slot]
            assert (told["dtype"], told["order"], told["layout"]) == (
                record.dtype, record.order, record.layout,
            )  # fmt: skip
            if "problem" in told:
                assert record.kept != "full" and item.shape is None
            else:
                assert np.array_equal(item[()], archive.load(record).bits)
    assert path.stat().st_size < 2**20


def test_the_view_can_be_moved_with_its_archive(archive: Archive, tmp_path: Path) -> None:
    write_view(archive, archive.path.parent / "view.h5")
    moved = archive.path.parent.rename(tmp_path / "elsewhere")
    try:
        with h5py.File(moved / "view.h5") as file:
            shown: list[Any] = []
            file.visititems(lambda _, item: shown.append(item) if hasattr(item, "dtype") else None)
            held = [item for item in shown if item.shape and "problem" not in item.attrs]
            kinds = {item.attrs["op"] for item in held if item.is_virtual and item[()].any()}
        assert ("0/linear" in kinds) == any(record.kept == "full" for _, record in archive.items())
    finally:
        moved.rename(archive.path.parent)
