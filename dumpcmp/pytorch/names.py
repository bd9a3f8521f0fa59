"""Every private name of torch that dumpcmp uses, by who uses it, and what it is for.

A mode checks its own when it begins: where this torch lacks a name, it refuses with one clear
error, or does without and says what will be missing. The package uses none that is not listed here.
docs/design/capture.md says what a new release of torch needs.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import update_wrapper
from types import CodeType, FunctionType
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
        try:
            found = self.find()
        except (ImportError, AttributeError):
            return False
        return not self.word or self.word in _words_of(found.__code__)

    def find(self) -> Any:
        return pkgutil.resolve_name(self.path)


def _words_of(code: CodeType) -> Iterator[str]:
    """All names that `code`, and the functions inside it, say."""
    yield from (code.co_name, *code.co_names, *code.co_varnames, *code.co_freevars)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _words_of(inner)
        elif isinstance(inner, str):
            yield inner


# What torch.compile leaves on the stack and around modules, by which a call of it is known.
_CALLABLES = """
    to keep dynamo out of our own work
        torch._C._dynamo.eval_frame: set_eval_frame
    to hear of calls
        torch._dynamo.eval_frame: _TorchDynamoContext _TorchDynamoContext.__init__>enter_exit_hooks
        torch._dynamo.eval_frame: _TorchDynamoContext.__call__>enter_exit_hooks
    to find the call
        torch._dynamo.eval_frame: _TorchDynamoContext.__call__>compile_wrapper
    to name what was compiled
        torch._dynamo.eval_frame: _TorchDynamoContext.__call__>fn
"""
_WRAPPERS = """
    to know what torch.compile made of a module, and to reach the module inside
        torch._dynamo.eval_frame: OptimizedModule OptimizedModule.__init__>_orig_mod
        torch._dynamo.external_utils: wrap_inline
"""
_DYNAMO = f"""{_WRAPPERS}
    to keep dynamo out of our own frames
        torch._dynamo.eval_frame: skip_code reset_code
    to hold signal handlers back while dynamo traces
        torch._dynamo.callback: callback_handler CompilationCallbackHandler.clear
        torch._dynamo.guards: GuardBuilder
    to know a number that dynamo hands to a graph, and that it takes out again
        torch: _as_tensor_fullprec
        torch._dynamo.variables.tensor: SymNodeVariable.as_tensor
        torch._dynamo.variables.torch_function: SymbolicTorchFunctionState
"""
_DISPATCH = """
    to see what reaches the dispatcher
        torch.utils._python_dispatch: TorchDispatchMode
        torch._ops: HigherOrderOperator OpOverload OpOverload.__init__>_schema
"""
_BACKEND_NAMES = """
    to find a backend by its name
        torch._dynamo: lookup_backend
