"""Whatever an archive calls its values, the script that is made of it calls what was recorded."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import dumpcmp
from dumpcmp.archive.write.writer import ArchiveWriter
from dumpcmp.nouns.key import Key, Op
from dumpcmp.nouns.record import Call
from dumpcmp.replay.unreplayable import Unreplayable
from dumpcmp.reproducing.parallel_region import CollectiveStatement
from dumpcmp.reproducing.statements import Statement
from tests.archive.values import put

GELU = "torch.nn.functional.gelu"
CODE = "x if 0 else __import__('os').mkdir('evil')"
WORDS = (
    CODE, "x); __import__('os').mkdir('evil'); (0", "x\nimport os", "x#", "0x", "", " x", "x ",
    "import", "\N{MATHEMATICAL BOLD SMALL E}val", "x=1, y", "x[0]", "-1", "lambda: 0", "\x00", "\\",
)  # fmt: skip


def written(path: Path, factor: float, slot: str = "", op: str = "act/gelu") -> Path:
    """An archive of one call, what it gives times `factor`; perhaps with a second result."""
    given = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    arguments = json.dumps({"args": [{"slot": "input.0"}], "kwargs": {}})
    with ArchiveWriter(path) as sink:
        sink.call(Call("Model", 0, Op(op), 0, 0, GELU, "m.py:1", arguments=arguments))
        put(sink, Key("Model", 0, op, 0, "input.0"), given.numpy())
        put(sink, Key("Model", 0, op, 0, "output.0"), (F.gelu(given) * factor).numpy())
        if slot:
            put(sink, Key("Model", 0, op, 0, slot), np.arange(3.0))
        sink.finish_step("Model", 0)
    return path


def test_the_name_of_a_value_is_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slot = f"output.{CODE}".replace("'evil'", repr(str(tmp_path / "evil")))
    golden = written(tmp_path / "golden", 1.0, slot)
    mine = written(tmp_path / "mine", 1.2, slot)
    with pytest.raises(Unreplayable, match="is no name that may stand in a script"):
        dumpcmp.repro(mine, golden, path=tmp_path / "repro")
    assert not (tmp_path / "evil").exists() and not (tmp_path / "repro").exists()


def test_names_stand_in_the_readme_and_in_comments_as_text(tmp_path: Path) -> None:
    op = 'act<b>"""\x1b[31m\n`x`/gelu'
    golden = written(tmp_path / "golden", 1.0, op=op)
    mine = written(tmp_path / "mine", 1.2, op=op)
    made = dumpcmp.repro(mine, golden, path=tmp_path / "repro")
    readme = (made.path / "README.md").read_text()
    assert "\x1b" not in readme and "\\<b" in readme and "\\`x" in readme
    assert "\x1b" not in (made.path / "repro.py").read_text()


def statement(
    slots: tuple[str, ...] = ("output.0",), kwargs: Mapping[str, Any] | None = None
) -> list[str]:
    arguments = json.dumps({"args": [{"slot": "input.0"}], "kwargs": kwargs or {}})
    call = Call("Model", 0, Op("act/gelu"), 0, 0, GELU, "m.py:1", arguments=arguments)
    gives = {slot: f"v{number}" for number, slot in enumerate(slots)}
    return Statement(call, {"input.0": "x0"}, gives).lines()


def collective(function: str, **words: Any) -> list[str]:
    kwargs = {"op": "sum", "group": [0, 1]} | words
    call = Call("Model", 0, Op(f"layer/{function}"), 0, 0, f"torch.distributed.{function}",
                arguments=json.dumps({"args": [], "kwargs": kwargs}))  # fmt: skip
    made = CollectiveStatement(call, {"input.0": "x0"}, {"output.0": "v1"}, {"output.0": (4,)})
    return made.lines()


def shape(lines: list[str]) -> list[str]:
    """The kinds of nodes of the code."""
    return [type(node).__name__ for node in ast.walk(ast.parse("\n".join(lines)))]


@pytest.mark.parametrize("word", WORDS)
def test_words_of_an_archive_are_names_numbers_or_refused(word: str) -> None:
    plain: Mapping[str, list[str]] = {
        "slot": statement(("output.0", "output.x")),
        "nested slot": statement(("output.0", "output.0.x")),
        "keyword": statement(kwargs={"approximate": "tanh"}),
        "op": collective("all_reduce"),
        "group": collective("all_reduce"),
        "root": collective("broadcast", src=1),
        "sizes": collective("all_to_all", input_split_sizes=[1, 3]),
    }
    made: Mapping[str, Callable[[], list[str]]] = {
        "slot": lambda: statement(("output.0", f"output.{word}")),
        "nested slot": lambda: statement(("output.0", f"output.0.{word}")),
        "keyword": lambda: statement(kwargs={word: "tanh"}),
        "op": lambda: collective("all_reduce", op=word),
        "group": lambda: collective("all_reduce", group=[0, word]),
        "root": lambda: collective("broadcast", src=word),
        "sizes": lambda: collective("all_to_all", input_split_sizes=[1, word]),
    }
    for place, lines in made.items():
        try:
            found = lines()
        except Unreplayable:
            continue
        assert shape(found) == shape(plain[place]), (place, found)


@pytest.mark.parametrize("value", [CODE, '"""', "\n", "{x}", 1e999, [CODE], {"dict": {CODE: CODE}}])
def test_values_of_arguments_stay_values(value: Any) -> None:
    """Texts are quoted; what cannot be read is refused."""
    try:
        (line,) = statement(kwargs={"approximate": value})
    except Unreplayable:
        return
    call = ast.parse(line).body[0]
    assert isinstance(call, ast.Assign) and isinstance(call.value, ast.Call)
    (word,) = call.value.keywords
    names = {node.id for node in ast.walk(word) if isinstance(node, ast.Name)}
    assert names <= {"float"}, line
