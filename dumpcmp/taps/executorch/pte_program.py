"""Reads a ``.pte``: the instructions of its method, the values that they name, and constants.

The reader is ExecuTorch's own, which has the file's flatbuffer written out as JSON. No code of the
file runs here; ExecuTorch itself, and the delegates that it calls, run it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dumpcmp.nouns.errors import CaptureError, ProgramFileError
from dumpcmp.pytorch.plain_files import read_plain
from dumpcmp.taps.exported.bound_inputs import ModelInput

INSTALL = "pip install executorch"
_MOST_BYTES = 4 << 30
_METHOD = "forward"
# Copies that ExecuTorch makes of tensors in another order of dims -> the op that they stand for.
_COPIES = {"_clone_dim_order": "clone", "_to_dim_order_copy": "_to_copy"}
_LOST = ("dim_order",)


def check_executorch() -> None:
    """Refuse where ExecuTorch is not installed."""
    try:
        found = importlib.util.find_spec("executorch.devtools") is not None
    except ModuleNotFoundError:
        found = False
    if not found:
        raise CaptureError("--mode executorch needs executorch", hint=INSTALL)


@dataclass(frozen=True, slots=True)
class PteCall:
    """A call of a kernel, or of a delegate: which values it takes and gives, by their numbers."""

    name: str  # "aten.addmm", "executorch.XnnpackBackend"
    target: str  # "aten.addmm.out"
    args: tuple[Any, ...]  # numbers of values
    kwargs: dict[str, int]
    outputs: tuple[int, ...]
    logged: tuple[int, ...]  # the tensors that ExecuTorch logs of it, in order


@dataclass(frozen=True, slots=True)
class PteJump:
    """Goes on at another instruction where a value is false."""

    condition: int
    target: int


@dataclass(frozen=True, slots=True)
class PteMove:
    """Has a value be another one."""

    source: int
    target: int


PteInstruction = PteCall | PteJump | PteMove | None  # None: memory is freed


@dataclass(frozen=True, slots=True)
class PteProgram:
    """The method ``forward`` of a file."""

    content: bytes
    instructions: Sequence[PteInstruction]
    values: Sequence[Any]  # tensors as descriptions, the rest as they are
    constants: dict[int, Tensor]
    names: dict[int, str]  # of constants, where the file tells them
    inputs: Sequence[int]
    outputs: Sequence[int]
    keeps_state: bool  # what a call leaves behind is what the next begins with

    @property
    def num_calls(self) -> int:
        return sum(isinstance(each, PteCall) for each in self.instructions)

    def model_inputs(self) -> Iterator[ModelInput]:
        """The inputs, as tensors are to be given for them."""
        for at, number in enumerate(self.inputs):
            value = self.values[number]
            if not is_tensor(value):
                yield ModelInput(f"input_{at}", "", (), type(value).__name__.lower())
                continue
            is_free = int(value.shape_dynamism) != 0
            sizes = [None] * len(value.sizes) if is_free else list(value.sizes)
            yield ModelInput(f"input_{at}", dtype_name(value.scalar_type), sizes)

    def nbytes_logged(self) -> int:
        """No fewer bytes than ExecuTorch logs of one run: it ends the process where they run out.

        A loop may run often; it has room for so many iterations.
        """
        goes_back = any(
            isinstance(each, PteJump) and each.target <= at
            for at, each in enumerate(self.instructions)
        )
        calls = (each for each in self.instructions if isinstance(each, PteCall))
        once = sum(self._nbytes(number) for call in calls for number in call.logged)
        once += sum(self._nbytes(number) for number in (*self.inputs, *self.outputs))
        return (once + (1 << 16)) * (_LOOPS if goes_back else 1)

    def _nbytes(self, number: int) -> int:
        value, count = self.values[number], 1
        if not is_tensor(value):
            return _ALIGNED
        for size in value.sizes:
            count *= size
        return count * dtype_of_scalar(value.scalar_type).itemsize + _ALIGNED


_ALIGNED = 256  # bytes beside each value
_LOOPS = 64


def read_pte(path: Path) -> PteProgram:
    """The program at `path`."""
    content = read_plain(path, _MOST_BYTES)
    try:
        from executorch.exir._serialize._program import deserialize_pte_binary

        read = deserialize_pte_binary(content)
        program = getattr(read, "program", read)
        plan = next(each for each in program.execution_plan if each.name == _METHOD)
        return _program(content, program, plan)
    except CaptureError:
        raise
    except Exception as error:  # whatever a damaged file makes of its reader
        message = f"{type(error).__name__}: {error}".partition("\n")[0][:200]
        raise ProgramFileError(
            f"{path} is no program of ExecuTorch: {message}",
            hint="give the .pte that to_executorch() made, with a method forward",
        ) from None


def _program(content: bytes, program: Any, plan: Any) -> PteProgram:
    values = [_plain(each.val) for each in plan.values]
    (chain,) = plan.chains
    instructions = [_instruction(plan, values, each.instr_args) for each in chain.instructions]
    constants: dict[int, Tensor] = {}
    names: dict[int, str] = {}
    for number, value in enumerate(values):
        extra = getattr(value, "extra_tensor_info", None)
        if is_tensor(value) and value.data_buffer_idx:
            storage = bytes(program.constant_buffer[value.data_buffer_idx].storage)
            constants[number] = tensor_of(
                storage, dtype_of_scalar(value.scalar_type), value.sizes, strides_of(value)
            )
            if extra is not None and extra.fully_qualified_name:
                names[number] = str(extra.fully_qualified_name)
    written = {n for each in instructions if isinstance(each, PteCall) for n in each.outputs}
    keeps = any(number in written for number in constants)
    keeps = keeps or _reads_before_writing(instructions, {*constants, *plan.inputs}, values)
    return PteProgram(
        content, instructions, values, constants, names, list(plan.inputs), list(plan.outputs),
        keeps,
    )  # fmt: skip


def _reads_before_writing(
    instructions: Sequence[PteInstruction], known: set[int], values: Sequence[Any]
) -> bool:
    """Whether a value is read that only a run before can have written."""
    written = set(known)
    for each in instructions:
        if isinstance(each, PteCall):
            if any(is_tensor(values[n]) and n not in written for n in _reads(each, values)):
                return True
            written.update(each.outputs)
        elif isinstance(each, PteMove):
            written.add(each.target)
    return False


def _reads(call: PteCall, values: Sequence[Any]) -> Iterator[int]:
    for number in (*call.args, *call.kwargs.values()):
        value = values[number]
        yield from value.items if isinstance(value, PteList) else [number]


@dataclass(frozen=True, slots=True)
class PteList:
    """A list among the values, of the numbers of others; -1: None."""

    items: tuple[int, ...]


def is_tensor(value: Any) -> bool:
    """Whether a value of the file is the description of a tensor."""
    return hasattr(value, "scalar_type")


def _plain(value: Any) -> Any:
    """A value as Python has it; tensors stay descriptions."""
    kind = type(value).__name__
    if kind in ("IntList", "TensorList", "OptionalTensorList"):
        return PteList(tuple(int(each) for each in value.items))
    if kind in ("DoubleList", "BoolList"):
        return [float(each) if kind == "DoubleList" else bool(each) for each in value.items]
    if kind == "Null":
        return None
    plain = {"Int": "int_val", "Bool": "bool_val", "String": "string_val", "Double": "double_val"}
    if kind in plain:
        found = getattr(value, plain[kind])
        return float(found) if kind == "Double" else found
    return value


def _instruction(plan: Any, values: Sequence[Any], instruction: Any) -> PteInstruction:
    kind = type(instruction).__name__
    if kind == "KernelCall":
        return _kernel(plan.operators[instruction.op_index], values, list(instruction.args))
    if kind == "DelegateCall":
        name = str(plan.delegates[instruction.delegate_index].id)
        tensors = tuple(n for n in instruction.args if is_tensor(values[n]))
        taken, given = _ends_of_delegate(plan, values, tensors, instruction)
        return PteCall(f"executorch.{name}", f"executorch::{name}.1", taken, {}, given, tensors)
    if kind == "JumpFalseCall":
        return PteJump(instruction.cond_value_index, instruction.destination_instruction)
    if kind == "MoveCall":
        return PteMove(instruction.move_from, instruction.move_to)
    return None


def _ends_of_delegate(
    plan: Any, values: Sequence[Any], tensors: tuple[int, ...], call: Any
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What a delegate takes and gives: what was there before it, and what was not."""
    known = {n for n, value in enumerate(values) if is_tensor(value) and value.data_buffer_idx}
    known |= set(plan.inputs)
    for each in plan.chains[0].instructions:
        if each.instr_args is call:
            break
        args = getattr(each.instr_args, "args", ())
        for n in args:
            known |= set(values[n].items) if isinstance(values[n], PteList) else {n}
    given = tuple(n for n in tensors if n not in known)
    return tuple(n for n in tensors if n in known), given


