"""The forms for others' tools: each holds what its reader needs, and names are text in all."""

import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dumpcmp.comparing import compare
from dumpcmp.nouns.outcome import Outcome
from dumpcmp.report.formats import FORMS
from dumpcmp.report.jsonfile import as_json
from dumpcmp.report.markdown import as_code, as_text

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "sample_dumps"
FAULTY = "layers.1.attn.o_proj/linear"


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    return compare(SAMPLES / "golden", SAMPLES / "target", closely=4)


def written(outcome: Outcome, name: str, room: Path) -> Path:
    return FORMS[name].write(outcome, room / f"compare{FORMS[name].suffix}")


def test_json_keeps_to_its_schema(outcome: Outcome, tmp_path: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((ROOT / "docs" / "report.schema.json").read_text())
    checker = jsonschema.Draft202012Validator(schema)
    checker.check_schema(schema)
    told = json.loads(written(outcome, "json", tmp_path).read_text())
    assert told == json.loads(json.dumps(as_json(outcome)))
    same = as_json(compare(SAMPLES / "golden", SAMPLES / "golden"))
    for report in (told, same | {"rows": same["rows"][:40]}):  # which are all alike
        assert [error.message for error in checker.iter_errors(report)][:3] == []
    assert not checker.is_valid(told | {"rows": [], "exit_code": 7})
    assert checker.is_valid(told | {"rows": []})
    assert set(schema["required"]) == set(told)


def test_json_says_what_to_run_next(outcome: Outcome) -> None:
    commands = [one["command"] for one in as_json(outcome)["next"]]
    assert commands[0].startswith("dumpcmp explain") and FAULTY in commands[0]
    assert as_json(compare(SAMPLES / "golden", SAMPLES / "golden"))["next"] == []


def test_junit_has_one_failure_for_each_root(outcome: Outcome, tmp_path: Path) -> None:
    suite = ET.parse(written(outcome, "junit", tmp_path)).getroot()
    cases = suite.findall("testcase")
    heirs = [row for row in outcome.rows if row.verdict.fails and row.cause]
    roots = [row for row in outcome.rows if row.root]
    assert len(heirs) > 100 and 0 < len(roots) < 5
    assert len(cases) == len(outcome.rows) - len(heirs) == int(suite.attrib["tests"])
    failed = [case for case in cases if case.find("failure") is not None]
    assert len(failed) == len(roots) == int(suite.attrib["failures"])
    told = failed[0].findtext("failure") or ""
    assert FAULTY in failed[0].attrib["name"] and told.startswith(roots[0].reason)
    assert "values that inherit the difference:" in told and told.count("\n") <= 52


def test_markdown_begins_with_the_answer(outcome: Outcome, tmp_path: Path) -> None:
    text = written(outcome, "markdown", tmp_path).read_text()
    assert text.startswith("### ❌ dumpcmp: WRONG")
    assert f"`{FAULTY}`" in text and "| 601 | 142 |" in text
    assert all(line.count("|") in (0, 3, 7) for line in text.splitlines() if "\\|" not in line)


@pytest.mark.parametrize("text", ["<img src=x>", "a|b", "`x`", "``", "[a](b)", "\x1b[31m", "@me"])
def test_markdown_has_names_as_text(text: str) -> None:
    assert not re.search(r"(?<!\\)[<>\[\]|`@]", as_text(text))
    assert "\x1b" not in as_code(text) and not re.search(r"(?<!\\)\|", as_code(text))


def test_a_trace_has_every_call_in_order_and_modules_around_them(
    outcome: Outcome, tmp_path: Path
) -> None:
    told = json.loads(written(outcome, "perfetto", tmp_path).read_text())
    events = [event for event in told["traceEvents"] if event["ph"] == "X"]
    assert len(events) == len({row.key.site for row in outcome.rows})
    assert [e["ts"] for e in events] == sorted(e["ts"] for e in events)
    (root,) = (e for e in events if e["name"] == f"FAIL root {FAULTY}" and e["ts"] < 2000)
    around = [e for e in events if e["ts"] <= root["ts"] and _end(e) >= _end(root)]
    names = [event["name"].split()[-1] for event in around]
    assert names == ["<root>", "layers.1", "layers.1.attn", "layers.1.attn.o_proj", FAULTY]


def _end(event: dict[str, Any]) -> int:
    return int(event["ts"] + event["dur"])


def test_graphs_for_model_explorer_fit_together(outcome: Outcome, tmp_path: Path) -> None:
    place = written(outcome, "model-explorer", tmp_path)
    files = {path.stem: json.loads(path.read_text()) for path in place.iterdir()}
    assert set(files) == {"golden", "mine", "verdict", "error", "sync"}
    for side in ("golden", "mine"):
        (graph,) = files[side]["graphs"]
        ids = {node["id"] for node in graph["nodes"]}
        assert graph["id"] == side and len(ids) == len(graph["nodes"])
        edges = [edge["sourceNodeId"] for n in graph["nodes"] for edge in n["incomingEdges"]]
        assert len(edges) > 100 and set(edges) <= ids
        assert set(files["verdict"][side]["results"]) == ids
        assert set(files["error"][side]["results"]) < ids
    (wrong,) = {
        name.split("] ")[1].split("#")[0]
        for name, one in files["verdict"]["mine"]["results"].items()
        if one["value"] == "FAIL (root)"
    }
    assert wrong == FAULTY
    mapped = [one["leftNodeIds"][0] for one in files["sync"]["mappingEntries"]]
    assert len(mapped) == len(set(mapped)) == len(files["golden"]["graphs"][0]["nodes"])


def test_no_form_breaks_at_a_hostile_name(outcome: Outcome, tmp_path: Path) -> None:
    first = outcome.rows[0]
    named = replace(first.key, op=type(first.key.op)('</a>\x00"|\ud800'))
    hostile = replace(first, key=named, golden_key=named)
    bad = replace(outcome, rows=(hostile, *outcome.rows[1:]))
    for name in ("markdown", "junit", "perfetto", "html", "csv", "json"):
        assert written(bad, name, tmp_path).stat().st_size > 100
    ET.parse(tmp_path / "compare.junit.xml")
