"""Our bytes are HDF5's: types are what h5py makes of them, and tools print the true numbers."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray

from dumpcmp.archive import encoder
from dumpcmp.archive.schema import ROW_TYPE
from dumpcmp.archive.write.writer import ArchiveWriter
from dumpcmp.nouns.value import DTYPES, widen
from tests.archive.values import SMALL_NUMBERS, Dense, key, parts, record

H5DUMP = shutil.which("h5dump")


def short_float(
    sign: Any, exponent: Any, width: Any, mantissa: Any, bias: Any, nbytes: Any
) -> h5py.h5t.TypeFloatID:
    kind = h5py.h5t.IEEE_F32LE.copy()
    kind.set_fields(sign, exponent, width, 0, mantissa)
    kind.set_precision(8 * nbytes)
    kind.set_size(nbytes)
    kind.set_ebias(bias)
    return kind


SHORT_FLOATS = {
    "bfloat16": short_float(15, 7, 8, 7, 127, 2),
    "float8_e4m3fn": short_float(7, 3, 4, 3, 7, 1),
    "float8_e5m2": short_float(7, 2, 5, 2, 15, 1),
}


@pytest.mark.parametrize("name", DTYPES)
def test_the_datatype_message_is_the_one_that_hdf5_writes(name: str) -> None:
    storage = np.dtype(DTYPES[name].storage)
    theirs = SHORT_FLOATS.get(name) or h5py.h5t.py_create(storage, logical=True)
    assert encoder.datatype(name) == theirs.encode()[2:]


def test_the_index_is_a_compound_that_h5py_understands() -> None:
    ours = encoder.numpy_datatype(ROW_TYPE)
    decoded = h5py.h5t.decode(b"\x03\x00" + ours)
    assert decoded.dtype == ROW_TYPE


@pytest.fixture(scope="module")
def every_dtype(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A part with a value of every dtype: three numbers, a scalar and an empty one."""
    path = tmp_path_factory.mktemp("every")
    with ArchiveWriter(path) as sink:
        for name, bits in SMALL_NUMBERS.items():
            for slot, value in (
                ("three", bits),
                ("scalar", bits[1:2].reshape(())),
                ("none", bits[:0]),
            ):
                sink.put(record(key(name, slot), value, name), Dense(value))
    (part,) = parts(path)
    return part


@pytest.mark.parametrize("name", DTYPES)
def test_plain_h5py_reads_the_true_numbers(every_dtype: Path, name: str) -> None:
    numbers = widen(SMALL_NUMBERS[name], DTYPES[name])
    with h5py.File(every_dtype) as file:
        group = file[f"{name}#0"]
        np.testing.assert_array_equal(group["three"][()], numbers)
        np.testing.assert_array_equal(group["scalar"][()], numbers[1])
        assert group["none"].shape == (0,)


@pytest.mark.skipif(H5DUMP is None, reason="h5dump is not installed: see CONTRIBUTING.md")
@pytest.mark.parametrize("name", DTYPES)
def test_h5dump_prints_the_true_numbers(every_dtype: Path, name: str) -> None:
    command = [str(H5DUMP), "-y", "-w", "0", "-d", f"/{name}#0/three", str(every_dtype)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    shown = printed[printed.index("DATA {") :].partition("ATTRIBUTE")[0]
    shown = shown.replace("TRUE", "1").replace("FALSE", "0").removeprefix("DATA {")
    found = [float(number) for number in re.findall(r"-?\d+\.?\d*(?:e[+-]?\d+)?", shown)]
    numbers = widen(SMALL_NUMBERS[name], DTYPES[name])
    plain = numbers.view(numbers.real.dtype) if numbers.dtype.kind == "c" else numbers
    assert found == [float(number) for number in plain]


@pytest.mark.skipif(H5DUMP is None, reason="h5dump is not installed: see CONTRIBUTING.md")
def test_h5dump_reads_a_whole_part_without_complaint(every_dtype: Path) -> None:
    ran = subprocess.run([str(H5DUMP), str(every_dtype)], capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")


ALL_CODES: dict[str, NDArray[Any]] = {
    "bfloat16": np.arange(65_536, dtype=np.uint16),
    "float8_e5m2": np.arange(256, dtype=np.uint8),
    "float8_e4m3fn": np.arange(256, dtype=np.uint8),
    "float16": np.arange(65_536, dtype=np.uint16).view(np.float16),
}


@pytest.mark.parametrize("name", ALL_CODES)
def test_every_code_of_a_short_float_shows_its_number(tmp_path: Path, name: str) -> None:
    codes = ALL_CODES[name]
    with ArchiveWriter(tmp_path / "d") as sink:
        sink.put(record(key(), codes, name), Dense(codes))
    with h5py.File(parts(tmp_path)[0]) as file, np.errstate(invalid="ignore"):
        shown = file["layers.0#0/output.0"][()].astype(np.float32)
    numbers = widen(codes, DTYPES[name]).astype(np.float32)
    # HDF5 has no float type without infinities: e4m3fn's largest binade, |x| >= 256, shows as such.
    fair = np.abs(numbers) < 256 if name == "float8_e4m3fn" else np.ones(codes.shape, np.bool_)
    np.testing.assert_array_equal(shown[fair], numbers[fair])


def test_a_part_can_be_changed_by_h5py_afterwards(tmp_path: Path) -> None:
    bits = np.arange(3.0)
    with ArchiveWriter(tmp_path / "d") as sink:
        sink.put(record(key(), bits), Dense(bits))
    (part,) = parts(tmp_path)
    with h5py.File(part, "r+") as file:
        file["layers.0#0/note"] = 7
        del file["layers.0#0/output.0"]
    with h5py.File(part) as file:
        assert list(file["layers.0#0"]) == ["note"]
