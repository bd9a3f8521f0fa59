"""Runs the tests of the compiled core under the address and undefined sanitizers."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = (
    "tests/measure/test_core.py",
    "tests/summary/test_accumulator.py",
    "tests/summary/test_rows.py",
    "tests/taps/test_weights.py",
    "tests/taps/test_sources.py",
    "tests/taps/test_known_values.py",
    "tests/taps/test_depth.py",
    "tests/archive/test_finish.py",
    "tests/readers/test_readers.py",
)
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-g")
LEFT_OUT = shutil.ignore_patterns(".venv", ".git", "build", "*.so", "__pycache__", "sample_dumps")


def compiled(place: Path) -> None:
    """Compile every extension of the copy in `place` as pyproject.toml says, and watched over."""
    declared = tomllib.loads((place / "pyproject.toml").read_text())
    include = f"-I{sysconfig.get_paths()['include']}"
    for module in declared["tool"]["setuptools"]["ext-modules"]:
        out = place / (module["name"].replace(".", "/") + ".abi3.so")
        command = ["gcc", "-shared", "-fPIC", *module["extra-compile-args"], *SANITIZERS, include]
        subprocess.run([*command, *module["sources"], "-o", str(out)], check=True, cwd=place)


def preloaded() -> str:
    """The runtimes of the sanitizers, which must be loaded before Python."""
    named = (["gcc", f"-print-file-name={name}"] for name in ("libasan.so", "libubsan.so"))
    return " ".join(
        subprocess.run(one, check=True, capture_output=True, text=True).stdout.strip()
        for one in named
    )


def main() -> int:
    with tempfile.TemporaryDirectory() as room:
        place = Path(room) / "dumpcmp"
        shutil.copytree(ROOT, place, ignore=LEFT_OUT)
        compiled(place)
        told = {
            "LD_PRELOAD": preloaded(),
            "ASAN_OPTIONS": "detect_leaks=0",  # Python keeps what it made until the end
            "PYTHONPATH": str(place),
            "PYTHONMALLOC": "malloc",
        }
        command = [sys.executable, "-m", "pytest", "-q", "--noconftest", *TESTS]
        return subprocess.run(command, cwd=place, env=os.environ | told, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
