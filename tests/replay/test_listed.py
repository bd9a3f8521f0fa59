"""An archive cannot make us run anything but listed functions on plain data."""

import json

import pytest
import torch
from torch import Tensor

import dumpcmp
from dumpcmp.nouns.key import Op
from dumpcmp.nouns.record import Call
from dumpcmp.replay.arguments import DEEPEST, LONGEST, read_arguments, slots_in
from dumpcmp.replay.listed import function_named
from dumpcmp.replay.running import rerun
from dumpcmp.replay.unreplayable import Unreplayable
from dumpcmp.taps.recording.calls import arguments_of

FOREIGN = """
    os.system builtins.eval builtins.exec subprocess.run torch.load torch.save torch.compile
    torch.hub.load torch.from_file aten.from_file.default torch.Tensor.numpy torch.Tensor.tofile
    torch.Tensor.__reduce_ex__ torch.Tensor.map_ torch.Tensor.apply_ torch.Tensor.set_
    torch.Tensor.__class__ torch.Tensor.register_hook torch.ops.load_library operator.attrgetter
    operator.methodcaller operator.call torch.nn.functional.torch torch._C._nn.__dict__
    torch.linalg.torch.load torch.os.system torch.Tensor.add.__globals__ torch.set_default_dtype
    aten.add.Tensor.extra aten.__class__ torch.manual_seed torch.jit.load dumpcmp.save
    torch.Tensor.data.__set__ torch.__builtins__ torch.sys torch.Tensor.__init__ torch.utils.data
""".split()  # noqa: SIM905


@pytest.mark.parametrize("target", ["", ".", "torch", "torch.", *FOREIGN])
def test_what_is_not_listed_is_refused(target: str) -> None:
    with pytest.raises(Unreplayable):
        function_named(target)


SAME_NAMES = [
    ("torch.Tensor.add_", "add"), ("operator.iadd", "add"), ("torch.Tensor.__rsub__", "sub"),
    ("aten.add_.Tensor", "add"), ("torch.Tensor.__getitem__", "getitem"), ("torch.spmm", "mm"),
    ("torch.Tensor.T.__get__", "T"), ("torch.special.expm1", "expm1"),
    ("torch.linalg.inv", "linalg_inv"),
    ("torch._C._nn.gelu", "gelu"), ("torch.Tensor.__matmul__", "matmul"),
    ("torch.ops.aten.mm.default", "mm"), ("aten.__and__.Tensor", "bitwise_and"),
]  # fmt: skip


@pytest.mark.parametrize("target, name", SAME_NAMES)
def test_a_function_has_one_name_however_it_was_reached(target: str, name: str) -> None:
    try:
        assert function_named(target).name == name
    except Unreplayable as error:  # special functions of another torch
        assert "not on the list" in str(error) and "special" in target


def test_arguments_come_back_as_they_were_written() -> None:
    given = torch.ones(2)
    args = (
        given,
        [1, (2.5, None)],
        slice(None, 3),
        ...,
        torch.float16,
        "mode",
        True,
        torch.Size([3]),
    )
    kwargs = {"alpha": float("inf"), "beta": 1 + 2j, "words": {"a": [given]}}
    found, text = arguments_of(args, kwargs, {})
    slots = dict(found)
    again = read_arguments(text, slots)
    assert (again.args, again.kwargs) == (args, kwargs)
    assert slots_in(text) == list(slots)


UNREADABLE = [
    "", "[]", "{}", '{"args":3}', '{"args":[{"object":"os.PathLike"}]}',
    '{"args":[{"dtype":"__class__"}]}', '{"args":[{"slot":"input.9"}]}', '{"args":[{"eval":"1"}]}',
    '{"args":[{"slice":[1]}]}', '{"args":[{"tuple":1}]}', '{"args":[{"a":1,"b":2}]}',
    '{"args":[],"kwargs":3}', '{"args":[],"autocast":{"cpu":"load"}}',
    '{"args":[' + "[" * (DEEPEST + 2) + "]" * (DEEPEST + 2) + "]}",
    '{"args":["' + "x" * LONGEST + '"]}', '{"args":[' + "[" * 100000,
]  # fmt: skip


@pytest.mark.parametrize("text", UNREADABLE, ids=range(len(UNREADABLE)))
def test_arguments_that_are_not_plain_are_refused(text: str) -> None:
    with pytest.raises(Unreplayable):
        read_arguments(text, {})


def test_a_custom_op_is_run_by_its_reference() -> None:
    call = Call("M", 0, Op("x/f"), 0, 0, target="replaytest.twice.default",
                arguments=json.dumps({"args": [{"slot": "input.0"}]}))  # fmt: skip
    given = {"input.0": torch.ones(3)}
    with pytest.raises(Unreplayable, match="without a reference"):
        rerun(call, given)

    @dumpcmp.reference("replaytest::twice")
    def twice(x: Tensor) -> Tensor:
        return 2 * x

    assert rerun(call, given).outputs["output.0"].tolist() == [2.0, 2.0, 2.0]
    with pytest.raises(dumpcmp.SelectionError):
        dumpcmp.reference("not a name")


@torch.library.custom_op("dumpcmp_tests::tripled", mutates_args=(), device_types="cpu")
def tripled(x: Tensor) -> Tensor:
    return x * 3


def test_an_op_is_vouched_for_by_its_own_kernel_only_where_another_ran() -> None:
    target = "dumpcmp_tests.tripled.default"
    with pytest.raises(Unreplayable, match="without a reference"):
        function_named(target, "cuda")
    dumpcmp.reference("dumpcmp_tests::tripled", own_kernel=True)
    found = function_named(target, "cuda").run(torch.ones(2, dtype=torch.float64))
    assert found.dtype is torch.float64 and found.tolist() == [3, 3]
    with pytest.raises(Unreplayable, match="without a reference"):
        function_named(target)


def test_the_product_and_sum_of_inductor_is_run_again() -> None:
    fma = function_named("prims.fma.default", "cpu")
    numbers = [torch.tensor([2.0, 3.0]), torch.tensor([5.0, 7.0]), torch.tensor([1.0, -1.0])]
    assert torch.equal(fma.run(*numbers), torch.tensor([11.0, 20.0]))
    with pytest.raises(Unreplayable, match="without a reference"):
        function_named("prims.inductor_seed.default", "cpu")