def _kernel(operator: Any, values: Sequence[Any], args: list[int]) -> PteCall:
    """A kernel takes all arguments of its schema, the outputs among them, and what it returns."""
    namespace, _, word = str(operator.name).partition("::")
    overload = str(operator.overload)
    schema = _schema(namespace, word, overload)
    if namespace == "dim_order_ops" and word in _COPIES:
        namespace, word = "aten", _COPIES[word]
    taken: list[int] = []
    named: dict[str, int] = {}
    given: list[int] = []
    for number, argument in zip(args[: len(schema)], schema, strict=True):
        if argument.is_out:
            several = values[number]
            given += several.items if isinstance(several, PteList) else [number]
        elif argument.kwarg_only and argument.name not in _LOST:
            named[argument.name] = number
        elif not argument.kwarg_only:
            taken.append(number)
    if not given:  # what it returns is its last argument
        last = values[args[-1]]
        given = list(last.items) if isinstance(last, PteList) else [args[-1]]
    name, logged = f"{namespace}.{word}", tuple(n for n in given if is_tensor(values[n]))
    target = f"{name}.{_without_out(namespace, word, overload)}"
    return PteCall(name, target, tuple(taken), named, tuple(given), logged)


def _without_out(namespace: str, word: str, overload: str) -> str:
    """The overload that takes the same but for where its outputs go, if torch has one."""
    packet = getattr(getattr(torch.ops, namespace), word)
    own = getattr(packet, overload or "default")._schema.arguments
    wanted = [each.name for each in own if not each.is_out and each.name not in _LOST]
    for name in packet.overloads():
        arguments = getattr(packet, name)._schema.arguments
        if [each.name for each in arguments] == wanted:
            return str(name)
    return overload or "default"


