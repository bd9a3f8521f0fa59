"""The live page: who may see it, what it is told, and the page in a real browser."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, overload
from urllib.parse import urlencode

import pytest
import torch
from click.testing import CliRunner

from dumpcmp.cli import main
from dumpcmp.comparing import compare
from dumpcmp.comparing.watching import compare_by_steps
from dumpcmp.dumping.capturing import capture
from dumpcmp.live_server import HOST, LiveServer, serving
from dumpcmp.nouns.errors import SelectionError
from dumpcmp.nouns.key import Key, Op
from dumpcmp.nouns.outcome import Outcome
from dumpcmp.nouns.row import Row
from dumpcmp.report import live
from dumpcmp.report.live import MOST_AT_ONCE, LiveView
from tests.report.browser import WHY_NOT, browsing

SAMPLES = Path(__file__).parents[2] / "sample_dumps"
GOLDEN, MINE = SAMPLES / "golden", SAMPLES / "target"
HOSTILE = "<img src=x onerror=document.title='hacked'>"


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    found = compare(GOLDEN, MINE)
    first, *others = found.rows
    key = Key(first.key.model, first.key.step, Op(HOSTILE), first.key.call, first.key.slot)
    return replace(found, rows=[replace(first, key=key), *others])


@pytest.fixture
def server(outcome: Outcome) -> Iterator[LiveServer]:
    view = LiveView(GOLDEN, MINE)
    view.finish(outcome)
    with serving(view) as found:
        yield found


Answer = tuple[int, dict[str, str], str]


def asked(server: LiveServer, path: str, method: str = "GET", **headers: str) -> Answer:
    """One request in these words, and its status, headers and text."""
    connection = http.client.HTTPConnection(HOST, server.server_port, timeout=20)
    try:
        connection.putrequest(method, path, skip_host="Host" in headers)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read().decode()
    finally:
        connection.close()


def rows(server: LiveServer, **query: Any) -> dict[str, Any]:
    """What the page is told of rows."""
    status, _, text = asked(server, f"/{server.token}/rows?{urlencode(query)}")
    assert status == 200, text
    return dict(json.loads(text))


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "OPTIONS", "ODD"])
@pytest.mark.parametrize("path", ["/", "/state", "/rows", "//state", "/{half}/", "/{token}", "*"])
def test_without_the_token_nothing_is_answered(server: LiveServer, method: str, path: str) -> None:
    token = server.token
    status, _, text = asked(server, path.format(half=token[:-1], token=token), method)
    assert status == 403 and "sample_dumps" not in text


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "[::1]:{port}"]
)
def test_a_name_that_leads_here_from_elsewhere_is_refused(server: LiveServer, host: str) -> None:
    named = host.format(port=server.server_port)
    assert asked(server, f"/{server.token}/", Host=named)[0] == 403
    local = f"localhost:{server.server_port}"
    assert asked(server, f"/{server.token}/", Host=local)[0] == 200


def test_only_this_machine_is_listened_to(server: LiveServer) -> None:
    assert server.socket.getsockname()[0] == "127.0.0.1"


@pytest.mark.parametrize(
    "path", ["../../etc/passwd", "..%2f..%2fetc/passwd", "/etc/passwd", "page.css", "state/", "x"]
)
def test_there_are_no_files(server: LiveServer, path: str) -> None:
    assert asked(server, f"/{server.token}/{path}")[0] == 404


def test_the_page_states_a_policy_and_is_not_kept(server: LiveServer) -> None:
    status, headers, text = asked(server, f"/{server.token}/")
    assert status == 200 and text.startswith("<!DOCTYPE html>") and "@@" not in text
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-") and "unsafe" not in policy
    assert headers["Cache-Control"] == "no-store" and headers["Referrer-Policy"] == "no-referrer"
    assert server.token not in text and "dumpcmp" in headers["Server"]


def test_rows_come_in_pieces_that_are_all_of_them(server: LiveServer, outcome: Outcome) -> None:
    total = rows(server, limit=0)["total"]
    assert total == len(outcome.rows) > 50
    pieces = [rows(server, offset=at, limit=37)["rows"] for at in range(0, total, 37)]
    found = [(row["token"], row["op"], row["slot"]) for piece in pieces for row in piece]
    assert found == [(row.key.step, row.key.op, row.key.slot) for row in outcome.rows]
    assert len(rows(server, limit=10**6)["rows"]) == min(total, MOST_AT_ONCE)
    assert rows(server, offset=total + 5)["rows"] == []


def test_filters_leave_what_they_say(server: LiveServer, outcome: Outcome) -> None:
    failing = rows(server, verdict="failing")
    assert failing["total"] == len(outcome.failures) and failing["complete"]
    passing = rows(server, verdict="PASS", text="O_PROJ layers.0")
    assert passing["total"] and all("layers.0.attn.o_proj" in one["op"] for one in passing["rows"])
    assert {one["verdict"] for one in passing["rows"]} == {"PASS"}
    assert rows(server, text="no such op")["total"] == 0


@pytest.mark.parametrize("query", ["offset=x", "offset=-1", "limit=-1", "verdict=GOOD", "a&" * 99])
def test_a_question_that_makes_no_sense_is_told_so(server: LiveServer, query: str) -> None:
    status, _, text = asked(server, f"/{server.token}/rows?{query}")
    assert status == 400 and text.strip()


def test_a_long_search_comes_in_stretches(
    outcome: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "SEARCH_SECONDS", 0.0)  # one row in each answer
    view = LiveView(GOLDEN, MINE)
    view.finish(outcome)
    told = [view.rows(0, 10, text="layers") for _ in outcome.rows]
    assert [one["complete"] for one in told] == [False] * (len(told) - 1) + [True]
    assert told[-1]["total"] == sum("layers" in str(row.key) for row in outcome.rows)


def test_words_are_looked_for_in_steps_and_in_values(outcome: Outcome) -> None:
    """A row has all of them, wherever each of them is, and whichever rows were read before."""
    view = LiveView(GOLDEN, MINE)
    view.finish(outcome)
    for text in ("[1] o_proj", "decoder[0] LINEAR output", "fail [1]", "golden", "[1] [0]"):
        for verdict in ("", "failing", "PASS"):
            told = view.rows(0, 1000, verdict, text)
            among = [
                row
                for row in outcome.rows
                if (
                    not verdict
                    or (row.verdict.fails if verdict == "failing" else row.verdict == verdict)
                )
                and all(word in searched(row) for word in text.lower().split())
            ]
            assert told["complete"] and told["total"] == len(among), (text, verdict)
            assert [row["op"] for row in told["rows"]] == [str(row.key.op) for row in among[:500]]


def searched(row: Row) -> str:
    mine = "" if row.target_key is None else row.target_key.op
    return f"{row.key} {row.verdict} {row.reason} {row.source} {mine}".lower()


def test_a_run_that_goes_on_adds_rows_and_in_the_end_is_there_whole() -> None:
    view = LiveView(GOLDEN, MINE)
    assert view.state()["word"] == "comparing" and view.rows(0, 5)["total"] == 0
    seen = []

    def tell(steps: list[int], outcome: Outcome) -> None:
        view.add(steps, outcome)
        state = view.state()
        seen.append((state["num_rows"], state["generation"], state["has_ended"]))
        assert view.rows(0, 5, text="layers")["total"] and state["word"].startswith("so far: ")

    whole = compare_by_steps(GOLDEN, MINE, follow=True, tell=tell)
    tell([1], whole)
    assert len(seen) > 1 and seen == sorted(set(seen)) and {s[1:] for s in seen} == {(0, False)}
    view.finish(whole)
    state = view.state()
    assert (state["num_rows"], state["generation"], state["has_ended"]) == (
        len(whole.rows),
        1,
        True,
    )
    assert state["next"][0][0].startswith("dumpcmp explain") and len(state["roots"]) == 2
    assert state["word"] == whole.word and state["exit_code"] == 1
    assert sum(state["tally"].values()) == len(whole.rows)


def test_a_port_that_is_taken_is_told(server: LiveServer) -> None:
    with (
        pytest.raises(SelectionError, match="in use"),
        serving(LiveView(GOLDEN, MINE), server.server_port),
    ):
        pass


@pytest.mark.parametrize(
    "asked, told",
    [
        (["{room}", str(MINE)], "archive"),
        ([str(GOLDEN), "{room}/none"], "none"),
        (["{room}", "{room}/none", "--follow"], "archive"),
        ([str(GOLDEN), str(MINE), "--token", "x"], "'x'"),
        ([str(GOLDEN), str(MINE), "--mapping", "{room}/bad.yaml"], "bad.yaml"),
    ],
)
def test_what_cannot_be_compared_is_told_before_an_address(
    asked: list[str], told: str, tmp_path: Path
) -> None:
    (tmp_path / "bad.yaml").write_text("- [")
    done = CliRunner().invoke(main, ["serve", *(word.format(room=tmp_path) for word in asked)])
    assert done.exit_code == 2 and done.stdout == ""
    assert told in done.stderr


@contextmanager
def served(*words: str) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """The command in a process of its own: its address, and what asks it for the state."""
    process = subprocess.Popen(
        [sys.executable, "-m", "dumpcmp", "serve", *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        address = process.stdout.readline().split()[-1]
        _, _, place, token, _ = address.split("/")

        def state() -> dict[str, Any]:
            with closing(http.client.HTTPConnection(place, timeout=300)) as connection:
                connection.request("GET", f"/{token}/state")
                return dict(json.loads(connection.getresponse().read()))

        yield address, state
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=300)
        assert (process.returncode, errors) == (0, "")
    finally:
        process.kill()


def test_the_command_serves_until_it_is_interrupted() -> None:
    with served(str(GOLDEN), str(MINE), "--token", "0") as (_, state):
        while not (told := state())["has_ended"]:
            continue
        assert told["word"].startswith("WRONG at layers.1.attn.o_proj")


def test_a_dump_is_followed_while_it_is_written(tmp_path: Path) -> None:
    """The page is there before the dump is, grows with it, and ends with the whole of it."""
    golden, mine = tmp_path / "golden", tmp_path / "mine"
    model, x = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()), torch.ones(2, 4)
    with capture(model, golden):
        for step in range(4):
            model(x + step)
    with served(str(golden), str(mine), "--follow") as (_, state):
        assert state()["num_rows"] == 0
        with capture(model, mine):
            for step in range(3):
                model(x + step)
            while not (growing := state())["num_rows"]:
                continue
            model(x + 3)
        while not (whole := state())["has_ended"]:
            continue
    assert not growing["has_ended"] and growing["word"].startswith(("so far: ", "comparing"))
    assert whole["word"].startswith("SAME") and whole["generation"] == growing["generation"] + 1
    assert whole["num_rows"] == len(compare(golden, mine).rows) > growing["num_rows"]


class Endless(Sequence[Row]):
    """A row in five million steps, more than a scroll bar has pixels for, or in so many."""

    def __init__(self, row: Row, number: int = 5_000_000) -> None:
        self._row, self._number = row, number

    def __len__(self) -> int:
        return self._number

    @overload
    def __getitem__(self, place: int) -> Row: ...
    @overload
    def __getitem__(self, place: slice) -> list[Row]: ...
    def __getitem__(self, place: int | slice) -> Row | list[Row]:
        if isinstance(place, slice):
            return [self[at] for at in range(len(self))[place]]
        key = self._row.key
        return replace(self._row, key=Key(key.model, place, key.op, key.call, key.slot))


@pytest.mark.long
def test_a_search_in_three_hundred_thousand_rows_is_quick(outcome: Outcome) -> None:
    view = LiveView(GOLDEN, MINE)
    view.finish(replace(outcome, rows=Endless(outcome.rows[-1], 300_000)))
    view.prepare()
    began = time.process_time()
    slot = str(outcome.rows[-1].key.slot)
    found = [view.rows(0, 200, text=text) for text in (slot, "[299999]", "[17", "no such op")]
    assert time.process_time() - began < 2.0
    assert [told["complete"] for told in found] == [True] * 4
    assert [told["total"] for told in found] == [300_000, 1, 11_111, 0]


@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
def test_the_page_in_a_browser(server: LiveServer, outcome: Outcome, tmp_path: Path) -> None:
    with browsing(tmp_path / "profile") as browser:
        until = browser.until
        browser.visit(server.address)
        until("live.table.rows.complete && live.told")
        assert browser.text("#word") == outcome.word
        lines = int(browser.run("return document.querySelectorAll('#rows tbody tr').length"))
        assert 5 < lines < 60 < len(outcome.rows)  # those in sight alone
        assert "dumpcmp explain" in browser.text("#next")
        assert HOSTILE in browser.text("#rows") and browser.run("return document.title") != "hacked"
        assert browser.run("return document.images.length") == 0
        browser.run("byId('table').scrollTop = 1e9")
        last = str(outcome.rows[-1].key.op)
        until(f"byId('rows').innerText.includes({json.dumps(last)})")
        browser.click("#roots button")
        until("live.table.rows.complete && byId('row').innerText.includes('o_proj')")
        assert 0 < browser.run("return live.table.rows.total") < len(outcome.failures)
        browser.type("#search", " no such op")
        until("byId('count').textContent === '0 rows'")
        server.view._rows = Endless(outcome.rows[-1])
        browser.run("live.table.filter({verdict: '', text: ''})")
        until("live.table.rows.complete && live.table.rows.total === 5000000")
        for top, seen in (("1e9", "4999999"), ("0", "0"), ("byId('table').scrollHeight / 2", "25")):
            browser.run(f"byId('table').scrollTop = {top}")
            tokens = "[...document.querySelectorAll('#rows tbody td:first-child')]"
            until(f"{tokens}.some(cell => cell.innerText.startsWith('{seen}'))")
        browser.run("live.table.go(3000000)")  # a row that no pixel of the scroll bar stands for
        until(f"{tokens}.some(cell => cell.innerText === '3000000')")
        assert browser.complaints() == []
        outside = [url for url in browser.requests() if not url.startswith(server.address)]
        assert outside == []
