"""A graph.ckp, imitated: read back whole, and nothing in it is ever executed."""

import enum
import pickle
import sys
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from dumpcmp.nouns.row import Verdict
from dumpcmp.partitioning import PartitionError, verify_graph
from dumpcmp.partitioning.checkpoint import read_checkpoint

DIMOPS, CTEN = "nnscaler.graph.function.dimops", "nnscaler.ir.cten"
CLASSES = {
    DIMOPS: ["IRDimops", "OpAnno", "ShapeAnno", "DimAnno"],
    CTEN: ["IRObject"],
    "nnscaler.ir.tensor": ["IRFullTensor", "IRSubTensor"],
    "nnscaler.graph.graph": ["IRGraph"],
    "nnscaler.graph.segment": ["IRSegment"],
    "nnscaler.ir.operator": ["IRFwOperation"],
}


@pytest.fixture
def ir(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The classes that such a file names, for as long as it is being written."""
    made: dict[str, Any] = {}
    parents = {home.rsplit(".", i)[0] for home in CLASSES for i in (1, 2, 3)}
    for parent in sorted(parents):
        monkeypatch.setitem(sys.modules, parent, types.ModuleType(parent))
        sys.modules[parent].__path__ = []
    for home, names in CLASSES.items():
        module = types.ModuleType(home)
        monkeypatch.setitem(sys.modules, home, module)
        for name in names:
            made[name] = type(name, (), {"__module__": home, "__qualname__": name})
            setattr(module, name, made[name])
    ReduceType = enum.Enum("ReduceType", {"Dim": "", "Sum": "+", "Freeze": "^"})
    ReduceType.__module__, ReduceType.__qualname__ = DIMOPS, "DimAnno.ReduceType"
    made["DimAnno"].ReduceType = ReduceType
    made["ReduceType"] = ReduceType
    return types.SimpleNamespace(**made)


def build(cls: type[Any], **state: Any) -> Any:
    thing = cls()
    thing.__dict__.update(state)
    return thing


def tensor(ir: Any, shape: Any, dtype: Any = torch.float32) -> Any:
    full = build(ir.IRFullTensor, _shape=shape, _dtype=dtype, _requires_grad=True)
    return build(ir.IRSubTensor, _shape=shape, _full_tensor=full, name="t", _id=1)


def anno(ir: Any, text: Any) -> Any:
    def dim(word: Any) -> Any:
        names = word.strip("()").split("_") if word.startswith("(") else [word]
        marks = [ir.ReduceType(n[-1]) if n[-1] in "+^" else ir.ReduceType("") for n in names]
        bare = tuple(n.rstrip("+^") for n in names)
        return build(ir.DimAnno, _identifiers=bare, _reduces=tuple(marks))

    def shape(words: Any) -> Any:
        return build(ir.ShapeAnno, _dims=tuple(map(dim, words.split())))

    inputs, outputs = (tuple(map(shape, side.split(","))) for side in text.split("->"))
    return build(ir.OpAnno, _inputs=inputs, _outputs=outputs)


def op(
    ir: Any, name: Any, signature: Any, inputs: Any, outputs: Any, text: Any, **kwargs: Any
) -> Any:
    return build(
        ir.IRDimops,
        name=name,
        _id=len(name),
        signature=signature,
        _inputs=inputs,
        _outputs=outputs,
        _kwargs=kwargs,
        _anno=anno(ir, text),
        _comment='File "/home/user/model.py", line 31, in forward',
    )


def write(ir: Any, path: Any, *extra: Any) -> None:
    size = build(ir.IRObject, name="size", _value=(-1, 8), _id=5)
    nodes = [
        op(ir, "linear", "torch.nn.functional.linear",
           [tensor(ir, (4, 6)), tensor(ir, (8, 6)), None], [tensor(ir, (4, 8))],
           "n k+, m k+, ? -> n m"),
        build(ir.IRSegment, name="segment", signature="segment", _nodes=[
            op(ir, "conv", "torch.conv2d",
               [tensor(ir, (2, 8, 5, 5)), tensor(ir, (6, 4, 3, 3)), None],
               [tensor(ir, (2, 6, 3, 3))], "n (g_4) 5 5, (g_3) 4 3 3, ? -> n (g_3) 3 3", groups=2),
        ]),
        op(ir, "view", "torch.Tensor.view", [tensor(ir, (2, 3, 8))], [tensor(ir, (6, 8))],
           "(a) b c -> (a_b) c", size=size),
        op(ir, "mm", "torch.addmm", [tensor(ir, (4, 6)), tensor(ir, (4, 8)), tensor(ir, (8, 6))],
           [tensor(ir, (4, 6))], "a b, a k+, k+ b -> a b"),
        op(ir, "again", "torch.nn.functional.linear",
           [tensor(ir, (4, 6)), tensor(ir, (8, 6)), None], [tensor(ir, (4, 8))],
           "n k+, m k+, ? -> n m"),
        build(ir.IRFwOperation, name="plain", signature="operator.add", _inputs=[1], _outputs=[]),
        *extra,
    ]  # fmt: skip
    path.write_bytes(pickle.dumps(((1, 2, 3), build(ir.IRGraph, _nodes=nodes)), protocol=4))


def test_a_graph_is_read_without_its_classes(
    ir: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "graph.ckp"
    write(ir, path)
    for home in CLASSES:
        monkeypatch.delitem(sys.modules, home)
    nodes = read_checkpoint(path)
    assert [node.call.fsig for node in nodes] == [
        "torch.nn.functional.linear", "torch.conv2d", "torch.Tensor.view", "torch.addmm",
        "torch.nn.functional.linear", "operator.add",
    ]  # fmt: skip
    assert nodes[0].anno == "n k+, m k+, ? -> n m"
    assert nodes[1].anno == "n (g 4) 5 5, (g 3) 4 3 3, ? -> n (g 3) 3 3"
    assert nodes[2].call.kwargs == {"size": (-1, 8)}
    assert [arg.shape for arg in nodes[3].call.args] == [(4, 6), (4, 8), (8, 6)]
    assert nodes[0].source == "model.py:31"
    assert nodes[5].reason


def test_its_annotations_are_verified_as_they_stand(ir: Any, tmp_path: Path) -> None:
    path = tmp_path / "graph.ckp"
    write(ir, path)
    found = verify_graph(path, tmp_path / "out")
    wrong = [(row.op, row.rule) for row in found.rows if row.verdict is Verdict.FAIL]
    assert wrong == [("torch.addmm", "whole, split 1, split 0 -> sum")]
    assert {row.verdict for row in found.rows} == {Verdict.PASS, Verdict.FAIL, Verdict.SKIPPED}
    assert found.rows[0].node == "linear6 again5"
    assert found.exit_code == 1


@dataclass(frozen=True)
class Dilled:
    """What dill writes for an object: a call of one of its own functions, and perhaps a state."""

    function: Any
    args: tuple[Any, ...]
    state: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        made = self.function, self.args
        return made if self.state is None else (*made, self.state)

    def __call__(self) -> None:
        """pickle takes functions alone."""


@pytest.fixture
def dill(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The functions of dill that such a file names."""
    monkeypatch.setitem(sys.modules, "dill", types.ModuleType("dill"))
    module = types.ModuleType("dill._dill")
    monkeypatch.setitem(sys.modules, "dill._dill", module)
    for name in ("_load_type", "_eval_repr", "_create_ftype"):
        function = types.FunctionType((lambda: None).__code__, {}, name)
        function.__module__, function.__qualname__ = "dill._dill", name
        setattr(module, name, function)
    return module


def kind(dill: Any, name: str) -> Dilled:
    return Dilled(dill._load_type, (name,))


def given_to(ir: Any, tmp_path: Path, *values: Any) -> list[Any]:
    """The arguments of an op that `values` become, in a file and read back."""
    path = tmp_path / "graph.ckp"
    write(ir, path, op(
        ir, "odd", "torch.nn.functional.relu", [tensor(ir, (4, 6)), *values], [], "a b -> a b"
    ))  # fmt: skip
    node = read_checkpoint(path)[-1]
    assert not node.reason
    return list(node.call.args[1:])


def test_what_dill_wraps_is_read_and_nothing_of_it_is_run(
    ir: Any, dill: Any, tmp_path: Path
) -> None:
    known = Dilled(kind(dill, "slice"), (build(ir.IRObject, _value=0), 9, None))
    gelu = Dilled(kind(dill, "PartialType"), (torch.nn.functional.relu,),
                  (torch.nn.functional.relu, (), {"inplace": False}, None))  # fmt: skip
    made = Dilled(dill._create_ftype, (kind(dill, "PartialType"), torch.nn.functional.relu, (), {}))
    *plain, one, two = given_to(
        ir, tmp_path, known, Dilled(dill._eval_repr, ("Ellipsis",)),
        Dilled(dill._eval_repr, ("range(0, 9, -3)",)), Dilled(kind(dill, "complex"), (1.0, 2.0)),
        kind(dill, "int"), torch.bfloat16, torch.strided, torch.nn.functional.relu, gelu, made,
    )  # fmt: skip
    assert plain == [
        slice(0, 9, None), ..., range(0, 9, -3), 1 + 2j, int, torch.bfloat16, torch.strided,
        torch.nn.functional.relu,
    ]  # fmt: skip
    assert (one.func, one.keywords) == (torch.nn.functional.relu, {"inplace": False})
    assert (two.func, two.args, two.keywords) == (torch.nn.functional.relu, (), {})


@pytest.mark.parametrize(
    "text", ["print('run')", "__import__('os')", "range(9, 9, 9, 9)", "9" * 99]
)
def test_no_other_expression_is_read(ir: Any, dill: Any, tmp_path: Path, text: str) -> None:
    path = tmp_path / "graph.ckp"
    write(ir, path, op(
        ir, "odd", "torch.relu", [tensor(ir, (4,)), Dilled(dill._eval_repr, (text,))], [], "a -> a"
    ))  # fmt: skip
    assert "dill.an expression" in read_checkpoint(path)[-1].reason


@pytest.mark.parametrize("size", [2_000_000, 10**17])
def test_a_range_is_not_copied_into_a_set(ir: Any, dill: Any, tmp_path: Path, size: int) -> None:
    path = tmp_path / "graph.ckp"
    listed = Dilled(kind(dill, "set"), (Dilled(dill._eval_repr, (f"range(0, {size})",)),))
    write(ir, path, op(ir, "odd", "torch.relu", [tensor(ir, (4,)), listed], [], "a -> a"))
    with pytest.raises(PartitionError, match="copy too much"):
        read_checkpoint(path)


def test_a_fullslice_that_dill_wrote_is_verified_and_none_is_left(
    ir: Any, dill: Any, tmp_path: Path
) -> None:
    path = tmp_path / "graph.ckp"
    size = build(ir.IRObject, name="size_9388", _value=9, _id=5)
    whole = Dilled(kind(dill, "slice"), (None, None, None))
    cut = Dilled(kind(dill, "slice"), (None, size, None))
    given = [tensor(ir, (2, 16, 16)), whole, cut, cut]
    signature = "nnscaler.runtime.function.fullslice"
    node = op(ir, "cut", signature, given, [], "a b^ c^, ?, ?, ? -> a 9 9")
    nodes = [node]
    path.write_bytes(pickle.dumps(((1,), build(ir.IRGraph, _nodes=nodes)), protocol=4))
    found = verify_graph(path, tmp_path / "out")
    assert (found.exit_code, found.num_unverified) == (0, 0)
    odd = op(ir, "odd", "nobody.knows.this", [tensor(ir, (4,))], [], "a -> a")
    path.write_bytes(pickle.dumps(((1,), build(ir.IRGraph, _nodes=[node, odd])), protocol=4))
    told = [verify_graph(path, tmp_path / "out", partial=known) for known in (False, True)]
    assert [each.exit_code for each in told] == [2, 0]
    assert "1 node was not verified" in told[0].headline


class Hostile:
    """Runs a command when it is unpickled in the usual way."""

    def __init__(self, path: Any) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        import os

        return os.system, (f"touch {self.path}",)


def test_a_hostile_pickle_executes_nothing(ir: Any, tmp_path: Path) -> None:
    touched, path = tmp_path / "touched", tmp_path / "graph.ckp"
    bad = build(ir.IRFwOperation, name="bad", signature="os.system", _inputs=[Hostile(touched)])
    bad._anno = anno(ir, "a -> a")
    call = op(ir, "call", "os.system", [tensor(ir, (2, 2))], [], "a b -> a b")
    call._kwargs = {"command": f"touch {touched}"}
    unknown = op(ir, "unknown", "this.main", [tensor(ir, (2, 2))], [], "a b -> a b")
    write(ir, path, call, bad, unknown)
    found = verify_graph(path, tmp_path / "out")
    reasons = [row.reason for row in found.rows if row.op == "os.system"]
    assert "not a function that we know" in reasons[0]
    assert "was a posix.system" in reasons[1]
    assert not touched.exists()
    assert "this" not in sys.modules  # not even imported
    pickle.loads(pickle.dumps(Hostile(touched)))  # noqa: S301 - the usual way does run it
    assert touched.exists()


@pytest.mark.parametrize("content", [b"", b"not a pickle", pickle.dumps(3), pickle.dumps((1, 2))])
def test_what_is_no_graph_says_so(content: Any, tmp_path: Path) -> None:
    path = tmp_path / "graph.ckp"
    path.write_bytes(content)
    with pytest.raises(PartitionError, match="graph"):
        read_checkpoint(path)


REAL = Path(__file__).parent / "data" / "nnscaler_linear_relu.ckp"


def test_a_graph_that_nnscaler_wrote_verifies_whole(tmp_path: Path) -> None:
    nodes = read_checkpoint(REAL)
    assert [(node.node, node.call.fsig, node.anno) for node in nodes] == [
        ("linear1", "torch.nn.functional.linear", "a k^, n k^, n -> a n"),
        ("relu2", "torch.relu", ""),
        ("backward4", "torch.autograd.grad", ""),
        ("backward5", "torch.autograd.grad", ""),
    ]
    assert nodes[0].source == "minmod.py:5"
    found = verify_graph(REAL, tmp_path)
    assert found.num_annotated == found.num_compute == 2
    assert [(row.op, row.rule) for row in found.rows if row.verdict is Verdict.PASS] == [
        ("torch.nn.functional.linear", "single"),
        ("torch.nn.functional.linear", "split 0, whole, whole -> split 0"),
        ("torch.nn.functional.linear", "whole, split 0, split 0 -> split 1"),
        ("torch.relu", "single"),
        ("torch.relu", "split 0 -> split 0"),
        ("torch.relu", "split 1 -> split 1"),
    ]
    assert {row.op for row in found.rows if row.verdict is not Verdict.PASS} == {
        "torch.autograd.grad"
    }


def doubled(times: int) -> Any:
    """A tuple of two of itself, `times` deep: small to write, endless to walk."""
    nested: Any = ()
    for _ in range(times):
        nested = (nested, nested)
    return nested


def circle() -> Any:
    endless: list[Any] = []
    endless.append(endless)
    return endless


@pytest.mark.parametrize("nested", [doubled(60), circle(), [[[doubled(60)]]]])
def test_an_argument_without_end_is_said(nested: Any, ir: Any, tmp_path: Path) -> None:
    path = tmp_path / "graph.ckp"
    write(ir, path, op(ir, "deep", "torch.relu", [tensor(ir, (2, 2)), nested], [], "a b -> a b"))
    assert read_checkpoint(path)[-1].reason == (
        "cannot read an argument that is nested without end"
    )


def test_texts_without_end_are_not_spoken(ir: Any, tmp_path: Path) -> None:
    path = tmp_path / "graph.ckp"
    cell = op(ir, "deep", doubled(60), [tensor(ir, (2, 2))], [], "a b -> a b")
    cell._comment = cell._id = doubled(60)
    write(ir, path, cell)
    assert read_checkpoint(path)[-1].node == "deep"


def as_keys(nested: Any) -> list[bytes]:
    """Pickles that hash `nested`: as a key, in a set, in what a call makes."""
    wrapped = pickle.dumps(nested, protocol=4)[2:-1]  # without its protocol and its end
    wrapped = wrapped[9:] if wrapped[:1] == pickle.FRAME else wrapped
    start = pickle.PROTO + b"\x04"
    called = pickle.GLOBAL + b"builtins\nset\n" + pickle.MARK + wrapped
    return [
        start + pickle.EMPTY_DICT + wrapped + pickle.NONE + pickle.SETITEM + pickle.STOP,
        start + pickle.EMPTY_SET + pickle.MARK + wrapped + pickle.ADDITEMS + pickle.STOP,
        start + pickle.MARK + wrapped + pickle.FROZENSET + pickle.STOP,
        start + called + pickle.LIST + pickle.TUPLE1 + pickle.REDUCE + pickle.STOP,
        start + pickle.MARK + wrapped + pickle.NONE + pickle.DICT + pickle.STOP,
    ]


@pytest.mark.parametrize("content", as_keys(doubled(60)) + as_keys(1 << 4000))
def test_keys_that_take_long_are_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "graph.ckp"
    path.write_bytes(content)
    with pytest.raises(PartitionError, match="key in the graph is too large"):
        read_checkpoint(path)


def test_segments_that_hold_each_other_are_refused(ir: Any, tmp_path: Path) -> None:
    path = tmp_path / "graph.ckp"
    around = build(ir.IRSegment, name="segment", signature="segment", _nodes=[])
    around._nodes += [around, around]
    doubled = build(ir.IRSegment, name="segment", signature="segment", _nodes=[])
    for _ in range(30):
        nodes = [doubled, doubled]
        doubled = build(ir.IRSegment, name="segment", signature="segment", _nodes=nodes)
    for segment in (around, doubled):
        write(ir, path, segment)
        with pytest.raises(PartitionError, match="hold each other"):
            read_checkpoint(path)


def test_copies_of_copies_are_refused(tmp_path: Path) -> None:
    path, many = tmp_path / "graph.ckp", pickle.dumps([0] * 500_000, protocol=2)[2:-1]
    call = pickle.GLOBAL + b"builtins\nlist\n" + pickle.BINGET + b"\x00"
    copies = (call + pickle.TUPLE1 + pickle.REDUCE + pickle.POP) * 9
    path.write_bytes(pickle.PROTO + b"\x02" + many + copies + pickle.STOP)
    with pytest.raises(PartitionError, match="copy too much"):
        read_checkpoint(path)


def test_functions_of_nnscaler_and_operators_are_known(ir: Any, tmp_path: Path) -> None:
    path, runtime = tmp_path / "graph.ckp", "nnscaler.runtime.function"
    x, wide, ids = tensor(ir, (4, 6)), tensor(ir, (8, 6)), tensor(ir, (4,), torch.int64)
    one, row = tensor(ir, (6,)), [tensor(ir, (4, 6))]
    extra = [
        op(ir, "embedding", f"{runtime}.embedding", [ids, wide], row, "n, v+ d -> n d",
           padding_idx=None, start=0, stop=8),
        op(ir, "norm", f"{runtime}.layer_norm", [x, one, one], row, "n h^, h^, h^ -> n h^",
           normalized_shape=[6], eps=1e-5),
        op(ir, "gelu", "torch.nn.functional.gelu", [x], row, "a b -> a b", approximate="none"),
        op(ir, "attention", "torch.nn.functional.scaled_dot_product_attention",
           [tensor(ir, (2, 3, 4, 6))] * 3, [tensor(ir, (2, 3, 4, 6))],
           "a b c^ d^, a b c^ d^, a b c^ d^ -> a b c^ d^"),
        op(ir, "softmax", "torch.softmax", [x], row, "a b^ -> a b^", dim=-1, _stacklevel=3,
           dtype=None),
        op(ir, "power", "_operator.pow", [x, 2], row, "a b, ? -> a b"),
        op(ir, "minus", "_operator.sub", [1, x], row, "?, a b -> a b"),
        op(ir, "slice", f"{runtime}.fullslice", [x, slice(None), slice(0, 3, None)],
           [tensor(ir, (4, 3))], "a 6, ?, ? -> a 3"),
        op(ir, "item", "_operator.getitem", [x, (slice(None), slice(0, 3))],
           [tensor(ir, (4, 3))], "a 6, ? -> a 3"),
        op(ir, "copies", f"{runtime}.multiref", [x], row * 2, "a b -> a b, a b", times=2),
        op(ir, "sum", f"{runtime}.accum", [x, x], row, "a b, a b -> a b"),
        op(ir, "cat", f"{runtime}.cat", [x, x], [tensor(ir, (8, 6))], "4 b, 4 b -> 8 b", dim=0),
    ]  # fmt: skip
    write(ir, path, *extra)
    found = verify_graph(path, tmp_path / "out")
    names = {cell.name for cell in extra}
    rows = [row for row in found.rows if row.node.rstrip("0123456789") in names]
    assert [str(row) for row in rows if row.verdict is not Verdict.PASS] == []
    assert {row.node.rstrip("0123456789") for row in rows if row.idx is not None} == names


def test_a_chain_of_attributes_is_not_called(ir: Any, tmp_path: Path) -> None:
    path = tmp_path / "graph.ckp"
    chain = "aten.relu.default.__class__.__init__"
    write(ir, path, op(ir, "chain", chain, [tensor(ir, (2, 2))], [], "a b -> a b"))
    assert "is not a function that we know" in read_checkpoint(path)[-1].reason


def decoder(ir: Any) -> list[Any]:
    """The ops of a decoder layer in nnScaler's words: ids to logits, with a mask that is sliced."""
    ids, hidden = tensor(ir, (2, 6), torch.int64), (2, 6, 16)
    heads, scores = (2, 4, 6, 4), (2, 4, 6, 6)

    def t(*shape: int) -> Any:
        return tensor(ir, shape)

    upto = slice(None, build(ir.IRObject, name="size", _value=6, _id=9), None)
    return [
        op(ir, "embedding", "nnscaler.runtime.function.embedding", [ids, t(32, 16)],
           [t(*hidden)], "a b, n+ e -> a b e", padding_idx=None, start=0, stop=32),
        op(ir, "layer_norm", "nnscaler.runtime.function.layer_norm",
           [t(*hidden), t(16), t(16)], [t(*hidden)], "a b 16, 16, 16 -> a b 16",
           normalized_shape=(16,), eps=1e-5),
        op(ir, "linear", "torch.nn.functional.linear", [t(*hidden), t(16, 16), t(16)],
           [t(*hidden)], "a b k^, n k^, n -> a b n"),
        op(ir, "view", "torch.Tensor.view", [t(*hidden)], [t(2, 6, 4, 4)],
           "a b (c_4) -> a b c 4", size=(2, 6, 4, 4)),
        op(ir, "transpose", "torch.transpose", [t(2, 6, 4, 4)], [t(*heads)],
           "a b c d -> a c b d", dim0=1, dim1=2),
        op(ir, "matmul", "torch.matmul", [t(*heads), t(2, 4, 4, 6)], [t(*scores)],
           "a b m k+, a b k+ n -> a b m n"),
        op(ir, "truediv", "_operator.truediv", [t(*scores), 2.0], [t(*scores)],
           "a b c d, ? -> a b c d"),
        op(ir, "fullslice", "nnscaler.runtime.function.fullslice",
           [t(1, 1, 8, 8), slice(None), slice(None), upto, upto], [t(1, 1, 6, 6)],
           "a b c^ d^, ?, ?, ?, ? -> a b 6 6"),
        op(ir, "add", "_operator.add", [t(*scores), t(1, 1, 6, 6)], [t(*scores)],
           "a b c d, 1 1 c d -> a b c d"),
        op(ir, "softmax", "torch.softmax", [t(*scores)], [t(*scores)],
           "a b c d^ -> a b c d^", dim=-1, _stacklevel=3, dtype=None),
        op(ir, "functional_softmax", "torch.nn.functional.softmax", [t(*scores)], [t(*scores)],
           "a b c d^ -> a b c d^", dim=-1, _stacklevel=3, dtype=None),
        op(ir, "attention", "torch.nn.functional.scaled_dot_product_attention",
           [t(*heads), t(*heads), t(*heads)], [t(*heads)],
           "a b c^ d^, a b c^ d^, a b c^ d^ -> a b c^ d^", is_causal=True),
        op(ir, "gelu", "torch.nn.functional.gelu", [t(*hidden)], [t(*hidden)],
           "a b c -> a b c", approximate="none"),
        op(ir, "pow", "torch.pow", [t(*hidden), 2], [t(*hidden)], "a b c, ? -> a b c"),
        op(ir, "multiref", "nnscaler.runtime.function.multiref", [t(*hidden)],
           [t(*hidden), t(*hidden)], "a b c -> a b c, a b c", times=2),
        op(ir, "cat", "nnscaler.runtime.function.cat", [t(*hidden), t(*hidden)], [t(2, 6, 32)],
           "a b c^, a b c^ -> a b 32", dim=-1),
        op(ir, "getitem", "_operator.getitem", [t(*hidden), (slice(None), slice(0, 3))],
           [t(2, 3, 16)], "a b^ c, ? -> a 3 c"),
    ]  # fmt: skip


def test_the_ops_of_a_decoder_verify_whole(ir: Any, tmp_path: Path) -> None:
    path = tmp_path / "graph.ckp"
    graph = build(ir.IRGraph, _nodes=decoder(ir))
    path.write_bytes(pickle.dumps(((1, 2, 3), graph), protocol=4))
    found = verify_graph(path, tmp_path / "out")
    assert [str(row) for row in found.rows if row.verdict is not Verdict.PASS] == []
    assert found.num_annotated == found.num_compute == 17
    assert {row.node.rstrip("0123456789") for row in found.rows if row.idx is not None} == {
        node.name
        for node in decoder(ir)
        if node.name != "fullslice"  # of length 1 but there
    }
