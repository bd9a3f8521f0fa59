"""Checking a program while it runs: wrong kernels are named, sound ones are not."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn

import dumpcmp
from dumpcmp.checkup import check
from dumpcmp.cli import main
from dumpcmp.demo import build
from dumpcmp.faults import Fault, on_output, planted
from dumpcmp.nouns.row import Verdict


class Block(nn.Module):
    """A little of everything that a kernel may get wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(64)
        self.qkv = nn.Linear(64, 192)
        self.out = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        mixed += x
        mixed[:, 0] = 0
        return torch.cat([self.out(mixed), x], dim=-1).softmax(-1)


def block(dtype: torch.dtype) -> tuple[Block, Tensor]:
    torch.manual_seed(3)
    return Block().to(dtype), torch.randn(2, 16, 64).to(dtype)


DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_sound_model_is_the_same_and_undisturbed(dtype: torch.dtype) -> None:
    model, x = block(dtype)
    alone = model(x)
    state = torch.get_rng_state()
    with check(model) as checkup:
        checked = model(x)
    assert torch.equal(alone, checked) and torch.equal(state, torch.get_rng_state())
    assert checkup.passed and checkup.exit_code == 0, repr(checkup)
    assert checkup.tally[Verdict.PASS] >= 9 and not checkup.rows
    assert repr(checkup).startswith("SAME: every op that was checked")


def scaled(out: Tensor) -> None:
    out.mul_(1.02)


def one_row(out: Tensor) -> None:
    out[0, 3].mul_(1.1)


def reversed_rows(out: Tensor) -> None:
    out.copy_(out.flip(1))


FAULTS = [("qkv", "linear", scaled), ("", "scaled_dot_product_attention", one_row),
          ("norm", "layer_norm", scaled), ("", "cat", reversed_rows)]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("module, function, change", FAULTS, ids=[f[1] for f in FAULTS])
def test_a_wrong_kernel_is_named_alone(
    module: str, function: str, change: Callable[[Tensor], None], dtype: torch.dtype
) -> None:
    model, x = block(dtype)
    fault = Fault("wrong", module, function, on_output(change))
    with planted(model, fault), check(model) as checkup:
        model(x)
    assert [row.site.op for row in checkup.failures] == [fault.op]
    assert checkup.exit_code == 1 and checkup.headline.startswith(f"WRONG at {fault.op}")
    with pytest.raises(dumpcmp.VerificationError, match=fault.op):
        checkup.raise_for_status()


@torch.library.custom_op("dumpcmp_tests::double_silu", mutates_args=())
def double_silu(x: Tensor) -> Tensor:
    return 2.0 * nn.functional.silu(x) * (1 + 2**-5)


class Custom(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = torch.ops.dumpcmp_tests.double_silu(x)
        return found + 1


def test_a_custom_op_is_skipped_by_name_until_it_has_a_reference() -> None:
    with check() as checkup:
        Custom()(torch.randn(4, 64))
    assert checkup.tally[Verdict.SKIPPED] == 1 and checkup.passed
    assert "without a reference" in repr(checkup.rows)
    dumpcmp.reference("dumpcmp_tests::double_silu")(lambda x: 2 * nn.functional.silu(x))
    with check() as checkup:
        Custom()(torch.randn(4, 64))
    assert [row.site.op.function for row in checkup.failures] == ["double_silu"]


def test_what_is_selected_is_checked_and_nothing_else() -> None:
    model, inputs = build()
    with check(model, layers="layers.0.*") as some, torch.no_grad():
        model(*inputs)
    with check(model, every=10) as tenth, torch.no_grad():
        model(*inputs)
    with check(model) as everything, torch.no_grad():
        model(*inputs)
    assert 0 < some.tally.total < everything.tally.total
    assert tenth.tally.total == pytest.approx(everything.tally.total / 10, rel=0.25)


def test_nothing_checked_is_unknown() -> None:
    with check(nn.Identity()) as checkup:
        pass
    assert checkup.exit_code == 2 and checkup.headline.startswith("UNKNOWN")


PROGRAM = """
import torch
from dumpcmp.faults import Fault, on_output, planted
from tests.test_checkup import block, scaled
model, x = block(torch.float32)
if {broken}:
    with planted(model, Fault("wrong", "out", "linear", on_output(scaled))):
        model(x)
else:
    model(x)
if {raises}:
    raise ValueError("the program's own")
"""


@pytest.mark.parametrize("broken, raises, code, said", [
    (False, False, 0, "SAME"), (True, False, 1, "WRONG at out/linear"), (False, True, 2, "own"),
])  # fmt: skip
def test_the_command_answers_by_its_exit_code(
    broken: bool, raises: bool, code: int, said: str, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(broken=broken, raises=raises))
    result = CliRunner().invoke(main, ["check", str(program)])
    assert (result.exit_code, said in result.output) == (code, True), result.output
