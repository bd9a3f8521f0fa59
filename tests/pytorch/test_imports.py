"""Imports: heard of once, whether they come before the block or in it, and no trace is left."""

import sys
from importlib import import_module
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

from dumpcmp.pytorch.imports import held, once_imported

NAME = "imported_in_the_middle"


@pytest.fixture(autouse=True)
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / f"{NAME}.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, NAME, raising=False)


def test_a_module_is_heard_of_when_it_is_there_and_once() -> None:
    heard: list[int] = []
    before = list(sys.meta_path)
    with once_imported(NAME, lambda: heard.append(sys.modules[NAME].value)):
        assert not heard
        module = import_module(NAME)
        assert heard == [1]
        del sys.modules[NAME]
        import_module(NAME)
    assert heard == [1] and sys.meta_path == before
    assert type(module.__loader__) is SourceFileLoader
    assert module.__spec__ and module.__spec__.loader is module.__loader__


def test_a_module_that_is_there_is_heard_of_at_once() -> None:
    import_module(NAME)
    heard: list[str] = []
    with once_imported(NAME, lambda: heard.append(NAME)):
        assert heard == [NAME]


def test_a_module_that_comes_later_is_not_heard_of() -> None:
    heard: list[str] = []
    with once_imported(NAME, lambda: heard.append(NAME)):
        pass
    import_module(NAME)
    assert not heard


def test_who_hears_can_refuse_and_refuses_again() -> None:
    def refuse() -> None:
        raise ValueError("refused")

    with once_imported(NAME, refuse):
        for _ in range(2):
            with pytest.raises(ValueError, match="refused"):
                import_module(NAME)
    assert import_module(NAME).value == 1


def test_modules_that_hold_a_name_are_found_with_what_they_hold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = ModuleType("dumpcmp_tests_holder")
    module.one, module.other = 1, 2  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    found = [(name, value) for holder, name, value in held("other", "one") if holder is module]
    assert found == [("other", 2), ("one", 1)]
