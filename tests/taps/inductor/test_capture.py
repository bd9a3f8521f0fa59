"""What a tapped run leaves as it was, what it keeps, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch._inductor import config

import dumpcmp
from dumpcmp.archive.read.reader import Archive
from dumpcmp.cli import main
from dumpcmp.dumping.modes import mode_with
from dumpcmp.dumping.programs import dump
from dumpcmp.nouns.errors import CaptureError, SelectionError
from dumpcmp.nouns.row import Verdict
from tests.taps.inductor.conftest import run
from tests.taps.inductor.models import net

Golden = Callable[[bool], Path]


def program() -> None:
    model, x = net()
    run(model, x, backward=True)


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certified dump of one training step."""
    path = tmp_path_factory.mktemp("certified") / "d"
    dump(program, path, mode="compiled", certify=True, backward=True)
    return path


def facts_of(path: Path) -> dict[str, Any]:
    facts: dict[str, Any] = Archive(path).run[0]["run"]
    return facts


def test_the_tap_changes_no_kernel_and_no_bit(certified: Path) -> None:
    stated = facts_of(certified)["certificate"]
    assert stated["holds"] is True and stated["text"].startswith("certified: ")
    assert stated["compared"].keys() >= {"kernel", "output", "gradient", "state", "stdout"}


def test_a_comparison_says_whether_its_target_is_certified(
    certified: Path, golden: Golden, tmp_path: Path
) -> None:
    told = dumpcmp.compare(golden(True), certified).remarks
    assert any("my side: certified: " in remark for remark in told)
    model, x = net()
    with dumpcmp.capture(model, tmp_path / "d", mode="compiled"):
        run(model, x)
    told = dumpcmp.compare(golden(False), tmp_path / "d").remarks
    assert any("not certified" in remark for remark in told)


def test_code_and_graph_are_kept_as_text(certified: Path) -> None:
    names = {name for _, _, name in Archive(certified).texts}
    assert {"graph-0-forward.txt", "code-0-forward.txt", "code-1-backward.txt"} <= names


def test_each_graph_is_kept_as_it_was_traced_and_as_it_was_lowered(certified: Path) -> None:
    texts = {name: path for (_, _, name), path in Archive(certified).texts.items()}
    original, aot = (texts[f"{stage}-0-forward.txt"].read_text() for stage in ("original", "aot"))
    assert "tanh" in original and "torch.ops.aten" not in original and "models.py" in original
    assert "torch.ops.aten.tanh.default" in aot
    nodes = [line.split("\t") for line in texts["nodes-0-forward.txt"].read_text().splitlines()]
    assert nodes[0] == ["node", "kernel", "source"]
    assert any(kernel.startswith("cpp_fused") for _, kernel, _ in nodes[1:])
    assert all("models.py:" in source for _, _, source in nodes[1:])
    for stage in ("original", "aot", "passes", "final", "nodes"):
        told = CliRunner().invoke(main, ["show", str(certified), "--graph", stage])
        assert told.exit_code == 0 and "-0-forward" in told.output


def test_the_nodes_of_a_fused_kernel_name_it(certified: Path) -> None:
    texts = {name: path for (_, _, name), path in Archive(certified).texts.items()}
    code = texts["code-0-forward.txt"].read_text()
    lines = texts["nodes-0-forward.txt"].read_text().splitlines()[1:]
    kernel_of = dict(line.split("\t")[:2] for line in lines)
    assert kernel_of["tanh"].partition("#")[0] in code
    fused = [node for node, kernel in kernel_of.items() if kernel == kernel_of["tanh"]]
    assert {"tanh", "mul"} <= set(fused), kernel_of


def test_the_graph_is_kept_after_each_pass_that_changed_it(certified: Path) -> None:
    texts = {name: path.read_text() for (_, _, name), path in Archive(certified).texts.items()}
    forward, backward = (
        [text for name, text in texts.items() if name.startswith(f"pass-{code}-")]
        for code in ("0-forward", "1-backward")
    )
    assert all(a != b for texts in (forward, backward) for a, b in pairwise(texts))
    both = [text for text in forward if text in backward]  # before one graph was cut into two
    assert both == forward[: len(both)] == backward[: len(both)]
    assert 0 < len(both) < min(len(forward), len(backward))


def test_each_op_tells_its_kernel_and_its_line(certified: Path) -> None:
    calls = Archive(certified).calls.values()
    (tanh,) = (call for call in calls if call.op == "blocks.0.mlp/tanh")
    assert tanh.kernel.startswith("cpp_fused") and "models.py" in tanh.source
    assert "blocks.0.mlp/mul#0" in tanh.origins


def test_show_prints_the_kernel_of_an_op(certified: Path) -> None:
    shown = CliRunner().invoke(main, ["show", "--kernel", str(certified), "blocks.0.mlp/tanh"])
    assert shown.exit_code == 0
    assert "models.py" in shown.output and "together with" in shown.output
    assert "async_compile.cpp_pybinding" in shown.output and "tanh()" in shown.output