"""
_INDUCTOR = """
    to have dynamo trace and guard as if our mode were not there
        torch._dynamo.variables.torch_function: TorchFunctionModeStackStateManager.__enter__
        torch._dynamo.variables.torch_function: TorchFunctionModeStackStateManager.__exit__
        torch._dynamo.convert_frame: trace_frame
        torch._dynamo.guards: GuardBuilder.TORCH_FUNCTION_STATE get_torch_function_mode_stack_at
        torch._dynamo.guards: CheckFunctionManager.__init__>torch_function_mode_stack_check_fn
        torch._dynamo.utils: get_torch_function_mode_stack_at set_torch_function_mode_stack
    to stand at the door of Inductor
        torch._inductor.compile_fx: compile_fx
        torch._inductor: aoti_load_package
    to set how Inductor compiles, and to run passes of ours
        torch._inductor.config: patch cpp_wrapper inplace_buffers pattern_matcher max_fusion_size
        torch._inductor.config: graph_partition triton.cudagraphs custom_should_partition_ops
        torch._inductor.config: post_grad_custom_pre_pass post_grad_custom_post_pass
        torch._inductor.custom_graph_pass: CustomGraphPass
        torch._inductor.compile_fx: _recursive_joint_graph_passes
    to keep the graph after each pass that changes it
        torch.fx.passes.graph_transform_observer: GraphTransformObserver.apply_gm_pass
        torch.fx.passes.graph_transform_observer: GraphTransformObserver.apply_graph_pass
        torch.fx.passes.graph_transform_observer: GraphTransformObserver.__init__>subsystem,passname
    to keep tapped code apart in caches
        torch.compiler.config: patch cache_key_tag
    to look on while AOTAutograd traces
        torch.fx.experimental.symbolic_shapes: PropagateUnbackedSymInts.run_node
        torch.fx: Interpreter.run_node Interpreter.fetch_args_kwargs_from_env
    to find the node of a traced tensor
        torch.fx.experimental.proxy_tensor: get_proxy_mode get_proxy_slot
        torch._subclasses.functional_tensor: FunctionalTensor
        torch: _sync _from_functional_tensor _functionalize_mutation_counter
        torch._C._autograd: _get_sequence_nr
        torch.autograd.graph: Node._sequence_nr
        torch.utils._pytree: tree_leaves tree_map_only
    to know which op a node was made of
        torch.fx.traceback: NodeSource.__init__>from_node,node_info
        torch.fx.traceback: NodeSource.NodeInfo.__init__>graph_id
    to follow a lowering
        torch._inductor.graph: GraphLowering.run GraphLowering.codegen
        torch._inductor.virtualized: V.set_graph_handler
    to leave the graphs of branches alone
        torch._inductor.graph: SubgraphLowering
    to tell what a kernel has written
        torch._inductor.graph: GraphLowering.__init__>removed_buffers,inplaced_to_remove
        torch._inductor.graph: GraphLowering.__init__>wrapper_code,sizevars,is_backward
        torch._inductor.scheduler: Scheduler._init>mutation_real_name,name_to_buf
        torch._inductor.scheduler: Scheduler._init>current_node,backends,nodes
        torch._inductor.codegen.wrapper: PythonWrapperCodegen.__init__>allocated,freed
    to run what CUDA graphs replay a second time
        torch._inductor.compile_fx: cudagraphify
    to choose the configurations of kernels that the program has chosen
        torch._inductor.runtime.autotune_cache: AutotuneCache._prepare_key
    to refuse packages
        torch._inductor.graph: GraphLowering.__init__>aot_mode
    to wait until a kernel is called
        torch._inductor.codegen.cpp: CppScheduling.reset_kernel_group>kernel_group
    to read values between kernels
        torch._inductor.scheduler: Scheduler.free_buffers
        torch._inductor.codegen.wrapper: PythonWrapperCodegen.generate_kernel_call
        torch._inductor.codegen.wrapper: PythonWrapperCodegen.codegen_python_sizevar
        torch._inductor.codegen.wrapper: PythonWrapperCodegen.writeline
        torch._inductor.ir: NoneLayout MultiOutputLayout MultiOutput TorchBindObject
        torch._inductor.ir: ExternKernel.python_kernel_name ExternKernel.op_overload FallbackKernel
    to have values stored
        torch._inductor.scheduler: Scheduler.can_buffer_be_removed_through_fusion
        torch._inductor.codegen.cpp: CppScheduling.MAX_FUSED_KERNEL_ARGS_NUM
        torch._inductor.graph: GraphLowering.run_node>inductor_realize_to_strides
    to lower a graph once more
        torch._inductor.virtualized: V.set_extern_kernel_nodes
        torch._inductor.scheduler: Scheduler.dead_node_elimination NodeUser OutputNode StarDep
        torch._inductor.ir: TensorBox IRNode.current_origins IRNode._post_init_setattr
        torch._inductor.lowering: clone fallbacks
        torch._inductor.codecache: PyCodeCache.load
        torch._inductor.graph: GraphLowering.__init__>example_inputs,_shape_env,graph_id
        torch._inductor.graph: GraphLowering.__init__>is_inference,inputs_to_check,constants
        torch._inductor.graph: GraphLowering.__init__>bw_donated_idxs,mutated_input_idxs
