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
        for word in filter(None, attribute.split(".")):
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


def _words(serves: str, path: str, *words: str) -> tuple[PrivateName, ...]:
    return tuple(PrivateName(path, serves, word=word) for word in words)


_SCHEDULER = "torch._inductor.scheduler:Scheduler"
_LOWERING = "torch._inductor.graph:GraphLowering"
_WRAPPER_CODE = "torch._inductor.codegen.wrapper:PythonWrapperCodegen"
_CPP = "torch._inductor.codegen.cpp:CppScheduling"
_INDUCTOR = (
    *_named(
        "to stand at the door of Inductor",
        "torch._inductor.compile_fx:compile_fx",
        "torch._inductor:aoti_load_package",
        "torch._guards:TracingContext.try_get",
        "torch._C._dynamo.eval_frame:get_eval_frame_callback",
    ),
    *_named(
        "to set how Inductor compiles, and to run passes of ours",
        "torch._inductor.config:patch",
        "torch._inductor.config:cpp_wrapper",
        "torch._inductor.config:inplace_buffers",
        "torch._inductor.config:pattern_matcher",
        "torch._inductor.config:max_fusion_size",
        "torch._inductor.config:triton.cudagraphs",
        "torch._inductor.config:post_grad_custom_pre_pass",
        "torch._inductor.config:post_grad_custom_post_pass",
        "torch._inductor.custom_graph_pass:CustomGraphPass",
    ),
    *_named(
        "to keep tapped code apart in caches",
        "torch.compiler.config:patch",
        "torch.compiler.config:cache_key_tag",
    ),
    *_named(
        "to look on while AOTAutograd traces",
        "torch.fx.experimental.symbolic_shapes:PropagateUnbackedSymInts.run_node",
        "torch.fx:Interpreter.run_node",
        "torch.fx:Interpreter.fetch_args_kwargs_from_env",
    ),
    *_named(
        "to find the node of a traced tensor",
        "torch.fx.experimental.proxy_tensor:get_proxy_mode",
        "torch.fx.experimental.proxy_tensor:get_proxy_slot",
        "torch._subclasses.functional_tensor:FunctionalTensor",
        "torch:_sync",
        "torch:_from_functional_tensor",
        "torch._C._autograd:_get_sequence_nr",
        "torch.autograd.graph:Node._sequence_nr",
        "torch.utils._pytree:tree_leaves",
        "torch.utils._pytree:tree_map_only",
    ),
    *_words(
        "to know which op a node was made of",
        "torch.fx.traceback:NodeSource.__init__",
        "from_node",
        "node_info",
    ),
    *_words(
        "to know which op a node was made of",
        "torch.fx.traceback:NodeSource.NodeInfo.__init__",
        "graph_id",
    ),
    *_named("to follow a lowering", f"{_LOWERING}.run", f"{_LOWERING}.codegen"),
    *_named("to follow a lowering", "torch._inductor.virtualized:V.set_graph_handler"),
    *_named("to leave the graphs of branches alone", "torch._inductor.graph:SubgraphLowering"),
    *_words(
        "to tell what a kernel has written",
        f"{_LOWERING}.__init__",
        *("removed_buffers", "inplaced_to_remove", "wrapper_code", "sizevars", "is_backward"),
    ),
    *_words("to refuse packages", f"{_LOWERING}.__init__", "aot_mode"),
    *_words(
        "to tell what a kernel has written",
        f"{_SCHEDULER}._init",
        *("mutation_real_name", "name_to_buf", "current_node", "backends", "nodes"),
    ),
    *_words("to tell what a kernel has written", f"{_WRAPPER_CODE}.__init__", "allocated", "freed"),
    *_words("to wait until a kernel is called", f"{_CPP}.reset_kernel_group", "kernel_group"),
    *_named(
        "to read values between kernels",
        f"{_SCHEDULER}.free_buffers",
        f"{_WRAPPER_CODE}.generate_kernel_call",
        f"{_WRAPPER_CODE}.codegen_python_sizevar",
        f"{_WRAPPER_CODE}.writeline",
        "torch._inductor.ir:NoneLayout",
        "torch._inductor.ir:MultiOutputLayout",
        "torch._inductor.ir:MultiOutput",
        "torch._inductor.ir:TorchBindObject",
        "torch._inductor.ir:ExternKernel.python_kernel_name",
        "torch._inductor.ir:ExternKernel.op_overload",
    ),
    *_named(
        "to have values stored",
        f"{_SCHEDULER}.can_buffer_be_removed_through_fusion",
        f"{_CPP}.MAX_FUSED_KERNEL_ARGS_NUM",
    ),
    *_words("to have values stored", f"{_LOWERING}.run_node", "inductor_realize_to_strides"),
    *_named(
        "to lower a graph once more",
        "torch._inductor.virtualized:V.set_extern_kernel_nodes",
        f"{_SCHEDULER}.dead_node_elimination",
        "torch._inductor.scheduler:NodeUser",
        "torch._inductor.scheduler:OutputNode",
        "torch._inductor.scheduler:StarDep",
        "torch._inductor.ir:TensorBox",
        "torch._inductor.ir:IRNode.current_origins",
        "torch._inductor.ir:IRNode._post_init_setattr",
        "torch._inductor.lowering:clone",
        "torch._inductor.codecache:PyCodeCache.load",
    ),
    *_words(
        "to lower a graph once more",
        f"{_LOWERING}.__init__",
        *("example_inputs", "_shape_env", "graph_id", "is_inference", "inputs_to_check"),
        *("constants", "bw_donated_idxs", "mutated_input_idxs"),
    ),
)

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
    "--mode compiled": (*_DYNAMO, *_INDUCTOR),
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


def _holders(path: str) -> Iterator[str]:
    """`path`, and the classes and the module that hold what it names."""
    while path:
        yield path
        path = path[: max(path.rfind("."), path.rfind(":"), 0)] if ":" in path else ""


_LISTED = {holder for names in NAMES.values() for name in names for holder in _holders(name.path)}


def private(path: str) -> Any:
    """What `path` stands for now: a name in the table, or the class or module that holds one."""
    if path not in _LISTED:
        raise LookupError(f"{path} is not in the table of torch's private names")
    return PrivateName(path, "").find()


# What to do where a torch lacks what one of them needs, if not to take another torch.
_INSTEAD = {
    "--mode compiled": "use torch {}, or --mode boundary --backend inductor, which needs less",
}


def check_names(*users: str) -> list[str]:
    """Refuse where this torch lacks what one of `users` needs; else what will be missing."""
    missing = []
    for user in users:
        lacking = [name for name in NAMES[user] if not name.is_there]
        if needed := [name for name in lacking if not name.loses]:
            listed = ", ".join(f"{name} ({name.serves})" for name in needed)
            raise CaptureError(
                f"torch {torch.__version__} has no {listed}, which {user} needs",
                hint=_INSTEAD.get(user, "use a torch that dumpcmp is tested with: {}").format(
                    TESTED
                ),
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