def test_gradients_of_both_runs_agree(certified: Path, golden: Golden) -> None:
    outcome = dumpcmp.compare(golden(True), certified)
    gradients = [row for row in outcome.rows if row.key.slot.startswith("grad")]
    passed = [row for row in gradients if row.verdict is Verdict.PASS]
    assert len(passed) >= 0.8 * len(gradients)
    assert not [row for row in gradients if row.verdict.fails]


def test_cached_code_is_tapped_as_fresh_code_is(certified: Path, tmp_path: Path) -> None:
    from torch._dynamo.utils import counters

    counters.clear()
    dump(program, tmp_path / "d", mode="compiled", backward=True)
    hits = (
        counters["aot_autograd"]["autograd_cache_hit"] + counters["inductor"]["fxgraph_cache_hit"]
    )
    assert hits > 0, dict(counters)
    assert set(Archive(tmp_path / "d")) == set(Archive(certified))


def test_untapped_code_is_never_taken_from_the_tapped_cache(certified: Path) -> None:
    model, x = net()
    torch._dynamo.reset()
    compiled = torch.compile(model)
    assert torch.equal(compiled(x), torch.compile(model)(x))
    code = "".join(path.read_text() for path in loaded_code())
    assert "_dumpcmp(" not in code


def loaded_code() -> Iterator[Path]:
    from torch._inductor.codecache import PyCodeCache

    newest = PyCodeCache.modules[-1:]
    yield from (Path(module.__file__) for module in newest if module.__file__)


def test_nothing_of_the_tap_outlives_its_block(tmp_path: Path) -> None:
    from torch._inductor.compile_fx import compile_fx
    from torch._inductor.scheduler import Scheduler

    before = Scheduler.free_buffers, compile_fx
    model, x = net()
    with dumpcmp.capture(model, tmp_path / "d", mode="compiled"):
        run(model, x)
    from torch._inductor import compile_fx as module

    assert (Scheduler.free_buffers, module.compile_fx) == before


# The setting that leaves no Python code to tap, and the word that the refusal must hold.
REFUSED: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "cpp_wrapper": lambda: config.patch(cpp_wrapper=True),
    "fx_wrapper": lambda: config.patch(fx_wrapper=True),
}


@pytest.mark.parametrize("setting", REFUSED)
def test_what_cannot_be_tapped_is_refused_by_name(setting: str, tmp_path: Path) -> None:
    model, x = net()
    with (
        REFUSED[setting](),
        pytest.raises(CaptureError, match=setting) as refused,
        dumpcmp.capture(model, tmp_path / "d", mode="compiled"),
    ):
        run(model, x)
    assert "boundary" in refused.value.hint


def test_an_option_of_torch_compile_is_refused_too(tmp_path: Path) -> None:
    model, x = net()
    compiled = torch.compile(model, options={"cpp_wrapper": True})
    with (
        pytest.raises(CaptureError, match="cpp_wrapper is on"),
        dumpcmp.capture(model, tmp_path / "d", mode="compiled"),
    ):
        compiled(x)


def test_packages_are_refused(tmp_path: Path) -> None:
    model, x = net()
    with (
        pytest.raises(CaptureError, match="AOTInductor"),
        dumpcmp.capture(model, tmp_path / "loaded", mode="compiled"),
    ):
        torch._inductor.aoti_load_package("model.pt2")
    program = torch.export.export(model, (x,))
    with (
        pytest.raises(CaptureError, match="AOTInductor"),
        dumpcmp.capture(model, tmp_path / "made", mode="compiled"),
    ):
        torch._inductor.aoti_compile_and_package(program, package_path=tmp_path / "m.pt2")


def test_a_missing_name_of_torch_is_told_with_its_version(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model, _ = net()
    monkeypatch.delattr("torch._inductor.scheduler.Scheduler.free_buffers")
    with (
        pytest.raises(CaptureError, match=r"Scheduler\.free_buffers") as told,
        dumpcmp.capture(model, tmp_path / "d", mode="compiled"),
    ):
        pass
    assert torch.__version__ in told.value.message and "boundary" in told.value.hint


@pytest.mark.parametrize(
    "options, word",
    [
        ({"name": "fx", "realize": True}, "--realize"),
        ({"name": "eager", "fusion": False}, "--fusion off"),
        ({"name": "boundary"}, "backend"),
        ({"name": "compiled", "backend": "eager"}, "--backend"),
    ],
)
def test_options_of_another_mode_are_refused(options: dict[str, Any], word: str) -> None:
    with pytest.raises(SelectionError, match=word):
        mode_with(**options)


def test_run_json_says_how_it_was_compiled(certified: Path) -> None:
    facts = facts_of(certified)
    assert facts["mode"] == "compiled" and facts["fusion"] is True and facts["realize"] is False
