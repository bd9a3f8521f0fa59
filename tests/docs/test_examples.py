"""The guard in CI of the examples. What examples/README.md shows is run as all pages are."""

import runpy
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

import dumpcmp
from dumpcmp.dumping.programs import dump, script_program

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_guard_passes_on_the_program_that_it_was_made_from(
    dumpcmp_golden: Callable[..., dumpcmp.GoldenCheck],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    dump(script_program(str(EXAMPLES / "generate.py"), ()), "d1", seed=0)
    dumpcmp.pack_golden("d1", "golden.tar")
    guard = runpy.run_path(str(EXAMPLES / "test_golden.py"))
    guard["test_the_model_is_what_it_was"](dumpcmp_golden)


def test_the_workflow_of_the_examples_is_that_of_the_docs() -> None:
    written = (EXAMPLES / "guard.yaml").read_text()
    page = (EXAMPLES.parent / "docs" / "how-to" / "guard-a-model-in-ci.md").read_text()
    assert f"```yaml\n{written}```" in page and yaml.safe_load(written)["jobs"]


def test_the_table_names_every_example() -> None:
    page = (EXAMPLES / "README.md").read_text()
    names = [path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".yaml")]
    assert names and [name for name in names if f"({name})" not in page] == []
