"""A wheel says by its tag what is in it: native parts, or nothing but Python."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("setuptools")

SETUP = Path(__file__).parents[1] / "setup.py"
PROJECT = """
[project]
name = "small"
version = "1"
[tool.setuptools]
py-modules = ["small"]
[[tool.setuptools.ext-modules]]
name = "_native"
sources = ["native.c"]
optional = true
py-limited-api = true
[tool.distutils.bdist_wheel]
py-limited-api = "cp311"
"""
NATIVE = "#include <Python.h>\nPyObject *PyInit__native(void) { return NULL; }\n"
COMPILER = shutil.which("cc") or ""


@pytest.mark.parametrize(
    "compiler, tag", [("/bin/false", "py3-none-any"), (COMPILER, "cp311-abi3")]
)
def test_a_wheel_without_native_parts_is_for_every_machine(
    compiler: str, tag: str, tmp_path: Path
) -> None:
    if not compiler:
        pytest.skip("there is no C compiler")
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    (tmp_path / "native.c").write_text(NATIVE)
    (tmp_path / "small.py").write_text("")
    shutil.copy(SETUP, tmp_path)
    subprocess.run(
        [sys.executable, "setup.py", "-q", "bdist_wheel"],
        cwd=tmp_path, env=os.environ | {"CC": compiler}, capture_output=True, check=True,
    )  # fmt: skip
    (wheel,) = (tmp_path / "dist").iterdir()
    assert wheel.name.startswith(f"small-1-{tag}")
