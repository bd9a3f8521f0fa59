"""A certificate holds only where a run without dumpcmp gives the same, and says what differs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import nn

from dumpcmp.cli import main
from dumpcmp.dumping import capturing, certifying, witness
from dumpcmp.dumping.certifying import certificate
from dumpcmp.dumping.modes import Boundary
from dumpcmp.dumping.programs import dump
from dumpcmp.nouns.errors import SelectionError
from dumpcmp.taps.inductor.tables import ENDING, TWIN, own_code
from tests.choosing_cases import long


def evidence_of(**changed: str) -> certifying.Testimony:
    """A run's evidence, in which single digests are others."""
    usual = {
        "start": "s", "kernel": "k", "output": "o", "output_2": "p", "gradient": "g", "state": "w",
        "stdout": "t", "ending": "",
    }  # fmt: skip
    found = {**usual, **changed}
    kinds = [(name.partition("_")[0], name, digest) for name, digest in found.items()]
    return certifying.Testimony(
        tuple(finding for finding in kinds if finding[2] != "none"), num_codes=1
    )


# What differs under capture, what differs in a second run without it, and what is said.
CERTIFICATES: dict[str, tuple[dict[str, str], dict[str, str], bool, str]] = {
    "nothing": ({}, {}, True, "1 kernel, 2 outputs, 1 gradient, 1 tensor of the final state and"),
    "an output": ({"output": "x"}, {}, False, "output output is not what it is without dumpcmp"),
    "an output that varies": ({"output": "x"}, {"output": "y"}, True, "itself is not determin"),
    "one that varies, one that does not": (
        {"output": "x", "output_2": "z"}, {"output": "y"}, False, "output output_2 is not",
    ),
    "a kernel and its output": ({"kernel": "x", "output": "x"}, {}, False, "kernel kernel is not"),
    "another kernel": (
        {"kernel": "none", "kernel_2": "x"}, {}, False, "is not in the captured run, which has",
    ),
    "one kernel more": ({"kernel_2": "x"}, {}, False, "is not in the program's run without"),
    "the start": ({"start": "x", "output": "x"}, {}, False, "began with different numbers"),
    "the ending": ({"ending": "ValueError: 3"}, {}, False, "ended with ValueError: 3, and with no"),
    "the ending before anything ran": (
        {"start": "none", "output": "none", "ending": "ValueError: 3"}, {}, False, "ended with Val",
    ),
    "a start that was not come to": ({"start": "none"}, {}, False, "start start is not in the"),
    "stdout": ({"stdout": "x"}, {}, False, "stdout stdout is not what"),
    "stdout that varies": ({"stdout": "x"}, {"stdout": "y"}, True, "without 1 that differ"),
    "the state": ({"state": "x"}, {}, False, "state state is not"),
    "memory that nothing writes": ({"output": witness.UNWRITTEN}, {}, True, "1 output"),
    "every result by itself": (
        dict.fromkeys(("start", "output", "output_2", "gradient", "state"), "x"),
        dict.fromkeys(("start", "output", "output_2", "gradient", "state"), "y"),
        False, "the program itself is not deterministic",
    ),
    "an ending that varies": (
        {"ending": "ValueError: 3"}, {"ending": "ValueError: 4"}, False, "end differently",
    ),
    "all kernels, by themselves": ({"kernel": "x"}, {"kernel": "y"}, False, "have no kernel or"),
}  # fmt: skip


@pytest.mark.parametrize("name", CERTIFICATES)
def test_a_certificate_holds_only_for_what_a_run_without_dumpcmp_repeats(name: str) -> None:
    captured, again, holds, words = CERTIFICATES[name]
    stated = certificate(evidence_of(), evidence_of(**captured), evidence_of(**again))
    assert stated.holds is holds and words in stated.text
    assert stated.text.startswith("certified: " if holds else "not certified: ")


def test_a_run_that_leaves_no_evidence_certifies_nothing() -> None:
    nothing = certifying.Testimony()
    lost = certifying.Testimony(problem="the run without dumpcmp stopped with exit code 9: Killed")
    assert not certificate(lost, evidence_of(), None).holds
    assert not certificate(nothing, nothing, None).holds


