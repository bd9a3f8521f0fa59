"""Where an optional package is missing, the tests that need it are skipped, and the others run."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hiding_packages import HIDDEN

ROOT = Path(__file__).parents[1]
OPTIONAL = (
    "aiohttp", "boto3", "botocore", "dask", "deepspeed", "distributed", "einops", "fsspec", "gcsfs",
    "grimp", "huggingface_hub", "jsonschema", "matplotlib", "mcp", "moto", "mpi4py", "ray", "s3fs",
    "safetensors", "transformers", "triton",
)  # fmt: skip
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for room in ("dumpcmp", "tests", "benchmarks")
    for path in (ROOT / room).rglob("*.py")
}


def imported_at_once(body: list[ast.stmt]) -> Iterator[str]:
    """The modules that a file imports when it is imported itself, unless it tries or asks first."""
    for node in body:
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module), level=0, names=names):
                yield module
                yield from (f"{module}.{alias.name}" for alias in names)


def files_that_import(packages: tuple[str, ...]) -> list[Path]:
    """The test files that import one of `packages`, or a module that does, at their top level."""
    imports = {
        name: set(imported_at_once(ast.parse(path.read_text()).body))
        for name, path in MODULES.items()
    }
    reached = {one for each in imports.values() for one in each if one.split(".")[0] in packages}
    while more := {n for n, each in imports.items() if each & reached} - reached:
        reached |= more
    return sorted(MODULES[n] for n in reached & set(MODULES) if n.split(".")[-1][:5] == "test_")


def test_without_optional_packages_no_test_file_ends_in_an_error() -> None:
    files = files_that_import(OPTIONAL)
    assert files, "none imports any, and there is nothing to try"
    words = ["-p", "tests.hiding_packages", "-m", "gpu", "--collect-only", "-rs"]
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", *words, *map(str, files)],
        cwd=ROOT, env=os.environ | {HIDDEN: ",".join(OPTIONAL)}, capture_output=True, text=True,
    )  # fmt: skip
    assert ended.returncode in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED), (
        ended.stdout
    )
    for file in files:
        assert f"{file.relative_to(ROOT)}:" in ended.stdout, "neither collected nor skipped"
