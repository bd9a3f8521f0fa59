"""From text to functions: only imports are carried out, and nothing else runs."""

import sys
from typing import Any

import pytest
import torch

from dumpcmp.partitioning.call import OpCall, shape_of
from dumpcmp.partitioning.configuration import PartitionError, TensorInfo
from dumpcmp.partitioning.inputs import make_tensor
from dumpcmp.partitioning.rules.ruling import (
    COUNT,
    MASK,
    POSITIVE,
    UNIT,
    DimKind,
    Domain,
    NoRule,
    ids,
)
from dumpcmp.partitioning.signature import folded, function_of, imported
from dumpcmp.partitioning.table import entry_for
from tests.partitioning.cases import EMBEDDING


@pytest.mark.parametrize(
    "text, names",
    [
        ("", []),
        ("from torch.nn.functional import conv2d", ["conv2d"]),
        ("import torch.nn.functional as F\nfrom torch import addmm as am, mm", ["F", "am", "mm"]),
        ("import torch.nn.functional", ["torch"]),
    ],
)
def test_imports_bind_names(text: Any, names: Any) -> None:
    assert list(imported(text)) == names


HOSTILE = [
    "import os; os.environ.update(TOUCHED='1')",
    "__import__('os').environ.update(TOUCHED='1')",
    "from torch import mm\nprint('hello')",
    "def f(): pass",
    "x = 1",
    "from . import something",
    "if True:\n    import os",
    "this is not python",
    "import a_module_that_is_not_there",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_anything_but_an_import_is_refused_and_not_executed(
    text: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TOUCHED", raising=False)
    with pytest.raises(PartitionError):
        imported(text)
    import os

    assert "TOUCHED" not in os.environ


def test_nothing_is_imported_before_all_statements_are_read() -> None:
    with pytest.raises(PartitionError):
        imported("import this\nx = 1")
    assert "this" not in sys.modules


FUNCTIONS = [
    ("torch.conv2d", "", torch.conv2d),
    ("torch.Tensor.view", "", torch.Tensor.view),
    ("torch.nn.functional.dropout", "", torch.nn.functional.dropout),
    ("torch.ops.aten.add.Tensor", "", torch.ops.aten.add.Tensor),
    ("aten.add.Tensor", "", torch.ops.aten.add.Tensor),
    ("mine", "from torch import mm as mine", torch.mm),
    ("F.relu", "import torch.nn.functional as F", torch.nn.functional.relu),
]


@pytest.mark.parametrize("fsig, imports, run", FUNCTIONS)
def test_signatures_name_functions(fsig: Any, imports: Any, run: Any) -> None:
    assert function_of(OpCall(fsig, imports=imports)).run == run


@pytest.mark.parametrize("fsig", ["torch.no_such_function", "nowhere.at.all", "torch.pi"])
def test_what_is_no_function_is_refused(fsig: Any) -> None:
    with pytest.raises(PartitionError, match=fsig):
        function_of(OpCall(fsig))


def test_parameters_have_names() -> None:
    x, ints = shape_of((4, 8), torch.float32), shape_of((4, 8), torch.int64)
    scatter = OpCall("torch.scatter", (x, 1, ints, x))
    assert function_of(scatter).parameters == ("self", "dim", "index", "src")
    assert function_of(OpCall(EMBEDDING)).parameters[-2:] == ("start", "stop")
    assert folded(OpCall("torch.Tensor.view", (x, 8, 4))).args == (x, [8, 4])


SHUFFLED = Domain(DimKind.PERMUTATION, 30)
DOMAINS = [
    (MASK, torch.float32, lambda t: t.dtype is torch.bool and bool(t[..., 0].all())),
    (COUNT, torch.float32, lambda t: t.dtype is torch.int64 and not t.any()),
    (ids(7), torch.float32, lambda t: t.dtype is torch.int64 and int(t.max()) < 7),
    (ids(7), torch.int32, lambda t: t.dtype is torch.int32 and int(t.max()) < 7),
    (POSITIVE, torch.float32, lambda t: bool((t > 0).all())),
    (POSITIVE, torch.int64, lambda t: bool((t > 0).all())),
    (UNIT, torch.float32, lambda t: bool((t.abs() < 1).all()) and bool((t < 0).any())),
    (SHUFFLED, torch.int64, lambda t: all(len(set(r)) == 16 for r in t.tolist())),
    (Domain(DimKind.NORMAL), torch.bfloat16, lambda t: t.dtype is torch.bfloat16),
    (Domain(DimKind.NORMAL), torch.bool, lambda t: t.dtype is torch.bool),
    (Domain(DimKind.NORMAL), torch.complex64, lambda t: t.dtype is torch.complex64),
]  # fmt: skip


@pytest.mark.parametrize("domain, dtype, holds", DOMAINS)
def test_inputs_are_valid_and_seeded(domain: Any, dtype: Any, holds: Any) -> None:
    wanted = TensorInfo("shape", (8, 16), dtype=dtype)
    one, same, other = (make_tensor(wanted, domain, seed) for seed in (3, 3, 4))
    assert holds(one)
    assert torch.equal(one, same)
    assert domain is COUNT or not torch.equal(one, other)


@pytest.mark.parametrize(
    "fsig",
    [
        "aten.relu.default.__call__",
        "aten.relu.default._op.__self__",
        "aten.relu._qualified_op_name",
        "aten.relu.op",
        "aten.__class__",
        "torch.ops.aten.relu.decompose.__func__",
        "torch.ops.load_library",
    ],
)
def test_only_overloads_are_looked_up(fsig: str) -> None:
    with pytest.raises((PartitionError, NoRule)):
        entry_for(OpCall(fsig, (TensorInfo("shape", (2, 2)),)))
    with pytest.raises(PartitionError):
        function_of(OpCall(fsig, (TensorInfo("shape", (2, 2)),)))