def test_runs_inside_of_cuda_graphs_are_said_not_to_be_compared() -> None:
    alone, captured = evidence_of(), evidence_of(output="x", output_2="none")
    unseen = certifying.Testimony(captured.findings, captured.num_codes, is_repeated=False)
    stated = certificate(alone, unseen, None)
    assert stated.holds and "CUDA graphs replay was not compared" in stated.text
    assert "output" not in stated.compared


CODE = """# AOT ID: ['0_forward']
import torch
cpp_fused_add_0 = async_compile.cpp_pybinding(['const float*'], r'''
#include <torch/csrc/inductor/cpp_prefix.h>
#pragma omp parallel
void kernel() {}
''')
triton_poi_1 = async_compile.triton('triton_poi_1', '''
import triton
''', device_str='cuda')

def call(args):
    # Topologically Sorted Source Nodes: [y]
    cpp_fused_add_0(buf0)
{tap}    return (buf0, )
"""


def test_code_is_known_by_its_kernels_to_the_byte_and_by_how_it_calls_them() -> None:
    plain = CODE.replace("{tap}", "")
    tapped = CODE.replace("{tap}", "    _dumpcmp(0, buf0)\n") + ENDING + "\nmore"
    assert own_code(tapped) is not None and own_code(TWIN + plain) is None
    ours = own_code(tapped) or ""
    assert witness.kernels_of(ours) == witness.kernels_of(plain)
    assert [name for name, _ in witness.kernels_of(plain)] == ["cpp_fused_add_0", "triton_poi_1"]
    assert witness.calls_of(ours) == witness.calls_of(plain)
    assert witness.kind_of(plain) == "forward"
    other = plain.replace("#pragma omp parallel\n", "")
    assert witness.kernels_of(other)[0] != witness.kernels_of(plain)[0]
    assert witness.kernels_of(other)[1] == witness.kernels_of(plain)[1]
    swapped = plain.replace("cpp_fused_add_0(buf0)", "cpp_fused_add_0(buf1)")
    assert witness.calls_of(swapped) != witness.calls_of(plain)


DIGESTED: dict[str, Any] = {
    "float32": torch.tensor([1.0, -0.0]),
    "zeros of another sign": torch.tensor([1.0, 0.0]),
    "bfloat16": torch.tensor([1.0, -0.0], dtype=torch.bfloat16),
    "another shape": torch.tensor([[1.0], [-0.0]]),
    "sparse": torch.tensor([1.0, 0.0, 2.0]).to_sparse(),
    "empty": torch.empty(0),
    "complex": torch.tensor([1 + 2j]),
    "conjugate": torch.tensor([1 + 2j]).conj(),
    "a number": 3,
    "a text": "3",
}


def test_digests_tell_bits_kinds_and_shapes_apart() -> None:
    digests = {name: witness.digest_of(value) for name, value in DIGESTED.items()}
    assert len(set(digests.values())) == len(digests)
    strided = torch.tensor([[1.0, 9.0], [-0.0, 9.0]])[:, 0]
    assert witness.digest_of(strided) == digests["float32"]


def test_layers_that_have_the_same_code_are_told_apart() -> None:
    evidence = witness.WitnessNotes(compiled=True)
    layers = [ModuleType("layer"), ModuleType("layer")]
    for layer in layers:
        evidence.load("def call(args): ...", layer)
        evidence.run(vars(layer), [], [torch.ones(2)], ())
    evidence.run(vars(layers[0]), [], [torch.ones(2)], ())
    outputs = [label for kind, label, _ in evidence.findings if kind == witness.OUTPUT]
    wanted = ["run 0 of graph 0", "run 0 of graph 1", "run 1 of graph 0"]
    assert outputs == [f"output 0 of {run}" for run in wanted]


def encoder() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    mask = torch.tensor([[False, False, False], [False, False, True]])
    return nn.TransformerEncoder(layer, 2).eval(), torch.randn(2, 3, 16), mask


