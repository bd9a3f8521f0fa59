"""Builds the wheel twice, in two places, and says whether it is the same file: ``make wheel``."""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
LEFT_OUT = shutil.ignore_patterns(".venv", ".git", "*.egg-info", "build", "*.so", "__pycache__")


def built(place: Path) -> tuple[str, str]:
    """The name and digest of the wheel, built from a copy of the sources in `place`."""
    shutil.copytree(ROOT, place / "dumpcmp", ignore=LEFT_OUT)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    command += ["--no-build-isolation", "--wheel-dir", str(place), str(place / "dumpcmp")]
    flags = f"-ffile-prefix-map={place}=. -g0"
    settled = {"SOURCE_DATE_EPOCH": "1700000000", "PYTHONHASHSEED": "0", "CFLAGS": flags}
    subprocess.run(command, check=True, env=os.environ | settled, cwd=place)
    (wheel,) = place.glob("*.whl")
    return wheel.name, hashlib.sha256(wheel.read_bytes()).hexdigest()


def main() -> int:
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        first, second = built(Path(one)), built(Path(other))
    print(*first)
    print("the same, built twice" if first == second else f"not the same: {second[1]}")
    return int(first != second)


if __name__ == "__main__":
    sys.exit(main())
