"""Shortcuts in arithmetic: what TF32 rounds is wrong, unless it was declared."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import dumpcmp
from dumpcmp.faults import Fault, planted
from dumpcmp.nouns.arithmetic import activates_in_short, multiplies_in_parts, shortcuts_of
from dumpcmp.nouns.key import Op


def short(tensor: Tensor) -> Tensor:
    """`tensor` with the 10 bits behind the point that TF32 has."""
    return ((tensor.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def in_tf32(linear: object, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> Tensor:
    del linear, kwargs
    product: Tensor = short(args[0]).double() @ short(args[1].detach()).double().t()
    return product.float() + args[2]


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    room = tmp_path_factory.mktemp("tf32")
    torch.manual_seed(5)
    model, x = nn.Sequential(nn.Linear(256, 64), nn.ReLU()), torch.randn(16, 256)
    with torch.no_grad(), dumpcmp.capture(model, room / "golden"):
        model(x)
    fault = Fault("tf32", "0", "linear", in_tf32)
    with torch.no_grad(), planted(model, fault), dumpcmp.capture(model, room / "mine"):
        model(x)
    return room / "golden", room / "mine"


def test_what_tf32_rounds_is_wrong_unless_it_is_declared(dumps: tuple[Path, Path]) -> None:
    undeclared = dumpcmp.compare(*dumps)
    assert undeclared.headline.startswith("WRONG at 0/linear")
    declared = dumpcmp.compare(*dumps, allow="tf32")
    assert declared.conclusion is dumpcmp.Conclusion.SAME
    assert any("tf32" in remark for remark in declared.remarks)


def test_an_unknown_shortcut_is_refused(dumps: tuple[Path, Path]) -> None:
    with pytest.raises(dumpcmp.SelectionError, match="'tf23' is not known"):
        dumpcmp.compare(*dumps, allow=["tf23"])


def test_a_run_tells_what_it_had_leave_to_take(dumps: tuple[Path, Path]) -> None:
    (facts,) = dumpcmp.Archive(dumps[0]).run.values()
    assert "tf32" not in facts["run"]["shortcuts"] and "tf32-conv" in facts["run"]["shortcuts"]


def test_fused_attention_multiplies_in_parts_on_one_kind_of_device() -> None:
    op = Op("layers.0.attn/scaled_dot_product_attention")
    assert multiplies_in_parts(op, "float32", "cuda:0")
    assert not multiplies_in_parts(op, "float32", "cpu")
    assert not multiplies_in_parts(op, "bfloat16", "cuda:0")
    assert not multiplies_in_parts(Op("layers.0.attn/matmul"), "float32", "cuda:0")


@pytest.mark.parametrize(
    ("function", "word"),
    [
        ("conv2d", "tf32-conv"), ("aten.convolution", "tf32-conv"), ("lstm", "tf32-conv"),
        ("backward.aten.convolution_backward", "tf32-conv"), ("aten._cudnn_rnn", "tf32-conv"),
        ("linear", "tf32"), ("aten.addmm", "tf32"), ("backward.aten.mm", "tf32"),
        ("aten._grouped_mm", "tf32"), ("add", ""), ("aten.relu", ""),
        ("backward.aten.native_batch_norm_backward", ""),
    ],
)  # fmt: skip
def test_ops_take_shortcuts_under_whatever_name(function: str, word: str) -> None:
    assert shortcuts_of(Op(f"block/{function}"), "float32") == ({word} if word else set())


def test_recurrent_layers_are_less_precise_on_one_kind_of_device() -> None:
    for function in ("rnn_tanh", "lstm", "gru", "aten._cudnn_rnn"):
        assert activates_in_short(Op(f"r/{function}"), "float32", "cuda:1")
        assert not activates_in_short(Op(f"r/{function}"), "float32", "cpu")
        assert not activates_in_short(Op(f"r/{function}"), "float64", "cuda:0")
    assert not activates_in_short(Op("r/tanh"), "float32", "cuda:0")