def test_the_witness_leaves_torch_on_its_fast_path() -> None:
    model, x, mask = encoder()
    with torch.no_grad():
        plain = model(x, src_key_padding_mask=mask)
        evidence = witness.WitnessNotes(compiled=False)
        with witness.alone(evidence):
            seen = model(x, src_key_padding_mask=mask)
    assert torch.equal(plain, seen) and not plain[1, 2].any()  # zeros: the slow path has none
    (found,) = [digest for kind, _, digest in evidence.findings if kind == witness.OUTPUT]
    assert found == witness.digest_of(plain)


def training() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    step = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        loss = model(torch.randn(3, 4)).square().sum()
        loss.backward()
        step.step()
    return model


def is_captured() -> bool:
    return capturing._active is not None


def prints(_: nn.Module) -> None:
    print(is_captured())


def changes_a_weight(model: nn.Module) -> None:
    model.get_parameter("2.weight").data.add_(is_captured())


def changes_a_result(model: nn.Module) -> None:
    model(torch.full((3, 4), float(is_captured())))


def raises(_: nn.Module) -> None:
    if is_captured():
        raise ValueError("seen")


# What a program does when it is looked at, and what is said of it then.
DISTURBED = {
    prints: "not certified: stdout",
    changes_a_weight: "state 2.weight of Sequential after call 1 is not",
    changes_a_result: "output call 2 of Sequential is not",
    raises: "ended with ValueError: seen, and with no error",
}


@pytest.mark.each_value_once
@pytest.mark.parametrize("disturb", DISTURBED)
@pytest.mark.parametrize("mode", ["eager", "aten"])
def test_a_program_that_does_something_else_when_looked_at_is_not_certified(
    disturb: Callable[[nn.Module], None], mode: str, tmp_path: Path
) -> None:
    done = dump(lambda: disturb(training()), tmp_path / "d", mode=mode, certify=True)
    assert done.certified is False and DISTURBED[disturb] in done.certificate


@pytest.mark.parametrize("mode", ["eager", "aten", "fx"])
def test_a_program_that_is_left_alone_is_certified(mode: str, tmp_path: Path) -> None:
    done = dump(training, tmp_path / "d", mode=mode, backward=True, certify=True)
    assert done.certified, done.certificate
    assert "2 outputs, 6 gradients, 9 tensors of the final state and stdout" in done.certificate


SCRIPT = """
import sys, time, torch
from torch import nn
torch.manual_seed(0)
print(nn.Linear(4, 2)(torch.randn(3, 4)).sum().item())
if len(sys.argv) > 1:
    print(time.time_ns())
"""


@pytest.mark.parametrize(
    "word, said", [long("", "state and stdout as"), ("x", "without 1 that diff")]
)
def test_a_command_is_held_against_the_same_command_alone(
    word: str, said: str, tmp_path: Path
) -> None:
    script = tmp_path / "program.py"
    script.write_text(SCRIPT)
    command = ["dump", "--certify", "--path", str(tmp_path / "d"), str(script), *word.split()]
    ran = CliRunner().invoke(main, command)
    assert ran.exit_code == 0 and said in ran.output, ran.output


def test_the_witness_imports_nothing_of_dumpcmp_nor_torch_before_the_program(
    tmp_path: Path,
) -> None:
    script, report = tmp_path / "program.py", tmp_path / "report.json"
    script.write_text(
        "import sys\n"
        "assert not [name for name in sys.modules if name.startswith(('torch', 'dumpcmp'))]\n"
        "assert sys.argv[1:] == ['--flag', 'x'] and __name__ == '__main__'\n"
        "print('ran')\n"
    )
    words = ["--report", str(report), "--kind", "script", str(script), "--flag", "x"]
    subprocess.run([sys.executable, witness.__file__, *words], check=True)
    found = {kind: digest for kind, _, digest in json.loads(report.read_text())["findings"]}
    assert found == {"stdout": witness.text_digest("ran\n"), "ending": ""}


def test_what_no_other_run_can_repeat_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SelectionError, match="boundary"):
        dump(encoder, tmp_path / "d", mode=Boundary("eager"), certify=True)
    with pytest.raises(SelectionError, match="another precision"):
        dump(encoder, tmp_path / "d", dtype="float64", certify=True)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SelectionError, match="single rank"):
        dump(encoder, tmp_path / "d", certify=True)
