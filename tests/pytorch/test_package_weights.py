"""Weights of a ``.pt2`` are those that were saved, mapped and never unpickled."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dumpcmp.nouns.errors import ProgramFileError
from dumpcmp.pytorch.package_weights import load_program

DTYPES = (torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64)
WEIGHTS = "data/weights/model_weights_config.json"


class Many(nn.Module):
    """Weights of several dtypes, shared ones, one that is transposed, and a constant."""

    def __init__(self) -> None:
        super().__init__()
        draws = torch.Generator().manual_seed(0)
        for number, dtype in enumerate(DTYPES):
            numbers = torch.randn(3, 5, generator=draws) * 9
            self.register_buffer(f"b{number}", numbers.to(dtype))
        self.linear = nn.Linear(4, 4)
        self.tied = self.linear.weight
        self.turned = nn.Parameter(torch.randn(4, 6, generator=draws).t().contiguous().t())
        self.constant = torch.arange(4.0)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = (self.linear(x) + self.constant) @ self.turned + self.tied.sum()
        return made


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("package") / "m.pt2"
    torch.manual_seed(0)
    torch.export.save(torch.export.export(Many().eval(), (torch.ones(2, 4),)), path)
    return path


def test_weights_are_those_that_were_saved(path: Path) -> None:
    loaded = load_program(path)
    known = torch.export.load(path)
    saved = {**known.state_dict, **known.constants}
    assert set(loaded.tensors) == set(saved)
    for name, tensor in saved.items():
        assert loaded.tensors[name].dtype == tensor.dtype
        assert torch.equal(loaded.tensors[name], tensor), name
    assert loaded.tensors["turned"].stride() == (1, 4)
    tied, weight = loaded.tensors["tied"], loaded.tensors["linear.weight"]
    assert tied.data_ptr() == weight.data_ptr()


def test_a_write_to_a_weight_leaves_the_file_alone(path: Path) -> None:
    before = path.read_bytes()
    load_program(path).tensors["linear.weight"].zero_()
    assert path.read_bytes() == before


def edited(source: Path, path: Path, name: str, change: Callable[[Any], Any]) -> Path:
    """A copy of a package in which one entry is what `change` makes of it."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(path, "w") as new:
        for entry in old.infolist():
            content = old.read(entry)
            if entry.filename.endswith(name):
                content = change(content)
            new.writestr(entry.filename, content)
    return path


def changed(change: Callable[[dict[str, Any]], None]) -> Callable[[bytes], bytes]:
    def edit(content: bytes) -> bytes:
        config = json.loads(content)
        change(config["config"]["linear.weight"])
        return json.dumps(config).encode()

    return edit


def larger(weight: dict[str, Any]) -> None:
    weight["tensor_meta"]["sizes"] = [{"as_int": 4000}, {"as_int": 4}]


def before_the_file(weight: dict[str, Any]) -> None:
    weight["tensor_meta"]["storage_offset"] = {"as_int": -4}


def backwards(weight: dict[str, Any]) -> None:
    weight["tensor_meta"]["strides"] = [{"as_int": -4}, {"as_int": 1}]


def pickled(weight: dict[str, Any]) -> None:
    weight["use_pickle"] = True


def missing(weight: dict[str, Any]) -> None:
    weight["path_name"] = "weight_99"


@pytest.mark.parametrize("change", [larger, before_the_file, backwards, pickled, missing])
def test_hostile_weights_are_refused(
    change: Callable[[dict[str, Any]], None], path: Path, tmp_path: Path
) -> None:
    hostile = edited(path, tmp_path / "m.pt2", WEIGHTS, changed(change))
    with pytest.raises(ProgramFileError):
        load_program(hostile)


def test_a_weight_that_is_cut_off_is_refused(path: Path, tmp_path: Path) -> None:
    cut = edited(path, tmp_path / "m.pt2", "weights/weight_0", lambda content: content[:8])
    with pytest.raises(ProgramFileError, match="has 8 bytes, fewer than"):
        load_program(cut)