"""

# Who needs names, what for, and where they are: ``f>a,b`` means that the code of f says both. What
# is lost without them stands behind "or"; where nothing does, there is no doing without.
_TABLE = f"""
every mode
    to record without being recorded
        torch._C: DisableTorchFunction DisableTorchFunctionSubclass
        torch._C: _DisableTorchDispatch _disabled_torch_dispatch_impl
    to see every call of a module
        torch.nn: Module._compiled_call_impl Module._call_impl
        torch.nn: Module.__call__>_compiled_call_impl
    to know a value that was stored before
        torch: Tensor._version UntypedStorage._cdata
    to tell which weights have changed
        torch.nn: Module.register_parameter>_parameters Module.register_buffer>_buffers
    to know what kind of tensor a value is
        torch._C: _dispatch_keys
    to tell recomputation from forward
        torch._C: _current_autograd_node
    to tell which thread compiles
        torch._guards: CompileContext.try_get TracingContext.try_get
    to tell when the program traces itself, or is traced
        torch._C: _get_tracing_state _get_dispatch_mode _TorchDispatchModeKey.PROXY
        torch.fx._symbolic_trace: _is_fx_tracing_flag
        torch.compiler: _is_compiling_flag
    to note what a call was cast to
        torch._C: _is_any_autocast_enabled
        torch._C: _is_torch_function_mode_enabled
    to answer as if no mode were there
        torch._C: _len_torch_function_stack _get_function_stack_at
        torch._C: _pop_torch_function_stack _push_on_torch_function_stack
        torch.jit._builtins: _register_builtin
        torch._C: _disabled_torch_function_impl
every mode, or calls whose like came before are recorded as slowly as new ones
    to know a call that came before
        torch: UntypedStorage._weak_ref UntypedStorage._free_weak_ref
every mode, or models that train through torch.cond and its like fail in modes eager and aten
    to have control flow ops compile what they run
        torch._higher_order_ops.utils: setup_compilation_env
every mode, or tensors in containers that only torch's pytree can open are not recorded
    to open nested arguments
        torch.utils._pytree: SUPPORTED_NODES
every mode, or norms of gradients and scales of losses are not recorded
    to note what steers training
        torch.nn.utils.clip_grad: _clip_grads_with_norm_
        torch.amp.grad_scaler: GradScaler.update>_per_optimizer_states,found_inf_per_device
every mode, or how far data loaders are is not recorded
    to count the batches that they hand out
        torch.utils.data.dataloader: _BaseDataLoaderIter.__init__>_num_yielded,_index_sampler,loader
--backward
    to know a tensor by what made it
        torch.autograd.graph: Node._sequence_nr
--dtype
    to convert nested arguments
        torch.utils._pytree: tree_map_only
every mode, or values inside of transforms of torch.func are not recorded
    to see what their wrappers hold
        torch._C._functorch: get_unwrapped is_batchedtensor is_gradtrackingtensor
        torch._C._functorch: is_functorch_wrapped_tensor maybe_get_bdim maybe_get_level
        torch._functorch.pyfunctorch: temporarily_clear_interpreter_stack
compiled functions, or what compiled functions compute outside of modules is not recorded
{_CALLABLES}
compiled modules, or a module that the program compiled may stand under other names than in \
eager mode
{_WRAPPERS}
questions in torch.compile, or code that asks whether torch functions are overridden is not traced
    to answer in compiled code as if no mode were there
        torch._dynamo: allow_in_graph
        torch._dynamo.variables.torch: TorchInGraphFunctionVariable._get_handlers
--mode eager
--mode onnx
--mode exported
{_DISPATCH}
--mode executorch
--mode openvino
--mode fx
{_DYNAMO}
    to answer as if nothing were traced
        torch._dynamo.variables.torch: tracing_state_functions
        torch._dynamo.variables.torch: TorchInGraphFunctionVariable._get_handlers
        torch._dynamo.variables.base: VariableTracker
    to run what cannot be traced as it is
        torch._dynamo.convert_frame: ConvertFrame.__call__
        torch._dynamo.types: ConvertFrameReturn
        torch._C._dynamo.eval_frame: _FrameAction _FrameExecStrategy
    to have one graph for each shape and module
        torch._dynamo.config: patch recompile_limit accumulated_recompile_limit suppress_errors