def _schema(namespace: str, word: str, overload: str) -> Sequence[Any]:
    if namespace in ("dim_order_ops", "quantized_decomposed", "executorch_prim"):
        import executorch.exir.passes.dim_order_ops_registry
        import executorch.exir.passes.executorch_prim_ops_registry  # noqa: F401
    packet = getattr(getattr(torch.ops, namespace, None), word, None)
    found = getattr(packet, overload or "default", None)
    if found is None:
        raise CaptureError(
            f"the program calls {namespace}::{word}.{overload}, which torch does not know here",
            hint="import the package that registers it before the dump",
        )
    arguments: Sequence[Any] = found._schema.arguments
    return arguments


# Tensors


def dtype_of_scalar(number: Any) -> torch.dtype:
    """Torch's dtype of a number of ExecuTorch, whose scalar types are torch's own."""
    from executorch.exir.tensor import get_scalar_type

    found: torch.dtype = get_scalar_type(number)
    return found


def dtype_name(number: Any) -> str:
    """Its name."""
    return str(dtype_of_scalar(number)).removeprefix("torch.")


def strides_of(value: Any) -> tuple[int, ...]:
    """The strides of a dense tensor whose dims lie in an order."""
    strides, step = [0] * len(value.sizes), 1
    for dim in reversed(list(value.dim_order)):
        strides[dim] = step
        step *= max(1, value.sizes[dim])
    return tuple(strides)


def tensor_of(
    storage: bytes, dtype: torch.dtype, sizes: Sequence[int], strides: Sequence[int]
) -> Tensor:
    """A tensor of these bytes."""
    if not all(sizes):
        return torch.empty(tuple(sizes), dtype=dtype)
    last = sum((size - 1) * step for size, step in zip(sizes, strides, strict=True))
    nbytes = (last + 1) * dtype.itemsize
    if len(storage) < nbytes or last < 0:
        raise ValueError(f"{len(storage)} bytes for a tensor of shape {list(sizes)}")
    flat = torch.frombuffer(bytearray(storage[:nbytes]), dtype=torch.uint8).view(dtype)
    return flat.as_strided(tuple(sizes), tuple(strides)).clone(
        memory_format=torch.contiguous_format
    )
