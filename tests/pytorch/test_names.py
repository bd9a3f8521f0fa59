"""A torch that renamed something private is refused, or told of: never silence."""

from __future__ import annotations

import ast
import pkgutil
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import dumpcmp
from dumpcmp.nouns.errors import CaptureError, CaptureWarning
from dumpcmp.pytorch.names import NAMES, PrivateName, check_names

PACKAGE = Path(dumpcmp.__file__).parent


# What begins each user of names that a test can begin: the options of a capture.
CAPTURES: dict[str, dict[str, Any]] = {
    "every mode": {},
    "--backward": {"backward": True},
    "--dtype": {"dtype": "float64"},
    "compiled functions": {},
    "compiled modules": {},
    "--mode fx": {"mode": "fx"},
    "--mode aten": {"mode": "aten"},
    "--mode boundary": {"mode": dumpcmp.Boundary("eager")},
    "--mode compiled": {"mode": "compiled"},
}
ENTRIES = [(user, name) for user, names in NAMES.items() for name in names]
by_entry = pytest.mark.parametrize(
    "user, name", ENTRIES, ids=[f"{user}: {name}" for user, name in ENTRIES]
)


@pytest.fixture
def lacking(name: PrivateName, monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch that lacks `name`; what cannot be taken from a living torch is not found in it."""

    for module in {one.path.partition(":")[0] for _, one in ENTRIES}:
        import_module(module)  # while nothing is missing: not every module can be imported again
    find = PrivateName.find

    def found(one: PrivateName) -> Any:
        if (one.path, one.word) != (name.path, name.word):
            return find(one)
        if one.word:
            return _nothing
        raise AttributeError(one.path)

    holder, _, attribute = name.path.replace(":", ".").rpartition(".")
    owner = pkgutil.resolve_name(holder)
    try:
        assert not name.word and attribute in vars(owner) and "config" not in holder
        monkeypatch.delattr(owner, attribute)
        assert not hasattr(owner, attribute)
    except (AssertionError, TypeError):
        monkeypatch.setattr(PrivateName, "find", found)


def _nothing() -> None: ...


@by_entry
@pytest.mark.usefixtures("lacking")
def test_a_name_that_torch_lacks_is_refused_or_told_of(
    user: str, name: PrivateName, tmp_path: Path
) -> None:
    said = _begun(user, tmp_path / "d") if user in CAPTURES else _checked(user)
    assert f"torch {torch.__version__} has no" in said
    assert str(name) in said
    assert (name.loses or f"which {user} needs") in said


def _begun(user: str, path: Path) -> str:
    """What a capture says that is refused, or goes on with a warning."""
    model, x = nn.Linear(2, 2), torch.ones(2, requires_grad=True)
    with pytest.warns(CaptureWarning) as told:
        try:
            with dumpcmp.capture(model, path, **CAPTURES[user]):
                model(x)
        except CaptureError as error:
            warnings.warn("refused", CaptureWarning, stacklevel=1)
            return str(error)
    return "\n".join(str(one.message) for one in told)


def _checked(user: str) -> str:
    """What the check says that other commands, and captures of several ranks, begin with."""
    try:
        return "\n".join(check_names(user))
    except CaptureError as error:
        return str(error)


RENAMED = """
import os, sys, types
import torch, torch._dynamo, dumpcmp.dumping.capturing
from torch._dynamo import eval_frame

def renamed(code):
    swap = lambda words: tuple("other" if word == WORD else word for word in words)
    inner = tuple(renamed(c) if isinstance(c, types.CodeType) else c for c in code.co_consts)
    places = ("co_names", "co_varnames", "co_cellvars", "co_freevars")
    words = {place: swap(getattr(code, place)) for place in places}
    return code.replace(co_name=swap([code.co_name])[0], co_consts=inner, **words)

PATH, *words = sys.argv[1:]
for WORD in words:  # each in a process of its own, which has imported all
    child = os.fork()
    if not child:
        break
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(f"=== {WORD} {code}", file=sys.stderr, flush=True)
else:
    sys.exit()

if hasattr(torch.nn.Module, WORD):
    torch.nn.Module.other = getattr(torch.nn.Module, WORD)
    delattr(torch.nn.Module, WORD)
    for function in (torch.nn.Module._wrapped_call_impl, torch.nn.Module.__getstate__):
        function.__code__ = renamed(function.__code__)
else:
    for kind in vars(eval_frame).values():
        for function in vars(kind).values() if isinstance(kind, type) else ():
            if isinstance(function, types.FunctionType):
                function.__code__ = renamed(function.__code__)

import dumpcmp
model = torch.nn.Linear(2, 2)

@torch.compile(backend="eager")
def f(x):
    return model(x) + 1

with dumpcmp.capture(None, os.path.join(PATH, WORD)):
    f(torch.ones(2))
sys.stderr.flush()
os._exit(0)  # the end of an interpreter with torch in it takes a second
"""
OUTSIDE = "what compiled functions compute outside of modules is not recorded"
SAID = {
    "compile_wrapper": OUTSIDE,
    "enter_exit_hooks": OUTSIDE,
    "_compiled_call_impl": "which every mode needs",
}


@pytest.fixture(scope="module")
def renamed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, tuple[str, str]]]:
    """Where the dumps lie, and by name what was said, and how the process ended."""
    path = tmp_path_factory.mktemp("renamed")
    command = [sys.executable, "-c", RENAMED, str(path), *SAID]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    parts = re.findall(r"(.*?)^=== (\S+) (\d+)$\n", told, re.MULTILINE | re.DOTALL)
    return path, {word: (said, code) for said, word, code in parts}


@pytest.mark.parametrize("word", SAID)
def test_a_name_that_is_truly_renamed(
    word: str, renamed: tuple[Path, dict[str, tuple[str, str]]]
) -> None:
    said, code = renamed[1][word]
    assert word in said and SAID[word] in said and "KeyError" not in said
    assert code == ("0" if SAID[word] == OUTSIDE else "1")
    if code == "0":
        remarks = dumpcmp.Archive(renamed[0] / word).run[0]["run"]["remarks"]
        assert any(SAID[word] in remark for remark in remarks)


def _spoken(path: Path) -> Iterator[tuple[str, int]]:
    """The private names of torch that a file says in full: ``torch._C._x``, ``from torch._y``."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch"):
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                if "._" in full:
                    yield full, node.lineno
        elif isinstance(node, ast.Attribute):
            words = ast.unparse(node).split(".")
            if words[0] == "torch" and re.match("_(?!_)", words[-1]):
                yield ".".join(words), node.lineno


@pytest.mark.parametrize("room", ["taps", "dumping"])
def test_the_table_has_every_name_that_is_used(room: str) -> None:
    known = {name.path.replace(":", ".") for _, name in ENTRIES}
    missing = [
        f"{path.relative_to(PACKAGE)}:{line} {name}"
        for path in sorted((PACKAGE / room).rglob("*.py"))
        for name, line in _spoken(path)
        if not any(one.startswith(name) for one in known)
    ]
    assert not missing, "list them in dumpcmp/pytorch/names.py"


def test_this_torch_has_every_name() -> None:
    lacking = [
        str(name)
        for user, name in ENTRIES
        if not name.is_there and (user != "summaries on a GPU" or torch.cuda.is_available())
    ]
    assert not lacking
