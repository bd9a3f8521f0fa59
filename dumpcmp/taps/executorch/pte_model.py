"""A program of ExecuTorch as a module that can be called, with the values that its runtime logs.

ExecuTorch logs what each kernel and each delegate gives, if it is loaded so; a program that is
loaded plainly gives the outputs against which those are certified. Loaded again for each run, since
the log of a loaded program has room for one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from dumpcmp.nouns.errors import CaptureError
from dumpcmp.taps.executorch.pte_program import (
    PteCall,
    PteJump,
    PteList,
    PteMove,
    PteProgram,
    dtype_of_scalar,
    is_tensor,
    read_pte,
    tensor_of,
)
from dumpcmp.taps.exported.bound_inputs import bound
from dumpcmp.taps.exported.planting import plant


@dataclass(frozen=True, slots=True, eq=False)
class PteRun:
    """One run of a call, with what it took and gave."""

    call: PteCall
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: Sequence[Tensor | None]


class PteModel(nn.Module):
    """A ``.pte``, which is called with tensors for its inputs."""

    def __init__(self, path: str | Path) -> None:
        super().__init__()
        self.file = Path(path)
        self.program: PteProgram = read_pte(self.file)
        self.inputs = list(self.program.model_inputs())
        self._plain = self._loaded(0)
        self._before: list[tuple[Tensor, ...]] = []  # inputs of runs that left a state behind
        self._state: dict[int, Any] = dict(self.program.constants)
        for number, name in self.program.names.items():
            plant(self, name, self.program.constants[number], is_parameter=False)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What ExecuTorch gives: the output, or a tuple of them."""
        given = self.given(args, kwargs)
        found = self._run(self._plain, given)
        return found[0] if len(found) == 1 else tuple(found)

    def given(self, args: Any, kwargs: Mapping[str, Any]) -> tuple[Tensor, ...]:
        """The tensors of a call, in the order of the program's inputs."""
        found = bound(str(self.file), self.inputs, args, kwargs)
        return tuple(found[each.name].contiguous() for each in self.inputs)

    def logged(self, given: tuple[Tensor, ...]) -> tuple[list[Tensor], list[PteRun]]:
        """The outputs of a run that was logged, and what each of its calls took and gave.

        Where the program keeps a state, all runs before are run again first.
        """
        self._before = [*self._before, given] if self.program.keeps_state else [given]
        module = self._loaded(self.program.nbytes_logged() * len(self._before))
        for each in self._before:
            outputs = self._run(module, each)
        events = self._events(module)
        walk = _Walk(self.program, self._state, given, events[-_num_events(events, self._before) :])
        runs = walk.runs()
        self._state = walk.values if self.program.keeps_state else self._state
        return outputs, runs

    def _loaded(self, nbytes: int) -> Any:
        """The program in ExecuTorch's runtime; `nbytes`: of the log of its values, 0 for none."""
        from executorch.extension.pybindings import portable_lib

        load = portable_lib._load_for_executorch_from_buffer
        if not nbytes:
            return load(self.program.content)
        return load(self.program.content, enable_etdump=True, debug_buffer_size=nbytes)

    def _run(self, module: Any, given: tuple[Tensor, ...]) -> list[Tensor]:
        try:
            found = module.forward(given)
        except Exception as error:
            message = str(error).partition("\n")[0][:200]
            raise CaptureError(f"ExecuTorch stopped at {self.file}: {message}") from None
        return [each.clone() for each in found if isinstance(each, Tensor)]

    def _events(self, module: Any) -> list[tuple[int, Tensor]]:
        """What was logged: the number of an instruction, and a tensor that it gave."""
        from executorch.devtools.etdump.serialize import deserialize_from_etdump_flatcc

        with TemporaryDirectory(prefix="dumpcmp-pte-") as folder:
            log, values = Path(folder, "log.etdp"), Path(folder, "values.bin")
            module.write_etdump_result_to_file(str(log), str(values))
            log_of_run = deserialize_from_etdump_flatcc(log.read_bytes())
            storage = values.read_bytes()
        found = []
        for block in log_of_run.run_data:
            for event in block.events or ():
                debug = event.debug_event
                if debug is None or debug.debug_entry is None or debug.chain_index != 0:
                    continue
                found += [(debug.instruction_id, _tensor(storage, each))
                          for each in _tensors_of(debug.debug_entry)]  # fmt: skip
        return found


def _num_events(events: list[tuple[int, Tensor]], runs: Sequence[object]) -> int:
    """How many of the events are those of the last of some runs, all of which logged as many."""
    return len(events) // max(1, len(runs))


def _tensors_of(entry: Any) -> list[Any]:
    if entry.tensor is not None:
        return [entry.tensor]
    return list(entry.tensor_list.tensors) if entry.tensor_list is not None else []


def _tensor(storage: bytes, described: Any) -> Tensor:
    return tensor_of(
        storage[described.offset :],
        dtype_of_scalar(described.scalar_type),
        described.sizes,
        described.strides,
    )


class _Walk:
    """Goes through the instructions of a run as its runtime did, with the values that it logged."""

    def __init__(
        self,
        program: PteProgram,
        state: Mapping[int, Any],
        given: Sequence[Tensor],
        events: list[tuple[int, Tensor]],
    ) -> None:
        self.program, self._events = program, events
        self.values: dict[int, Any] = dict(enumerate(program.values))
        self.values = {n: v for n, v in self.values.items() if not is_tensor(v)}
        self.values |= state
        self.values |= dict(zip(program.inputs, given, strict=True))

    def runs(self) -> list[PteRun]:
        """The calls, in order."""
        found: list[PteRun] = []
        at = 0
        while at < len(self.program.instructions):
            instruction = self.program.instructions[at]
            at += 1
            if isinstance(instruction, PteCall):
                found += self._called(at - 1, instruction)
            elif isinstance(instruction, PteMove):
                self.values[instruction.target] = self.values.get(instruction.source)
            elif isinstance(instruction, PteJump):
                at = at if self._holds(instruction.condition) else instruction.target
        return found

    def _holds(self, number: int) -> bool:
        value = self.values.get(number)
        if value is None:
            raise CaptureError("the program branches on a value that ExecuTorch does not log")
        return bool(value)

    def _called(self, number: int, call: PteCall) -> list[PteRun]:
        args = tuple(self._value(each) for each in call.args)
        kwargs = {name: self._value(each) for name, each in call.kwargs.items()}
        logged: dict[int, Tensor] = {}
        for each in call.logged:
            if not self._events or self._events[0][0] != number:
                raise CaptureError(f"ExecuTorch logged no value of {call.name}, which it called")
            logged[each] = self._events.pop(0)[1]
        if not call.logged:  # of numbers: sizes, and what is computed with them
            self._compute(call, args)
            return []
        self.values |= {each: logged[each] for each in call.outputs if each in logged}
        return [PteRun(call, args, kwargs, [logged.get(each) for each in call.outputs])]

    def _value(self, number: int) -> Any:
        """A value as the op takes it."""
        value = self.values.get(number)
        if isinstance(value, PteList):
            return [None if each < 0 else self.values.get(each) for each in value.items]
        return value

    def _compute(self, call: PteCall, args: tuple[Any, ...]) -> None:
        """A number that the program computes, as torch computes it."""
        namespace, word, overload = call.target.split(".", 2)
        packet = getattr(getattr(torch.ops, namespace), word)
        op = getattr(packet, overload)
        for each in call.outputs:
            self.values[each] = op(*args)
