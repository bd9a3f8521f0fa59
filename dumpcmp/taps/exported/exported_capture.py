"""Captures programs of ``torch.export``: each op of the graph is a call, as in aten mode."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_map_only

from dumpcmp.nouns.spoken import counted
from dumpcmp.pytorch.tensor_bits import same_bits
from dumpcmp.pytorch.trees import slots_of
from dumpcmp.taps.exported.exported_model import ExportedModel
from dumpcmp.taps.exported.program_runner import ProgramRunner
from dumpcmp.taps.modes.modules import ModuleCapture
from dumpcmp.taps.recording.recorder import Recorder


class ExportedCapture(ModuleCapture):
    """Captures calls of ExportedModels, and certifies each: its outputs bit for bit."""

    def __init__(self, recorder: Recorder, roots: Collection[nn.Module] = ()) -> None:
        super().__init__(recorder, roots, mode=None)
        self._num_outputs = self._num_nodes = 0
        self._problems: list[str] = []

    @contextmanager
    def _compiling(self) -> Iterator[None]:
        """Nothing is compiled in here."""
        yield

    def _is_root(self, module: nn.Module) -> bool:
        return isinstance(module, ExportedModel) and super()._is_root(module)

    def root_run(
        self, module: nn.Module, run: Callable[..., Any], args: Any, kwargs: Any
    ) -> Callable[..., Any]:
        """What runs an ExportedModel node by node, and then as it is, to compare both."""
        if not isinstance(module, ExportedModel):
            return super().root_run(module, run, args, kwargs)
        return partial(self._run, module)

    def _run(self, model: ExportedModel, *args: Any, **kwargs: Any) -> Any:
        before = _Before(model, args, kwargs)
        result = model.run(partial(self._run_nodes, model.paths_of_weights()), args, kwargs)
        with before.restored(), torch.no_grad(), self._muting():
            plain = model.forward(*before.args, **before.kwargs)
        self._compare(plain, result)
        return result

    def _run_nodes(self, weights: Mapping[int, str], graph: fx.GraphModule, flat: list[Any]) -> Any:
        step = self.step
        self._num_nodes = sum(node.op == "call_function" for node in graph.graph.nodes)
        return graph(*flat) if step is None else ProgramRunner(graph, step, weights).run(*flat)

    def _compare(self, plain: Any, result: Any) -> None:
        """See that the captured run gave what the program gives without a capture."""
        ours, theirs = (dict(slots_of("output", each)) for each in (result, plain))
        self._num_outputs += len(theirs)
        for slot, tensor in theirs.items():
            if slot not in ours or not same_bits(ours[slot], tensor):
                self._problems.append(f"{slot} is not what the program gives without a capture")

    def facts(self) -> dict[str, Any]:
        """What run.json says: its values are those of aten mode, and the certificate."""
        compared = {"node": self._num_nodes, "output": self._num_outputs}
        if self._problems or not self._num_outputs:
            why = self._problems[0] if self._problems else "nothing ran"
            text = f"not certified: {why}"
        else:
            nodes, outputs = (counted(n, word) for word, n in compared.items())
            text = f"certified: {outputs} of {nodes} as in a run without a capture"
        certificate = {"holds": not text.startswith("not"), "text": text, "compared": compared}
        return {
            **super().facts(), "mode": "aten", "program": "exported", "certificate": certificate,
        }  # fmt: skip


class _Before:
    """What a run of a model begins with: its inputs, its buffers, and the random generator."""

    def __init__(self, model: ExportedModel, args: Any, kwargs: Any) -> None:
        self.args, self.kwargs = args, kwargs
        self._draws = torch.get_rng_state()
        self._buffers: list[tuple[Tensor, Tensor]] = []
        if model.writes:
            self.args, self.kwargs = tree_map_only(Tensor, Tensor.clone, (args, kwargs))
            self._buffers = [(each, each.clone()) for each in model.buffers()]

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Have buffers and generator as they were while the block runs, and then as they are."""
        after = [(buffer, buffer.clone()) for buffer, _ in self._buffers]
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self._draws)
            _write(self._buffers)
            try:
                yield
            finally:
                _write(after)


def _write(tensors: Iterable[tuple[Tensor, Tensor]]) -> None:
    with torch.no_grad():
        for tensor, numbers in tensors:
            tensor.copy_(numbers)
