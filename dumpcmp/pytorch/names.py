"""Every private name of torch that dumpcmp uses, by who uses it, and what it is for.

A mode checks its own when it begins: where this torch lacks a name, it refuses with one clear
error, or does without and says what will be missing. The package uses none that is not listed here.
docs/design/capture.md says what a new release of torch needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from types import CodeType
from typing import Any

import torch

from dumpcmp.nouns.errors import CaptureError

TESTED = "2.11 to 2.13"


@dataclass(frozen=True, slots=True)
class PrivateName:
    """One name: where it is, what it serves, and what is lost without it.

    `loses` is empty where there is no doing without. A `word` is a name that is no attribute of
    anything that could be asked: the function at `path` must say it.
    """

    path: str  # "torch._C:_current_autograd_node", module and attribute
    serves: str
    loses: str = ""
    word: str = ""

    def __str__(self) -> str:
        dotted = self.path.replace(":", ".")
        return f"{self.word} in {dotted}" if self.word else dotted

    @property
    def is_there(self) -> bool:
        """Whether this torch has it."""
        try:
            found = self.find()
        except (ImportError, AttributeError):
            return False
        return not self.word or self.word in _words_of(found.__code__)

    def find(self) -> Any:
        """What the name stands for now."""
        module, _, attribute = self.path.partition(":")
        found: Any = import_module(module)
        for word in attribute.split("."):
            found = getattr(found, word)
        return found


def _words_of(code: CodeType) -> Iterator[str]:
    """All names that `code`, and the functions inside it, say."""
    yield from (code.co_name, *code.co_names, *code.co_varnames, *code.co_freevars)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _words_of(inner)
        elif isinstance(inner, str):
            yield inner


def _named(serves: str, *paths: str, loses: str = "") -> tuple[PrivateName, ...]:
    return tuple(PrivateName(path, serves, loses) for path in paths)


_COMPILED_CALLS = (
    "what compiled functions compute outside of modules is not recorded, nor are their steps"
)
_CONTEXT = "torch._dynamo.eval_frame:_TorchDynamoContext"
_WRAPPER = "torch._dynamo.eval_frame:OptimizedModule"

# What torch.compile leaves on the stack and around modules, by which a call of it is known.
_CALLABLES = (
    PrivateName(_CONTEXT, "to hear of calls", _COMPILED_CALLS),
    PrivateName(f"{_CONTEXT}.__init__", "to hear of calls", _COMPILED_CALLS, "enter_exit_hooks"),
    PrivateName(f"{_CONTEXT}.__call__", "to hear of calls", _COMPILED_CALLS, "enter_exit_hooks"),
    PrivateName(f"{_CONTEXT}.__call__", "to find the call", _COMPILED_CALLS, "compile_wrapper"),
    PrivateName(f"{_CONTEXT}.__call__", "to name what was compiled", _COMPILED_CALLS, "fn"),
)
_NO_WRAPPERS = "a module that the program compiled may stand under other names than in eager mode"
_WRAPPERS = (
    PrivateName(_WRAPPER, "to know what torch.compile made of a module", _NO_WRAPPERS),
    PrivateName(f"{_WRAPPER}.__init__", "to reach the module inside", _NO_WRAPPERS, "_orig_mod"),
)


def _needed(names: tuple[PrivateName, ...]) -> tuple[PrivateName, ...]:
    return tuple(PrivateName(name.path, name.serves, "", name.word) for name in names)


_DYNAMO = (
    *_needed(_WRAPPERS),
    *_named("to keep dynamo out of our own frames", "torch._dynamo.eval_frame:skip_code"),
)
_DISPATCH = _named(
    "to see what reaches the dispatcher",
    "torch.utils._python_dispatch:TorchDispatchMode",
    "torch._ops:OpOverload",
)
_SCHEMA = PrivateName("torch._ops:OpOverload.__init__", "to name overloads", word="_schema")

NAMES: dict[str, tuple[PrivateName, ...]] = {
    "every mode": (
        *_named(
            "to record without being recorded",
            "torch._C:DisableTorchFunction",
            "torch._C:DisableTorchFunctionSubclass",
            "torch._C:_DisableTorchDispatch",
            "torch._C:_disabled_torch_dispatch_impl",
        ),
        *_named(
            "to see every call of a module",
            "torch.nn:Module._compiled_call_impl",
            "torch.nn:Module._call_impl",
        ),
        PrivateName(
            "torch.nn:Module.__call__", "to see every call of a module", word="_compiled_call_impl"
        ),
        *_named(
            "to know a value that was stored before",
            "torch:Tensor._version",
            "torch:UntypedStorage._cdata",
        ),
        *_named("to tell recomputation from forward", "torch._C:_current_autograd_node"),
        *_named("to note what a call was cast to", "torch._C:_is_any_autocast_enabled"),
        *_named(
            "to open nested arguments",
            "torch.utils._pytree:SUPPORTED_NODES",
            loses="tensors in containers that only torch's pytree can open are not recorded",
        ),
    ),
    "--backward": _named(
        "to know a tensor by what made it", "torch.autograd.graph:Node._sequence_nr"
    ),
    "--dtype": _named("to convert nested arguments", "torch.utils._pytree:tree_map_only"),
    "compiled functions": _CALLABLES,
    "compiled modules": _WRAPPERS,
    "--mode eager": (),
    "--mode fx": (
        *_DYNAMO,
        *_named(
            "to have one graph for each shape and module",
            "torch._dynamo.config:patch",
            "torch._dynamo.config:recompile_limit",
            "torch._dynamo.config:accumulated_recompile_limit",
            "torch._dynamo.config:suppress_errors",
        ),
    ),
    "--mode aten": (
        *_DISPATCH,
        _SCHEMA,
        *_named(
            "to tell which op's backward runs",
            "torch._C._autograd:_get_sequence_nr",
            "torch.autograd.graph:Node._sequence_nr",
        ),
    ),
    "--mode boundary": (
        *_DYNAMO,
        *_named("to find a backend by its name", "torch._dynamo:lookup_backend"),
    ),
    "--mode compiled": _DYNAMO,
    "a torch.compile backend": _needed(_CALLABLES),
    "several ranks": (
        *_DISPATCH,
        _SCHEMA,
        *_named(
            "to read what a rank holds",
            "torch.distributed.tensor:DTensor._local_tensor",
            "torch.distributed.tensor:DTensor._spec",
            "torch.distributed.device_mesh:DeviceMesh._get_root_mesh",
            "torch.distributed._functional_collectives:AsyncCollectiveTensor",
        ),
        *_named(
            "to know the ranks of a group",
            "torch.distributed.distributed_c10d:_resolve_process_group",
        ),
        *_named("to tell backward from forward", "torch._C:_current_graph_task_id"),
        *_named(
            "to wait for the reduction of gradients", "torch.autograd:Variable._execution_engine"
        ),
        *_named(
            "to number microbatches",
            "torch.distributed.pipelining.stage:_PipelineStageBase",
            "torch.distributed.pipelining.stage:_PipelineStage._prepare_forward_infra",
            "torch.distributed.pipelining.stage:PipelineStage._prepare_forward_infra",
            loses="values of a pipeline do not say which microbatch they are of, and what its "
            "stages try out is recorded as steps",
        ),
    ),
    "summaries on a GPU": _named(
        "to start kernels without waiting",
        "torch._C:_cuda_getDevice",
        "torch._C:_cuda_getCurrentRawStream",
    ),
    "verify": (
        *_needed(_WRAPPERS),
        *_named("to have Inductor draw eager's numbers", "torch._inductor.config:fallback_random"),
    ),
    "verifying_backend": (
        *_named("to find a backend by its name", "torch._dynamo:lookup_backend"),
        *_named("to tell examples without values", "torch._subclasses.fake_tensor:FakeTensor"),
        *_named(
            "to name the graph, and to run it outside of the compilation",
            "torch._guards:CompileContext.current_compile_id",
            "torch._guards:tracing",
        ),
        *_named(
            "to have the backward graph compiled at once",
            "torch._functorch.config:force_non_lazy_backward_lowering",
        ),
    ),
    "verify_correctness": _named(
        "to stand between dynamo and its backend",
        "torch._dynamo.config:verify_correctness",
        "torch._dynamo.output_graph:WrapperBackend",
    ),
    "verify --explain": (
        *_needed(_WRAPPERS),
        PrivateName(
            "torch._dynamo.repro.after_dynamo:WrapBackendDebug.__init__",
            "to find the backend of a compiled model",
            word="_torchdynamo_orig_backend",
        ),
    ),
    "verify-op": _named(
        "to read the schema of an op", "torch._ops:OpOverload", "torch._ops:OpOverloadPacket"
    ),
}


def check_names(*users: str, instead: str = "") -> list[str]:
    """Refuse where this torch lacks what one of `users` needs; else what will be missing."""
    missing = []
    for user in users:
        lacking = [name for name in NAMES[user] if not name.is_there]
        if needed := [name for name in lacking if not name.loses]:
            listed = ", ".join(f"{name} ({name.serves})" for name in needed)
            raise CaptureError(
                f"torch {torch.__version__} has no {listed}, which {user} needs",
                hint=instead or f"use a torch that dumpcmp is tested with: {TESTED}",
            )
        missing += [f"torch {torch.__version__} has no {name}: {name.loses}" for name in lacking]
    return missing


def _if_there(path: str) -> Any:
    """What the name at `path` stands for; None where `check_names` will refuse."""
    name = PrivateName(path, "")
    return name.find() if name.is_there else None


# Those that are needed for each value, looked up once: importing this module raises nothing.
DisableTorchFunction = _if_there("torch._C:DisableTorchFunction")
DisableTorchDispatch = _if_there("torch._C:_DisableTorchDispatch")
NO_DISPATCH = _if_there("torch._C:_disabled_torch_dispatch_impl")
SUPPORTED_NODES: dict[type, Any] = _if_there("torch.utils._pytree:SUPPORTED_NODES") or {}
