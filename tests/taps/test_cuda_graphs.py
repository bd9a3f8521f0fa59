"""CUDA graphs: each replay is a step, with values of its own; what nobody sees is told."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import dumpcmp
from dumpcmp import Archive
from dumpcmp.archive.integrity import audit
from dumpcmp.dumping.capturing import Capture
from dumpcmp.dumping.retention import Retention
from dumpcmp.nouns.effects import Effect
from dumpcmp.nouns.errors import CaptureWarning
from dumpcmp.nouns.key import Key, Op
from dumpcmp.nouns.record import Kept
from dumpcmp.taps.recording import reels
from dumpcmp.taps.recording.reels import BEYOND, FILLED, ON_HOST, Frame
from dumpcmp.taps.recording.sources import HostSource
from dumpcmp.taps.recording.values import Values

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


class Pretended:
    """A graph of a machine without a GPU: it can be told to capture and to replay."""

    def capture_begin(self) -> None: ...

    def capture_end(self) -> None: ...

    def replay(self) -> None: ...


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> Pretended:
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Pretended)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1 << 30, 1 << 30))
    return Pretended()


def test_a_capture_is_no_step_and_each_replay_is_one(pretended: Pretended, tmp_path: Path) -> None:
    model, x = nn.Linear(3, 3), torch.ones(2, 3)
    with dumpcmp.capture(model, tmp_path / "d"):
        model(x)
        pretended.capture_begin()
        model(x)
        pretended.capture_end()
        pretended.replay()
        pretended.replay()
        model(x)
    archive = Archive(tmp_path / "d")
    assert archive.steps("Linear") == (0, 1, 2, 3)
    for step in (1, 2):
        found = archive[Key("Linear", step, "<root>/linear", 0, "output.0")]
        assert found.problem == ON_HOST, "what lies on the host is not computed again"
    assert archive[Key("Linear", 3, "<root>", 0, "output.0")].kept is Kept.FULL
    assert archive.run[0]["run"]["replays"] == 2 and audit(tmp_path / "d").sound


def test_what_nobody_sees_is_told(pretended: Pretended, tmp_path: Path) -> None:
    model, x, again = nn.Linear(3, 3), torch.ones(2, 3), Pretended()
    pretended.capture_begin()
    pretended.capture_end()
    with (
        pytest.warns(CaptureWarning, match="1 replay of CUDA graphs .* before this capture"),
        pytest.warns(CaptureWarning, match="2 replays of CUDA graphs .* no module"),
        dumpcmp.capture(model, tmp_path / "d"),
    ):
        pretended.replay()
        again.capture_begin()
        x + 1
        again.capture_end()
        again.replay()
        again.replay()
        model(x)
    remarks = Archive(tmp_path / "d").run[0]["run"]["remarks"]
    assert len(remarks) == 2


def test_a_run_with_replays_that_nobody_saw_is_never_called_the_same(
    pretended: Pretended, tmp_path: Path
) -> None:
    model, x = nn.Linear(3, 3), torch.ones(2, 3)
    with dumpcmp.capture(model, tmp_path / "golden"):
        model(x)
    with pytest.warns(CaptureWarning), dumpcmp.capture(model, tmp_path / "mine"):
        model(x)
        pretended.replay()
    outcome = dumpcmp.compare(tmp_path / "golden", tmp_path / "mine")
    assert outcome.exit_code == 2 and any("1 replay of CUDA" in one for one in outcome.missing)
    assert dumpcmp.compare(tmp_path / "golden", tmp_path / "mine", partial=True).passed


class OnHost(HostSource):
    """Stands for a tensor of a device on a machine that has none."""

    def __init__(self, tensor: Tensor, _stagings: object, _own: bool = False) -> None:
        super().__init__(tensor)


@pytest.fixture
def as_if_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reels, "DeviceSource", OnHost)
    monkeypatch.setattr(Values, "_source", lambda _, tensor, own: OnHost(tensor, None, own))


def fill(capture: Capture, graph: Pretended, number: float) -> None:
    """What a replay does to the memory of its graph."""
    for event in capture.mode.replays._reels[graph]._events:
        if isinstance(event, Frame) and event.tensor is not None:
            event.tensor.fill_(number)


@pytest.mark.usefixtures("as_if_away")
@pytest.mark.parametrize("keep", ["full", "summary"])
def test_a_replay_records_what_its_memory_holds_then(
    pretended: Pretended, tmp_path: Path, keep: str
) -> None:
    model, x = nn.Linear(30, 30), torch.ones(40, 30)
    with dumpcmp.capture(model, tmp_path / "d", keep=keep) as now:
        pretended.capture_begin()
        model(x)
        pretended.capture_end()
        for number in (5, 7):
            fill(now, pretended, number)
            pretended.replay()
    archive = Archive(tmp_path / "d")
    assert archive.steps("Linear") == (0, 1) and audit(tmp_path / "d").sound
    for step, number in enumerate((5, 7)):
        calls = [("<root>", "output.0"), ("<root>/linear", "input.0")]
        for op, slot in calls:
            found = archive[Key("Linear", step, op, 0, slot)]
            held = archive.load(found).numbers()
            assert (held[5:8] == number).all() if keep == "summary" else (held == number).all()
        link = archive[Key("Linear", step, "<root>/linear", 0, "input.0")]
        assert link.same_as == Key("Linear", step, "<root>", 0, "input.0")
    assert Key("Linear", 0, "<root>", 0, "param.bias") in archive, "recorded with the first replay"


@pytest.mark.usefixtures("as_if_away")
def test_what_a_graph_leaves_behind_is_told_of_its_last_replay(
    pretended: Pretended, tmp_path: Path
) -> None:
    model, x = nn.Linear(30, 30), torch.ones(40, 30)
    with dumpcmp.capture(model, tmp_path / "d"):
        pretended.capture_begin()
        model(x)
        torch.nn.init.zeros_(model.bias)  # which the capture counts, and a replay does not
        pretended.capture_end()
        for number in (5, 7):
            pretended.replay()
            model.bias.data.fill_(number)
    archive = Archive(tmp_path / "d")
    first, last = (Key("Linear", step, Effect.STATE.op, 0, "param.bias") for step in (0, 1))
    assert first not in archive and (archive.load(archive[last]).numbers() == 7).all()


@pytest.mark.usefixtures("as_if_away")
def test_rows_are_chosen_inside_of_the_graph(pretended: Pretended, tmp_path: Path) -> None:
    model, x = nn.Linear(30, 30), torch.ones(400, 30)
    with dumpcmp.capture(model, tmp_path / "d", sample_rows=4) as now:
        pretended.capture_begin()
        model(x)
        pretended.capture_end()
        held = now.mode.replays._reels[pretended]._events
        taken = [event.tensor for event in held if isinstance(event, Frame)]
        assert {each.shape[0] for each in taken if each is not None and each.dim() > 1} == {4}
        for number in (5, 7):
            fill(now, pretended, number)
            pretended.replay()
    archive = Archive(tmp_path / "d")
    for step, number in enumerate((5, 7)):
        found = archive[Key("Linear", step, "<root>", 0, "output.0")]
        assert str(found.sample) == "4 of 400 rows"
        assert (archive.load(found).numbers() == number).all()


@pytest.mark.usefixtures("as_if_away")
@pytest.mark.parametrize("keep", [{}, {"keep": "summary"}, {"sample_rows": 2}], ids=str)
def test_rows_that_fill_a_bucket_are_cut(
    pretended: Pretended, tmp_path: Path, keep: dict[str, Any]
) -> None:
    model, x = nn.Linear(30, 30), torch.ones(40, 30)
    cases = ((23, 5.0), (40, 7.0))
    with dumpcmp.capture(model, tmp_path / "d", **keep) as now:
        with dumpcmp.padded(40, of=40):
            pretended.capture_begin()
            model(x)
            pretended.capture_end()
        for rows, number in cases:
            fill(now, pretended, number)
            with dumpcmp.padded(rows, of=40):
                pretended.replay()
    archive = Archive(tmp_path / "d")
    assert audit(tmp_path / "d").sound
    for step, (rows, number) in enumerate(cases):
        for slot in ("input.0", "output.0"):
            found = archive[Key("Linear", step, "<root>", 0, slot)]
            held = archive.load(found).numbers()
            assert found.shape == (rows, 30)
            if "keep" in keep:
                assert (held[5:8] == number).all() and found.kept is Kept.SUMMARY
            else:
                assert (held == number).all() and len(held) == (2 if keep else rows)
        weight = archive[Key("Linear", 0, "<root>", 0, "param.weight")]
        assert weight.shape == (30, 30)


@pytest.mark.usefixtures("as_if_away")
def test_a_summary_with_what_fills_a_bucket_is_none(pretended: Pretended, tmp_path: Path) -> None:
    model, x = nn.Linear(30, 30), torch.ones(400, 30)
    with (
        pytest.warns(CaptureWarning, match="values? inside of CUDA graphs .* dumpcmp.padded"),
        dumpcmp.capture(model, tmp_path / "d", sample_rows=4),
    ):
        pretended.capture_begin()
        model(x)
        pretended.capture_end()
        with dumpcmp.padded(230, of=400):
            pretended.replay()
    found = Archive(tmp_path / "d")[Key("Linear", 0, "<root>", 0, "output.0")]
    assert (found.problem, found.shape) == (FILLED, (230, 30))


def test_more_rows_than_a_bucket_has_are_refused() -> None:
    with pytest.raises(dumpcmp.SelectionError, match="17 rows of 16"), dumpcmp.padded(17, of=16):
        pass


class Around(nn.Module):
    """Calls a module whose forward replays a graph, as graphed callables do."""

    def __init__(self, graph: Pretended) -> None:
        super().__init__()
        self.inner = Net()
        self.graph = graph

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.inner(x)
        return result + 1


@pytest.mark.usefixtures("as_if_away")
def test_a_graph_of_a_module_is_part_of_the_step_that_calls_it(
    pretended: Pretended, tmp_path: Path
) -> None:
    model, x = Around(pretended), torch.ones(2, 64)
    with dumpcmp.capture(None, tmp_path / "d") as now:
        pretended.capture_begin()
        model.inner(x)
        pretended.capture_end()

        def replayed(x: Tensor) -> Tensor:
            fill(now, pretended, 9)
            pretended.replay()
            return x

        model.inner.forward = replayed  # type: ignore[method-assign]
        model(x)
    archive = Archive(tmp_path / "d")
    assert {key.model for key in archive} == {"Around"} and audit(tmp_path / "d").sound
    for op in ("inner.first/linear", "inner.act", "inner.last/linear", "inner/mul"):
        assert (numbers(archive, "Around", 0, op, 0, "output.0") == 9).all(), op
    assert (numbers(archive, "Around", 0, "inner", 0, "output.0") == 1).all(), "of the call itself"
    orders = [archive[key].order for key in archive if key.op.startswith("inner")]
    assert min(orders) > archive[Key("Around", 0, "<root>", 0, "input.0")].order


class Middle(nn.Module):
    """Captures a graph in the middle of its first call; replays it twice in every one."""

    def __init__(self, graph: Pretended) -> None:
        super().__init__()
        self.net, self.graph, self.is_there = nn.Linear(3, 3), graph, False
        self.replay: Callable[[], None] = graph.replay

    def forward(self, x: Tensor) -> Tensor:
        self.net(x)
        x = x + 1
        if not self.is_there:
            self.is_there = True
            self.graph.capture_begin()
            torch.mul(self.net(x) + 1, 2)
            self.graph.capture_end()
        self.replay()
        self.replay()
        return torch.mul(x + 1, 2)


@pytest.mark.usefixtures("as_if_away")
def test_a_graph_of_the_middle_of_a_step_is_part_of_each_step_that_replays_it(
    pretended: Pretended, tmp_path: Path
) -> None:
    model, x, filled = Middle(pretended), torch.ones(2, 3), itertools.count(10)
    with dumpcmp.capture(model, tmp_path / "d") as now:

        def replay() -> None:
            fill(now, pretended, next(filled))
            pretended.replay()

        model.replay = replay
        for _ in range(2):
            model(x)
    archive = Archive(tmp_path / "d")
    assert audit(tmp_path / "d").sound and {key.step for key in archive} == {0, 1}
    wanted = {
        ("net", 1): 0, ("net@1/linear", 0): 0, ("<root>/add", 1): 0, ("<root>/mul", 0): 0,
        ("net", 2): 1, ("net@2/linear", 0): 1, ("<root>/add", 2): 1, ("<root>/mul", 1): 1,
    }  # fmt: skip
    for step in range(2):
        for (op, call), replayed in wanted.items():
            found = numbers(archive, "Middle", step, op, call, "output.0")
            assert (found == 10 + 2 * step + replayed).all(), (step, op, call)
        calls = [key.call for key in archive if key.step == step and key.op == "<root>/add"]
        assert max(calls) == 3 and Key("Middle", step, "net", 3, "output.0") not in archive
    weight = archive[Key("Middle", 0, "net", 0, "param.weight")]
    assert weight.kept is Kept.FULL, "weighed when the graph was there, and not in it"


def numbers(archive: Archive, *key: Any) -> np.ndarray:
    return archive.load(archive[Key(*key)]).numbers()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.act, self.last = nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(self.first(x))
        y += 1
        last: Tensor = self.last(y) * 2
        return last


class Plain(Net):
    """Writes to nothing that its backward needs: graphed callables run that, too."""

    def forward(self, x: Tensor) -> Tensor:
        last: Tensor = self.last(self.act(self.first(x)) + 1) * 2
        return last


def graph_of(
    model: Callable[[Tensor], Tensor], x: Tensor, warms: bool = True
) -> tuple[torch.cuda.CUDAGraph, Tensor]:
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    if warms:
        with torch.no_grad(), torch.cuda.stream(side):
            model(x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        result = model(x)
    return graph, result


def eager_and_graphed(room: Path, rows: int, **keep: Any) -> tuple[dumpcmp.Outcome, list[Tensor]]:
    """How a run of replays compares with an eager one of the same inputs; and what it gave."""
    torch.manual_seed(0)
    model, x = Net().cuda(), torch.randn(rows, 64, device="cuda")
    inputs, results = [torch.randn_like(x) for _ in range(4)], []
    with torch.no_grad(), dumpcmp.capture(model, room / "eager"):
        for each in (x, *inputs):
            model(each)
    with dumpcmp.capture(model, room / "graphed", **keep):
        graph, result = graph_of(model, x)
        for each in inputs:
            x.copy_(each)
            graph.replay()
            results.append(result.clone())
    outcome = dumpcmp.compare(room / "eager", room / "graphed")
    assert outcome.passed, [row for row in outcome.rows if row.verdict.fails]
    return outcome, results


@pytest.mark.gpu
@on_gpu
def test_each_replay_has_the_values_of_its_own_inputs(tmp_path: Path) -> None:
    _, results = eager_and_graphed(tmp_path, 512)
    eager, graphed = Archive(tmp_path / "eager"), Archive(tmp_path / "graphed")
    assert audit(tmp_path / "graphed").sound and graphed.complete
    assert graphed.steps("Net") == (0, 1, 2, 3, 4)
    assert {key for key in eager if not key.slot.startswith(("param", "buffer"))} <= set(graphed)
    for key in eager:
        if key.step and not key.slot.startswith(("param", "buffer", "rng")):
            assert np.array_equal(
                numbers(graphed, *key_parts(key)), numbers(eager, *key_parts(key))
            )
    for step, each in enumerate(results):
        found = numbers(graphed, "Net", step + 1, "<root>", 0, "output.0")
        assert np.array_equal(found, each.cpu().numpy())


def key_parts(key: Key) -> tuple[Any, ...]:
    return key.model, key.step, key.op, key.call, key.slot


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("keep", ["full", "summary"])
def test_two_graphs_in_any_order_and_summaries(keep: str, tmp_path: Path) -> None:
    model = Net().cuda()
    small, large = torch.zeros(128, 64, device="cuda"), torch.zeros(512, 64, device="cuda")
    with dumpcmp.capture(model, tmp_path / "d", keep=keep):
        one, _ = graph_of(model, small)
        two, _ = graph_of(model, large)
        for number, (graph, x) in enumerate([(two, large), (one, small), (two, large)]):
            x.fill_(number + 1)
            graph.replay()
    archive = Archive(tmp_path / "d")
    assert archive.steps("Net") == (0, 1, 2, 3, 4), "two to warm up, three replays"
    for step, (rows, value) in enumerate([(512, 1), (128, 2), (512, 3)], 2):
        found = archive[Key("Net", step, "<root>", 0, "input.0")]
        assert found.shape == (rows, 64)
        assert (found.kept is Kept.SUMMARY) == (keep == "summary")
        first = archive.load(found).numbers()
        if keep == "summary":
            assert first[5] == first[6] == value
        else:
            assert (first == value).all()


@pytest.mark.gpu
@on_gpu
def test_each_replay_has_the_rows_of_its_own_inputs(tmp_path: Path) -> None:
    outcome, _ = eager_and_graphed(tmp_path, 512, sample_rows=16)
    samples = [row.metrics.sample for row in outcome.rows if row.key.step and row.metrics]
    assert sum(str(sample) == "16 of 512 rows" for sample in samples) > 20


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("checksum", [False, True])
def test_a_graph_takes_its_own_summaries(checksum: bool, tmp_path: Path) -> None:
    """The budget has no room for whole values, and every replay has numbers of its own."""
    keep = Retention("summary", checksum=checksum, graph_budget=500_000)
    outcome, _ = eager_and_graphed(tmp_path, 4096, keep=keep)
    assert not [record for record in Archive(tmp_path / "graphed").values() if record.problem]
    large = [r.metrics for r in outcome.rows if r.metrics and r.golden_shape == (4096, 64)]
    assert len(large) > 30 and all(one.rel_l2 <= 1e-9 for one in large)
    assert not checksum or all(one.equal for one in large)


@pytest.mark.gpu
@on_gpu
def test_graphed_callables_are_part_of_the_step_that_calls_them(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), Plain(), nn.Linear(64, 64)).cuda().eval()
    x = torch.randn(256, 64, device="cuda")
    with torch.no_grad(), dumpcmp.capture(model, tmp_path / "eager"):
        model(x)
    with dumpcmp.capture(None, tmp_path / "graphed"):
        inner = torch.cuda.make_graphed_callables(
            model[1], (torch.randn_like(x, requires_grad=True),)
        )
        model[1] = cast(nn.Module, inner)
        with torch.no_grad():
            model(x)
    eager, graphed = Archive(tmp_path / "eager"), Archive(tmp_path / "graphed")
    for name in ("1.first/linear", "1.act/relu", "1/mul", "1.last", "2/linear"):
        wanted = numbers(eager, "Sequential", 0, name, 0, "output.0")
        assert np.array_equal(numbers(graphed, "Sequential", 0, name, 0, "output.0"), wanted), name


@pytest.mark.gpu
@on_gpu
def test_replays_that_go_past_python_are_told_and_never_the_same(tmp_path: Path) -> None:
    model, x = Net().cuda(), torch.randn(8, 64, device="cuda")
    with torch.no_grad(), dumpcmp.capture(model, tmp_path / "eager"):
        for _ in range(3):
            model(x)
    with (
        pytest.warns(CaptureWarning, match="3 replays of CUDA graphs .* ran more often"),
        dumpcmp.capture(model, tmp_path / "d"),
    ):
        graph, result = graph_of(model, x)
        graph.replay()
        for _ in range(3):
            torch._C._CUDAGraph.replay(graph)
        graph.replay()
        del graph, result
    facts = Archive(tmp_path / "d").run[0]["run"]
    assert (facts["replays"], facts["unseen_replays"]) == (2, 3)
    assert dumpcmp.compare(tmp_path / "eager", tmp_path / "d").exit_code == 2


@pytest.mark.gpu
@on_gpu
def test_a_budget_that_is_spent_is_told(tmp_path: Path) -> None:
    model, x = Net().cuda(), torch.randn(512, 64, device="cuda")
    keep = Retention(graph_budget=300_000)
    with (
        pytest.warns(CaptureWarning, match="values inside of CUDA graphs are not recorded"),
        dumpcmp.capture(model, tmp_path / "d", keep=keep),
    ):
        graph, _ = graph_of(model, x)
        graph.replay()
    archive = Archive(tmp_path / "d")
    problems = {archive[key].problem for key in archive if key.step == 1}
    assert problems == {"", BEYOND}


class Pieces(nn.Module):
    """Captures a graph of its middle in its first call, and replays it in every call."""

    static: Tensor
    total: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.net, self.last = nn.Linear(64, 64), Net(), nn.Linear(64, 64)
        self.register_buffer("total", torch.zeros(64))
        self.graph: torch.cuda.CUDAGraph | None = None
        self.is_graphed = True

    def middle(self, x: Tensor) -> Tensor:
        y: Tensor = self.net(x)
        self.total.add_(y.sum(0))
        z: Tensor = torch.tanh(y) + self.net.first(x)
        return z

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for _ in range(2):
            x = self.replayed(x) if self.is_graphed else self.middle(x)
            x = torch.sin(x)
        y: Tensor = self.last(x)
        return y

    def replayed(self, x: Tensor) -> Tensor:
        if self.graph is None:
            self.static, total = x.clone(), self.total.clone()
            self.graph, self.result = graph_of(self.middle, self.static, warms=False)
            self.total.copy_(total)
        self.static.copy_(x)
        self.graph.replay()
        return self.result


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize(
    "kept", [{}, {"keep": "summary"}, {"sample_rows": 4}, {"level": "modules"}]
)
def test_a_graph_of_the_middle_of_a_step_is_like_eager_code(
    kept: dict[str, Any], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    inputs, results = [torch.randn(256, 64, device="cuda") for _ in range(3)], []
    model = Pieces().cuda()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    torch.sin(model.middle(inputs[0]))  # so that no library begins while a graph is captured
    for is_graphed, name in ((False, "eager"), (True, "graphed")):
        model.is_graphed = is_graphed
        model.load_state_dict(state)
        with torch.no_grad(), dumpcmp.capture(model, tmp_path / name, **kept):
            results.append([model(x) for x in inputs])
    assert all(map(torch.equal, *results))
    graphed = Archive(tmp_path / "graphed")
    ops: dict[str, set[Key]] = {"eager": set(), "graphed": set()}
    for name, found in ops.items():
        found |= {key for key in Archive(tmp_path / name) if "net" in key.op or "tanh" in key.op}
    assert ops["eager"] == ops["graphed"] and {key.call for key in ops["eager"]} >= {0, 1}
    assert not graphed.run[0]["run"].get("remarks")
    outcome = dumpcmp.compare(tmp_path / "eager", tmp_path / "graphed")
    wrong = [row for row in outcome.rows if row.verdict.fails]
    assert not wrong, wrong[:3]


@pytest.mark.gpu
@on_gpu
def test_a_buffer_that_a_graph_writes_to_is_recorded_at_each_replay(tmp_path: Path) -> None:
    model, x = Pieces().cuda(), torch.randn(8, 64, device="cuda")
    totals = []
    with torch.no_grad(), dumpcmp.capture(model, tmp_path / "d"):
        for _ in range(3):
            totals.append(model.total.clone())
            model(x)
    archive = Archive(tmp_path / "d")
    for step, total in enumerate(totals):
        found = numbers(archive, "Pieces", step, "<root>", 0, "buffer.total")
        assert np.array_equal(found, total.cpu().numpy()), step
    assert not torch.equal(totals[1], totals[2])


@pytest.mark.gpu
@on_gpu
def test_graphs_that_share_their_memory_are_seen(tmp_path: Path) -> None:
    pool, results = torch.cuda.graph_pool_handle(), []
    models = [Net().cuda() for _ in range(3)]
    inputs = [torch.randn(256, 64, device="cuda") for _ in models]
    with torch.no_grad(), dumpcmp.capture(None, tmp_path / "d"):
        graphs = [torch.cuda.CUDAGraph() for _ in models]
        for graph, model, x in zip(graphs, models, inputs, strict=True):
            model(x)
            with torch.cuda.graph(graph, pool=pool):
                results.append(model(x))
        for _ in range(2):
            for graph in graphs:
                graph.replay()
    archive = Archive(tmp_path / "d")
    assert not archive.run[0]["run"].get("remarks")
    for name, result in zip(("Net", "Net-1", "Net-2"), results, strict=True):
        kept = [key for key in archive if key.model == name and key.op == "<root>"]
        assert {key.step for key in kept} == {0, 1, 2}
        found = [numbers(archive, name, step, "<root>", 0, "output.0") for step in range(3)]
        assert all(np.array_equal(each, found[0]) for each in found) and result.shape == x.shape


def trained(room: Path, is_graphed: bool, **kept: Any) -> Path:
    """A dump of three steps of training, the optimizer's among them, in one graph or in none."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64)).cuda()
    x, *inputs = (torch.randn(8, 64, device="cuda") for _ in range(4))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, capturable=True)

    def train() -> None:
        optimizer.zero_grad(set_to_none=True)
        model(x).square().mean().backward()
        optimizer.step()

    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(side):
        train()
    torch.cuda.current_stream().wait_stream(side)
    path = room / ("graphed" if is_graphed else "eager")
    with dumpcmp.capture(model, path, backward=True, **kept):
        step, graph = train, torch.cuda.CUDAGraph()
        if is_graphed:
            with torch.cuda.graph(graph):
                train()
            step = graph.replay
        for each in inputs:
            x.copy_(each)
            step()
    return path