--mode fx, or programs see that they were traced: by finalizers, warnings, custom Functions
    to run what would show as it is
        torch._dynamo.variables.functions: SkipFunctionVariable.call_function
        torch._dynamo.symbolic_convert: InliningInstructionTranslator.check_inlineable
        torch._dynamo.variables.misc: AutogradFunctionVariable.call_apply
        torch._dynamo.variables.user_defined: UserDefinedClassVariable.call_function
        torch._dynamo.side_effects: SideEffects.get_example_value
        torch._subclasses.fake_tensor: FakeTensorMode.cache_clear
--mode aten
{_DISPATCH}
    to give ops to a mode at any depth
        torch._library.simple_registry: find_torch_dispatch_rule
    to hand on tensors that stand for numbers
        torch._C: _should_allow_numbers_as_tensors
    to tell which op's backward runs
        torch._C._autograd: _get_sequence_nr
        torch.autograd.graph: Node._sequence_nr
--mode boundary
{_DYNAMO}{_BACKEND_NAMES}
--mode compiled
{_DYNAMO}{_DISPATCH}{_INDUCTOR}
a torch.compile backend
{_CALLABLES}
several ranks
{_DISPATCH}
    to read what a rank holds
        torch.distributed._functional_collectives: AsyncCollectiveTensor
    to know the ranks of a group
        torch.distributed.distributed_c10d: _resolve_process_group
    to tell backward from forward
        torch._C: _current_graph_task_id
    to wait for the reduction of gradients
        torch.autograd: Variable._execution_engine
DTensors
    to read what a rank holds
        torch.distributed.tensor: DTensor._local_tensor DTensor._spec
        torch.distributed.device_mesh: DeviceMesh._get_root_mesh
pipelines, or values of a pipeline do not say which microbatch they are of, and what its \
stages try out is recorded as steps
    to number microbatches
        torch.distributed.pipelining.stage: _PipelineStageBase
        torch.distributed.pipelining.stage: _PipelineStage._prepare_forward_infra
        torch.distributed.pipelining.stage: PipelineStage._prepare_forward_infra
summaries on a GPU
    to start kernels without waiting
        torch._C: _cuda_getDevice _cuda_getCurrentRawStream
verify
{_WRAPPERS}
    to have Inductor draw eager's numbers
        torch._inductor.config: fallback_random
verifying_backend
{_BACKEND_NAMES}
    to tell examples without values
        torch._subclasses.fake_tensor: FakeTensor
    to name the graph, and to run it outside of the compilation
        torch._guards: CompileContext.current_compile_id tracing
    to have the backward graph compiled at once
        torch._functorch.config: force_non_lazy_backward_lowering
verify_correctness
    to stand between dynamo and its backend
        torch._dynamo.config: verify_correctness
        torch._dynamo.output_graph: WrapperBackend
verify --explain
{_WRAPPERS}
    to find the backend of a compiled model
        torch._dynamo.repro.after_dynamo: WrapBackendDebug.__init__>_torchdynamo_orig_backend
verify-op
    to read the schema of an op
        torch._ops: OpOverload OpOverloadPacket
--fusion-switch
    to leave single patterns out of Inductor's passes, and to list them
        torch._inductor.pattern_matcher: PatternMatcherPass PatternMatcherPass.apply
        torch._inductor.pattern_matcher: PatternMatcherPass.__init__>patterns
        torch._inductor.pattern_matcher: PatternMatcherPass.__init__>pass_name
        torch._inductor.pattern_matcher: register_replacement>search_fn
        torch._inductor.fx_passes.joint_graph: lazy_init
        torch._inductor.fx_passes.post_grad: lazy_init
