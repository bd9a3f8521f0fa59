"""YAML that was written to harm: refused in a sentence that says which budget it exceeds."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from dumpcmp.align.mapfile import read_mapping
from dumpcmp.align.mesh.declared import read_stated
from dumpcmp.nouns.budgets import MAPPING, BudgetError
from dumpcmp.nouns.errors import AlignError, DumpcmpError, LayoutError

SECONDS = 15.0  # of computing; each took minutes, or did not end
LAUGHS = "\n".join(
    f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}], k{n}: 1}}" if n else "a0: &a0 {k: 1}"
    for n in range(7)
)
LISTS = "\n".join(
    f"b{n}: &b{n} [{', '.join([f'*b{n - 1}'] * 9)}]" if n else "b0: &b0 [x]" for n in range(7)
)
BOMBS = {
    "merge keys": (LAUGHS, "30000 values"),
    "lists": (LISTS, "30000 values"),
    "a list of itself": ("a: &a [*a]", "16 levels"),
    "depth": ("a: " + "[" * 40 + "]" * 40, "16 levels"),
    "braces": (f"'{'{a,b}' * 30}': c", "braces stand for more than 4096 names"),
    "braces of the target": (f"c: '{'{a,b}' * 30}'", "braces stand for more than 4096 names"),
    "stars": (f"'{'*' * 200}': '{'*' * 200}'", "wildcards"),
    "stars in words": (f"'{'*a' * 200}': '{'*b' * 200}'", "wildcards"),
    "a long text": (f"a: {'x' * (30 << 20)}", f"{MAPPING.nbytes} bytes"),
    "many lines": ("\n".join(f"a{n}: b" for n in range(10_002)), "10000 names"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_mapping_that_asks_for_too_much_is_refused_at_once(name: str, tmp_path: Path) -> None:
    text, told = BOMBS[name]
    place = tmp_path / "names.yaml"
    place.write_text(text)
    began = time.process_time()
    with pytest.raises(BudgetError, match=told):
        read_mapping(place)
    if not name.startswith(("braces", "stars")):  # which layouts know nothing of
        with pytest.raises(BudgetError, match=told):
            read_stated([str(place)])
    assert time.process_time() - began < SECONDS


ODD = {
    "a date that is none": "a: 2001-99-99",
    "a number of many digits": f"a: {'9' * 5000}",
    "a number in sixties": f"a: {':'.join(['59'] * 400)}",
    "infinity": "a: {to: b, groups: .inf}",
    "a set": "a: !!set {x, y}",
    "bytes": "a: !!binary '????'",
    "an unhashable name": "? [a]\n: b",
    "python": "a: !!python/object/apply:os.system [ls]",
    "a lone surrogate": 'a: "\\ud800"',
    "nothing": "",
    "two documents": "a: b\n---\nc: d",
    "an alias of nothing": "a: *b",
    "a deep list": "[" * 2000,
}


@pytest.mark.parametrize("name", ODD)
def test_odd_yaml_is_read_or_refused_in_a_sentence(name: str, tmp_path: Path) -> None:
    place = tmp_path / "names.yaml"
    place.write_text(ODD[name])
    for read in (read_mapping, lambda path: read_stated([str(path)])):
        try:
            read(place)
        except DumpcmpError as error:
            assert error.message and str(place) in error.message


def test_a_name_that_begins_two_lines_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "names.yaml"
    place.write_text("layers.0: blocks.0\nlayers.1: blocks.1\nlayers.0: blocks.2\n")
    for read, error in ((read_mapping, AlignError), (lambda p: read_stated([str(p)]), LayoutError)):
        with pytest.raises(error, match=r"'layers[.]0' begins 2 of its lines"):
            read(place)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "names.yaml")
    with pytest.raises(AlignError, match="no regular file"):
        read_mapping(tmp_path / "names.yaml")
    with pytest.raises(LayoutError, match="no regular file"):
        read_stated([str(tmp_path / "names.yaml")])


def test_what_people_write_is_far_below(tmp_path: Path) -> None:
    lines = [f"'layers.*.block{n}.attn.{{q,k,v}}': 'blocks.*.b{n}.qkv'" for n in range(200)]
    (tmp_path / "names.yaml").write_text("\n".join(lines))
    assert len(read_mapping(tmp_path / "names.yaml").merges) == 200
