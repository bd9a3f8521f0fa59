"""The front door: every public name is there, is typed, and stays what it is."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TypeGuard

import dumpcmp

ROOT = Path(__file__).parents[1]
SOURCE = Path(dumpcmp.__file__)


def imported_for_types() -> dict[str, str]:
    """The names that mypy sees, and their modules."""
    (block,) = (node for node in ast.parse(SOURCE.read_text()).body if _is_type_checking(node))
    imports = (node for node in block.body if isinstance(node, ast.ImportFrom))
    return {name.name: str(node.module) for node in imports for name in node.names}


def _is_type_checking(node: ast.stmt) -> TypeGuard[ast.If]:
    return (
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
    )


def test_all_the_lazy_table_and_the_types_say_the_same() -> None:
    assert imported_for_types() == dumpcmp._HOME_OF
    assert dumpcmp.__all__ == sorted(imported_for_types())


AFTER_EVERYTHING = """
import importlib, inspect, pkgutil
import dumpcmp
first = {name: getattr(dumpcmp, name) for name in dumpcmp.__all__}
for module in pkgutil.walk_packages(dumpcmp.__path__, "dumpcmp."):
    if not module.name.endswith("__main__"):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            assert error.name in ("triton", "ray", "mpi4py"), error  # of extras
for name, was in first.items():
    now = getattr(dumpcmp, name)
    assert now is was, name
    assert not inspect.ismodule(now), name
    assert name == "__version__" or inspect.getdoc(now), name
assert "mode" in inspect.signature(dumpcmp.capture).parameters
"""


def test_no_module_takes_the_place_of_a_public_name() -> None:
    subprocess.run([sys.executable, "-c", AFTER_EVERYTHING], check=True, cwd=ROOT)


MISTAKES = {
    'dumpcmp.capture(m, "d", mdoe="x")': 'Unexpected keyword argument "mdoe"',
    'dumpcmp.compare(1, "d2")': 'Argument 1 to "compare" has incompatible type "int"',
    "dumpcmp.verify([x], m, m, backward=True)": 'Unexpected keyword argument "backward"',
    'dumpcmp.compare("d1", "d2").first_divergance': 'has no attribute "first_divergance"',
    "dumpcmp.Outcom": 'Module has no attribute "Outcom"',
}
RIGHT = """
import dumpcmp, torch
m, x = torch.nn.Linear(1, 1), torch.ones(1)
with dumpcmp.capture(m, "d", mode="eager", tokens=[0]):
    m(x)
row: dumpcmp.Row | None = dumpcmp.compare("d1", "d2").first_divergence
report: dumpcmp.Report = dumpcmp.verify([x], m, m, dumpcmp.VerifyConfig(backward=True))
"""


def test_a_user_of_mypy_strict_is_told_of_each_mistake(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(RIGHT + "\n".join(MISTAKES) + "\n")
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(program)]
    said = subprocess.run(command, capture_output=True, text=True, cwd=ROOT).stdout.splitlines()
    first = len(RIGHT.splitlines()) + 1
    expected = {first + i: said for i, said in enumerate(MISTAKES.values())}
    found = {int(line.split(":")[1]): line for line in said if ": error:" in line}
    assert found.keys() == expected.keys(), said
    assert all(expected[line] in found[line] for line in expected), said


def test_the_reference_explains_every_public_name_and_uses_it() -> None:
    page = (ROOT / "docs" / "api.md").read_text()
    code = "\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL))
    used = {n.attr for n in ast.walk(ast.parse(code)) if isinstance(n, ast.Attribute)}
    names = set(dumpcmp.__all__) - {"__version__"}
    assert names <= used
    assert all(f"`{name}`" in page for name in names)


def test_the_version_is_the_one_that_is_packaged() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert dumpcmp.__version__ == project["version"]