@pytest.mark.gpu
@on_gpu
def test_weights_that_a_graph_trains_are_those_before_each_replay(tmp_path: Path) -> None:
    outcome = dumpcmp.compare(trained(tmp_path, False), trained(tmp_path, True))
    assert outcome.passed, outcome
    slots = {(row.key.step, row.key.slot) for row in outcome.rows}
    assert {(step, "param.weight") for step in range(3)} <= slots
    assert {(step, "buffer.running_var") for step in range(3)} <= slots


def gradients_of(archive: Archive, model: str, step: int) -> set[tuple[str, int, str]]:
    keys = [key for key in archive if key.model == model and key.step == step]
    return {
        (str(key.op), key.call, key.slot)
        for key in keys
        if "grad" in key.slot or "backward" in key.op.function
    }


@pytest.mark.usefixtures("as_if_away")
@pytest.mark.parametrize("mode", ["eager", "aten"])
@pytest.mark.parametrize("is_apart", [False, True], ids=["one graph", "a graph of its own"])
def test_gradients_that_a_graph_computes_are_recorded_at_each_replay(
    pretended: Pretended, is_apart: bool, mode: str, tmp_path: Path
) -> None:
    model, x, back = Plain(), torch.ones(2, 64), Pretended() if is_apart else pretended
    with dumpcmp.capture(model, tmp_path / "d", mode=mode, backward=True) as now:
        model(x).sum().backward()
        model.zero_grad()
        pretended.capture_begin()
        loss = model(x).sum()
        if is_apart:
            pretended.capture_end()
            back.capture_begin()
        loss.backward()
        back.capture_end()
        for number in (5, 7):
            for graph in dict.fromkeys((pretended, back)):
                fill(now, graph, number)
                graph.replay()
        model.zero_grad()
        model(x).sum().backward()
    archive = Archive(tmp_path / "d")
    assert archive.steps("Plain") == (0, 1, 2, 3) and audit(tmp_path / "d").sound
    assert not archive.run[0]["run"].get("remarks")
    eager = gradients_of(archive, "Plain", 0)
    assert len(eager) > 10 and all(gradients_of(archive, "Plain", step) == eager for step in (1, 2))
    for step, number in ((1, 5), (2, 7)):
        for op, call, slot in eager:
            assert (numbers(archive, "Plain", step, Op(op), call, slot) == number).all(), (op, slot)
    assert dumpcmp.compare(tmp_path / "d", tmp_path / "d").passed
    for op, call, slot in eager:  # what came before and after the graphs is as it would be
        first, last = (numbers(archive, "Plain", step, Op(op), call, slot) for step in (0, 3))
        assert np.array_equal(first, last), (op, slot)


