"""The kernel that computes a root: its name, its file, and the line of it that names the op."""

from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import nn

from dumpcmp.comparing import compare
from dumpcmp.dumping.capturing import capture
from dumpcmp.nouns.key import Key, Op
from dumpcmp.nouns.outcome import Outcome
from dumpcmp.report.jsonfile import as_json
from dumpcmp.report.kernel_sources import KernelSource, kernel_source, kernels_of
from dumpcmp.report.telling import words_of
from dumpcmp.report.terminal import show

CODE = """
from torch._inductor.async_compile import AsyncCompile

cpp_fused_mul_tanh_0 = async_compile.cpp_pybinding(['float*'], r'''
extern "C" void kernel(float* in_out_ptr0)
{
    for(int64_t x0 = 0; x0 < 8; x0 += 1)
    {
        auto tmp1 = tmp0.tanh();
        auto tmp2 = tmp1 * 1.01;
    }
}
''')


async_compile.wait(globals())
"""


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """A root that a kernel computes, of an archive with generated code beside the model."""
    room = tmp_path_factory.mktemp("compiled")

    class Squashed(nn.Module):
        wrong = 1.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(x * self.wrong)

    model, x = Squashed(), torch.linspace(-1, 1, 8)
    with capture(model, room / "d1"):
        model(x)
    model.wrong = 1.5
    with capture(model, room / "d2"):
        model(x)
    (room / "d2" / "worldsize1_global_rank0" / "Squashed" / "code-0-forward.txt").write_text(CODE)
    found = compare(room / "d1", room / "d2", closely=4)
    first = next(row for row in found.rows if row.key.op.function == "tanh" and row.verdict.fails)
    root = replace(first, kernel="cpp_fused_mul_tanh_0", root=True)
    rows = [root if row is first else row for row in found.rows]
    return replace(found, rows=rows, roots=(root,))


def test_the_line_that_names_the_op_is_meant(outcome: Outcome) -> None:
    told = kernel_source(outcome, outcome.roots[0])
    assert told is not None and told.file.endswith("code-0-forward.txt")
    written = Path(told.file).read_text().splitlines()
    assert written[told.meant - 1] == "        auto tmp1 = tmp0.tanh();"
    assert list(told.excerpt(9)) == [
        (told.meant, "auto tmp1 = tmp0.tanh();"),
        (told.meant + 1, "auto tmp2 = tmp1 * 1.01;"),
    ]
    assert "async_compile.wait" not in "\n".join(told.lines)


def test_an_excerpt_has_the_lines_that_compute_and_of_many_those_around_the_one_meant() -> None:
    lines = (
        "void kernel()",
        "{",
        "    // prologue",
        *(f"    auto tmp{n} = {n};" for n in range(30)),
    )
    told = KernelSource("k", "code.txt", 100, lines, 123)
    assert [number for number, _ in told.excerpt(30)] == list(range(103, 133))
    assert [number for number, _ in told.excerpt(4)] == [121, 122, 123, 124]
    assert list(told._replace(meant=103).excerpt(1)) == [(103, "auto tmp0 = 0;")]
    nothing = KernelSource("k", "code.txt", 5, ("call(", "x)"), 5)
    assert list(nothing.excerpt(9)) == [(5, "call("), (6, "x)")]


def test_where_no_line_names_the_op_the_first_that_computes_is_meant(outcome: Outcome) -> None:
    root = outcome.roots[0]
    lowered = replace(root, key=Key("Squashed", 0, Op("<root>/softplus"), 0, "output.0"))
    told = kernel_source(outcome, lowered)
    assert told is not None
    assert told.lines[told.meant - told.first].strip() == "auto tmp1 = tmp0.tanh();"


def test_it_stands_in_the_answer_in_explain_and_in_json(outcome: Outcome) -> None:
    console = Console(file=StringIO(), width=200)
    show(outcome, console)
    assert isinstance(console.file, StringIO)
    printed = console.file.getvalue()
    assert "kernel cpp_fused_mul_tanh_0, generated in " in printed
    assert any(line.split() == [">", "9", "auto", "tmp1", "=", "tmp0.tanh();"]
               for line in printed.splitlines())  # fmt: skip
    place = next(i for i, row in enumerate(outcome.rows) if row.kernel)
    assert "auto tmp2 = tmp1 * 1.01;" in "\n".join(words_of(outcome, place))
    (kernel,) = as_json(outcome)["kernels"]
    assert kernel["roots"] == (str(outcome.roots[0].key),) and kernel["meant"] == 9


def test_a_kernel_without_source_is_named_alone(outcome: Outcome) -> None:
    called = replace(outcome.roots[0], kernel="extern_kernels.mm")
    assert kernel_source(outcome, called) is None
    console = Console(file=StringIO(), width=200)
    show(replace(outcome, roots=(called,)), console)
    assert isinstance(console.file, StringIO)
    assert "  kernel extern_kernels.mm\n" in console.file.getvalue()
    gone = replace(outcome.background, target=replace(outcome.background.target, path="nowhere"))
    assert kernels_of(replace(outcome, background=gone)) == []