"""


def _read(table: str) -> dict[str, list[PrivateName]]:
    names: dict[str, list[PrivateName]] = {}
    user = loses = serves = ""
    for line in filter(str.strip, table.splitlines()):
        match len(line) - len(line.lstrip()):
            case 0:
                user, _, loses = line.partition(", or ")
                names.setdefault(user, [])
            case 4:
                serves = line.strip()
            case 8:
                module, _, listed = line.strip().partition(": ")
                for path, _, words in (name.partition(">") for name in listed.split()):
                    at = f"{module}:{path}"
                    names[user] += [PrivateName(at, serves, loses, w) for w in words.split(",")]
    return names


NAMES = _read(_TABLE)


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


Patch = tuple[Any, str, Callable[[Any], Any]]  # owner, attribute, what makes the new of the old one


@contextmanager
def patched(*patches: Patch) -> Iterator[None]:
    """Have attributes of classes and modules changed while the block runs."""
    with ExitStack() as undo:
        for owner, name, change in patches:
            own, before = vars(owner).get(name), getattr(owner, name)
            after, is_own = change(before), name in vars(owner)
            if isinstance(after, FunctionType):
                update_wrapper(after, before)
            setattr(owner, name, staticmethod(after) if isinstance(own, staticmethod) else after)
            undo.callback(*((setattr, owner, name, own) if is_own else (delattr, owner, name)))
        yield


def patch(path: str, change: Callable[[Any], Any]) -> Patch:
    """The Patch that changes what `path` names."""
    _, owner, *_ = _holders(path)
    return private(owner), path[len(owner) + 1 :], change


def standing_in(path: str, ours: Callable[..., Any]) -> Patch:
    """The Patch by which `ours` is called for what `path` names, and is given that first."""

    def around(original: Any) -> Any:
        def stand_in(*args: Any, **kwargs: Any) -> Any:
            return ours(original, *args, **kwargs)

        return stand_in

    return patch(path, around)


# What to do where a torch lacks what one of them needs, if not to take another torch.
_INSTEAD = {
    "--mode compiled": "use torch {}, or --mode boundary --backend inductor, which needs less"
}


def check_names(*users: str) -> list[str]:
    """Refuse where this torch lacks what one of `users` needs; else what will be missing."""
    missing = []
    for user in users:
        lacking = [name for name in NAMES[user] if not name.is_there]
        if needed := [name for name in lacking if not name.loses]:
            listed = ", ".join(f"{name} ({name.serves})" for name in needed)
            hint = _INSTEAD.get(user, "use a torch that dumpcmp is tested with: {}")
            raise CaptureError(
                f"torch {torch.__version__} has no {listed}, which {user} needs",
                hint=hint.format(TESTED),
            )
        missing += [f"torch {torch.__version__} has no {name}: {name.loses}" for name in lacking]
    return missing


def is_there(path: str) -> bool:
    """Whether this torch has all that is listed of `path`."""
    return all(name.is_there for some in NAMES.values() for name in some if name.path == path)


def _if_there(path: str) -> Any:
    """What the name at `path` stands for; None where `check_names` will refuse."""
    name = PrivateName(path, "")
    return name.find() if name.is_there else None


# Those that are needed for each value, looked up once: importing this module raises nothing.
DisableTorchFunction = _if_there("torch._C:DisableTorchFunction")
DisableTorchDispatch = _if_there("torch._C:_DisableTorchDispatch")
NO_DISPATCH = _if_there("torch._C:_disabled_torch_dispatch_impl")
dispatch_keys = _if_there("torch._C:_dispatch_keys")
num_function_modes = _if_there("torch._C:_len_torch_function_stack")
weak_ref, free_weak_ref = (
    _if_there(f"torch:UntypedStorage.{name}") for name in ("_weak_ref", "_free_weak_ref")
)
compiling, tracing = (
    _if_there(f"torch._guards:{name}.try_get") for name in ("CompileContext", "TracingContext")
)
jit_tracing_state = _if_there("torch._C:_get_tracing_state")
dispatch_mode = _if_there("torch._C:_get_dispatch_mode")
PROXY_MODE = _if_there("torch._C:_TorchDispatchModeKey.PROXY")
fx_tracing = _if_there("torch.fx._symbolic_trace")
SUPPORTED_NODES: dict[type, Any] = _if_there("torch.utils._pytree:SUPPORTED_NODES") or {}
