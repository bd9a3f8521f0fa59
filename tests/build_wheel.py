"""Builds the wheel twice, and once without a compiler, and looks at them: ``make wheel``."""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
LEFT_OUT = shutil.ignore_patterns(".venv", ".git", "*.egg-info", "build", "*.so", "__pycache__")
CORES = (
    "dumpcmp/measure/_pairs",
    "dumpcmp/summary/_onepass",
    "dumpcmp/summary/gpu/_rows",
    "dumpcmp/taps/recording/_gather",
    "dumpcmp/taps/recording/_plan",
    "dumpcmp/taps/modes/_around",
    "dumpcmp/archive/write/_desk",
    "dumpcmp/archive/write/_finish",
)
MEASURED = """
import numpy as np
from dumpcmp.measure import core
from dumpcmp.measure.metrics import measure
from dumpcmp.nouns.value import DTYPES, Value
one, two = (np.linspace(1, 2, 999, dtype=np.float32) ** n for n in (3, 3.001))
print(core.IS_BUILT, measure(*(Value(DTYPES["float32"], x) for x in (one, two))))
"""


def built(place: Path, compiler: str = "cc") -> Path:
    """The wheel, built by `compiler` from a copy of the sources in `place`."""
    shutil.copytree(ROOT, place / "dumpcmp", ignore=LEFT_OUT)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    command += ["--no-build-isolation", "--wheel-dir", str(place), str(place / "dumpcmp")]
    flags = f"-ffile-prefix-map={place}=. -g0"
    settled = {"SOURCE_DATE_EPOCH": "1700000000", "PYTHONHASHSEED": "0", "CFLAGS": flags}
    subprocess.run(command, check=True, env=os.environ | settled | {"CC": compiler}, cwd=place)
    (wheel,) = place.glob("*.whl")
    return wheel


def cores_in(wheel: Path) -> list[str]:
    """The compiled modules that a wheel has."""
    with zipfile.ZipFile(wheel) as content:
        names = content.namelist()
    return [core for core in CORES if any(n.startswith(core) and n.endswith(".so") for n in names)]


def sources_in(wheel: Path) -> list[str]:
    """The C sources that a wheel has."""
    with zipfile.ZipFile(wheel) as content:
        return [name for name in content.namelist() if name.endswith((".c", ".h"))]


def measured_by(wheel: Path) -> tuple[str, str]:
    """Whether the package in `wheel` has its core, and what it measures of a pair."""
    room = wheel.parent / "installed"
    with zipfile.ZipFile(wheel) as content:
        content.extractall(room)
    told = subprocess.run(
        [sys.executable, "-c", MEASURED], env=os.environ | {"PYTHONPATH": str(room)}, cwd=room,
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    has_core, _, metrics = told.partition(" ")
    return has_core, metrics


def main() -> int:
    rooms = [tempfile.TemporaryDirectory() for _ in range(3)]
    first, second, bare = (
        built(Path(room.name), compiler)
        for room, compiler in zip(rooms, ("cc", "cc", "/bin/false"), strict=True)
    )
    digests = {hashlib.sha256(wheel.read_bytes()).hexdigest() for wheel in (first, second)}
    print(first.name, *digests)
    with_core, without = measured_by(first), measured_by(bare)
    laws = {
        "the same, built twice": len(digests) == 1,
        "it has the compiled core": cores_in(first) == list(CORES) and with_core[0] == "True",
        "and none of its sources": not sources_in(first),
        "without a compiler it has none": cores_in(bare) == [] and without[0] == "False",
        "and is for every machine": bare.name.endswith("-py3-none-any.whl"),
        "and measures the same, to the bit": with_core[1] == without[1],
    }
    for law, holds in laws.items():
        print(f"{'yes' if holds else 'NO'}: {law}")
    for room in rooms:
        room.cleanup()
    return int(not all(laws.values()))


if __name__ == "__main__":
    sys.exit(main())