@pytest.mark.usefixtures("as_if_away")
def test_gradients_of_a_graph_that_none_computes_are_told_of(
    pretended: Pretended, tmp_path: Path
) -> None:
    model, x = nn.Linear(3, 3), torch.ones(2, 3)
    told = "1 gradient of values inside of CUDA graphs is not recorded"
    with (
        pytest.warns(CaptureWarning, match=told),
        dumpcmp.capture(model, tmp_path / "d", backward=True),
    ):
        pretended.capture_begin()
        loss = model(x)
        pretended.capture_end()
        pretended.replay()
        torch.autograd.grad(loss.sum(), loss)


class Graphed(torch.autograd.Function):
    """Runs a block, and its backward, by graphs."""

    @staticmethod
    def forward(ctx: Any, run: Any, x: Tensor, *_parameters: Tensor) -> Tensor:
        ctx.run = run
        run.replay(run.graph)
        result: Tensor = run.y.detach() + x * 0
        return result

    @staticmethod
    def backward(ctx: Any, _grad: Tensor) -> Any:
        ctx.run.replay(ctx.run.back)
        return None, *(each.clone() for each in ctx.run.grads)


class Lazily(nn.Module):
    """Captures two graphs of its block: in the middle of its first call, or when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.block, self.after = nn.Linear(64, 64), Plain(), nn.Linear(64, 64)
        self.graph, self.back, self.is_there = Pretended(), Pretended(), False
        self.replay: Callable[[Pretended], None] | None = None

    def capture(self, x: Tensor) -> None:
        self.is_there = True
        x = x.detach().clone().requires_grad_()
        with torch.enable_grad():
            self.graph.capture_begin()
            self.y = self.block(x)
            self.graph.capture_end()
            self.back.capture_begin()
            wanted = (x, *self.block.parameters())
            self.grads = torch.autograd.grad(self.y, wanted, torch.ones_like(self.y))
            self.back.capture_end()

    def forward(self, x: Tensor) -> Tensor:
        y = self.before(x)
        if self.replay is None:
            y = self.block(y)
        else:
            if not self.is_there:
                self.capture(y)
            with torch._C.DisableTorchFunction():
                y = Graphed.apply(self, y, *self.block.parameters())  # type: ignore[no-untyped-call]
        z: Tensor = self.after(y)
        return z


@pytest.mark.usefixtures("as_if_away", "pretended")
@pytest.mark.parametrize(
    ("is_early", "mode"), [(False, "eager"), (True, "eager"), (True, "aten")],
    ids=["in the middle", "before", "before, in ops"],
)  # fmt: skip
@pytest.mark.parametrize("is_named", [False, True], ids=["all models", "this model"])
def test_gradients_of_graphs_are_in_the_steps_around_them(
    is_early: bool, is_named: bool, mode: str, tmp_path: Path
) -> None:
    model, x = Lazily(), torch.ones(2, 64)
    filled = itertools.count(10)
    root = model if is_named else None
    with dumpcmp.capture(root, tmp_path / "d", mode=mode, backward=True) as now:

        def replay(graph: Pretended) -> None:
            fill(now, graph, next(filled))
            graph.replay()

        model(x).sum().backward()
        model.zero_grad()
        if is_early:
            model.capture(x)
        model.replay = replay
        for _ in range(2):
            model(x).sum().backward()
            model.zero_grad()
    archive = Archive(tmp_path / "d")
    assert {key.model for key in archive} == {"Lazily"} and archive.steps("Lazily") == (0, 1, 2)
    assert audit(tmp_path / "d").sound and not archive.run[0]["run"].get("remarks")
    eager = gradients_of(archive, "Lazily", 0)
    assert len(eager) > 20
    for step, number in ((1, 11), (2, 13)):
        assert gradients_of(archive, "Lazily", step) >= eager
        for op in ("block.first", "block.act", "block.last"):
            assert (numbers(archive, "Lazily", step, Op(op), 0, "grad_output.0") == number).all()


def test_a_parameter_has_its_gradient_in_the_model_that_took_it_last(tmp_path: Path) -> None:
    whole = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    with dumpcmp.capture(None, tmp_path / "d", backward=True):
        whole[0](torch.ones(2, 3))  # a part, alone, which nothing is computed back from
        whole(torch.ones(2, 3)).sum().backward()
    archive = Archive(tmp_path / "d")
    found = [key.model for key in archive if key.slot == "grad.weight"]
    assert found == ["Sequential"]


def trained_by_callables(room: Path, is_graphed: bool, is_named: bool = False, **kept: Any) -> Path:
    """A dump of three steps of training, in which the middle runs by graphs or does not."""
    torch.manual_seed(0)

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.block, self.after = nn.Linear(64, 64), Plain(), nn.Linear(64, 8)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.after(torch.tanh(self.block(self.before(x))))
            return y

    model, path = Block().cuda(), room / ("graphed" if is_graphed else "eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    inputs = [torch.randn(256, 64, device="cuda") for _ in range(3)]
    sample = torch.randn(256, 64, device="cuda", requires_grad=True)
    with dumpcmp.capture(model, path, backward=True, **kept):
        if is_graphed:
            model.block = cast(Plain, torch.cuda.make_graphed_callables(model.block, (sample,)))
        for x in inputs:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    return path


KEEPS: list[dict[str, Any]] = [
    {}, {"keep": "summary"}, {"sample_rows": 8}, {"level": "modules"}, {"mode": "aten"},
]  # fmt: skip


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("kept", KEEPS, ids=["full", "summary", "rows", "modules", "aten"])
@pytest.mark.parametrize(
    "train", [trained, trained_by_callables], ids=["whole", "callables"],
)  # fmt: skip
def test_gradients_of_graphs_are_like_those_of_eager_code(
    train: Callable[..., Path], kept: dict[str, Any], tmp_path: Path
) -> None:
    eager = Archive(train(tmp_path, False, **kept))
    graphed = Archive(train(tmp_path, True, **kept))
    name = next(iter(eager)).model
    for step in range(3):
        wanted = gradients_of(eager, name, step)
        extra = gradients_of(graphed, name, step) - wanted
        assert wanted and wanted <= gradients_of(graphed, name, step)
        assert {op for op, _, _ in extra} <= {"block/copy", "block/aten.copy"}, (
            "into the graph's memory"
        )
    outcome = dumpcmp.compare(eager.path, graphed.path)
    assert outcome.passed, outcome
    compared = {(row.key.step, str(row.key.op), row.key.call, row.key.slot) for row in outcome.rows}
    assert {
        (step, *each) for step in range(3) for each in gradients_of(eager, name, step)
    } <= compared
