"""Follows the ops of dynamo's graph through Inductor into the code that it generates for them."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterable, Iterator, Set
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from dumpcmp.nouns.errors import CaptureError
from dumpcmp.nouns.key import Slot
from dumpcmp.pytorch.graph_text import graph_text
from dumpcmp.pytorch.names import check_names, patch, patched, private, standing_in
from dumpcmp.taps.inductor import tables, written
from dumpcmp.taps.inductor.generated import graphed
from dumpcmp.taps.inductor.grafted_nodes import put_in_graph
from dumpcmp.taps.inductor.marks import op_near, op_of
from dumpcmp.taps.inductor.pass_texts import PassTexts, observers
from dumpcmp.taps.inductor.single_calls import unrepeatable
from dumpcmp.taps.inductor.switches import Switches
from dumpcmp.taps.inductor.twin import lowered_again
from dumpcmp.taps.inductor.views import Sizes
from dumpcmp.taps.inductor.written import Written, is_outermost, lowering
from dumpcmp.taps.modes.traced import Mark, Traced, named
from dumpcmp.taps.recording.grafts import Grafts
from dumpcmp.taps.recording.models import Model

Original = Callable[..., Any]  # the function of Inductor's that one of ours stands in for
Pass = Callable[[fx.Graph], None]


class Provenance:
    """Looks on while graphs are compiled: marks the values of ops, and taps their buffers."""

    def __init__(
        self,
        where: Callable[[], tuple[Model, str] | None],
        quietly: Callable[[Callable[..., Any]], Callable[..., Any]],
        /,
        *,
        fusion: bool = True,
        realize: bool = False,
        twin: bool = False,
        switches: Switches | None = None,
    ) -> None:
        self.grafts: Grafts | None = None  # results in place of which others stand
        self.known: dict[str, Traced] = {}  # by digest, which generated code refers to
        self._where = where  # the model that runs now, and the module of it that is being called
        self._quietly = quietly  # what is compiled runs with nothing recorded but by the tap
        self._fusion, self._realize, self._twin = fusion, realize, twin
        self._tag = f"dumpcmp-{tables.SCHEMA}-{fusion:d}{realize:d}{twin:d}"
        self._switches = switches or Switches()
        if self._switches.off:
            self._tag += f"-{self._switches.words}"
        self._compilations = weakref.WeakKeyDictionary[object, tables.Compilation]()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Follow all that is compiled while the block runs."""
        check_names("--mode compiled")
        refuse_cpp_wrapper()
        config = private("torch.compiler.config")
        patches = [standing_in(path, ours) for path, ours in self._stand_ins().items()]
        patches += [*self._switches.patches(), *observers(self._passes_of_now)]
        if not self._fusion:
            most = "torch._inductor.codegen.cpp:CppScheduling.MAX_FUSED_KERNEL_ARGS_NUM"
            patches.append(patch(most, lambda _: -1))
        own = config.cache_key_tag

        def tuned(original: Original, filename: str) -> Any:
            """Kernels are the program's: which way is the fastest was measured once for both."""
            with config.patch(cache_key_tag=own):
                return original(filename)

        patches.append(
            standing_in("torch._inductor.runtime.autotune_cache:AutotuneCache._prepare_key", tuned)
        )
        with patched(*patches), config.patch(cache_key_tag=f"{own}{self._tag}"):
            yield

    def _stand_ins(self) -> dict[str, Original]:
        """What stands in for functions of torch, which each is given first."""
        scheduler = "torch._inductor.scheduler:Scheduler"
        wrapper = "torch._inductor.codegen.wrapper:PythonWrapperCodegen"
        shapes = "torch.fx.experimental.symbolic_shapes:PropagateUnbackedSymInts"
        found: dict[str, Original] = {
            "torch._inductor.compile_fx:compile_fx": self._compile_fx,
            f"{shapes}.run_node": self._trace,
            "torch.fx:Interpreter.run_node": self._trace_body,
            "torch:_sync": self._sync,
            "torch._inductor.compile_fx:_recursive_joint_graph_passes": self._joint_passes,
            "torch._inductor.graph:GraphLowering.run": self._lower,
            f"{wrapper}.generate_kernel_call": written.noting_kernel,
            f"{scheduler}.free_buffers": self._free_buffers,
            "torch._inductor.graph:GraphLowering.codegen": self._codegen,
            "torch._inductor.compile_fx:cudagraphify": graphed,
            "torch._inductor:aoti_load_package": _refuse_package,
        }
        if self._materializes:
            found[f"{scheduler}.can_buffer_be_removed_through_fusion"] = lambda *_: False
        return found

    @property
    def _materializes(self) -> bool:
        """Whether what is realised is also stored, if only one kernel uses it."""
        return not self._fusion or self._realize

    @property
    def _now(self) -> tables.Compilation | None:
        """The compilation that is under way; the same for the backward of its graph."""
        context = _tracing_context()
        return None if context is None else self._compilations.get(context)

    def _passes_of_now(self) -> PassTexts | None:
        return None if self._now is None else self._now.passes

    # The door of Inductor

    def _compile_fx(
        self, original: Original, model: Any, inputs: Any, inner_compile: Any = None, **rest: Any
    ) -> Any:
        """Compile with our passes. Inductor calls itself with them in force: we let that pass."""
        inner = inner_compile or inspect.signature(original).parameters["inner_compile"].default
        where = self._where()
        if rest.get("config_patches") or where is None:
            return original(model, inputs, inner, **rest)
        refuse_cpp_wrapper()
        context = _tracing_context()
        if context is not None and isinstance(model, fx.GraphModule):
            traced = named(model, *where)
            self._compilations[context] = tables.Compilation(traced)
            self._compilations[context].stages["original"] = graph_text(model)
            self.known[traced.digest] = traced
            if self.grafts is not None:
                put_in_graph(model, traced, self.grafts)
        patch, settings = private("torch._inductor.config:patch"), self._settings()
        with patch(settings):
            run = original(model, inputs, patch(settings)(inner), **rest)
        return self._quietly(run)

    def _settings(self) -> dict[str, Any]:
        config = private("torch._inductor.config")
        before, after = config.post_grad_custom_pre_pass, config.post_grad_custom_post_pass
        settings = {
            "post_grad_custom_pre_pass": self._passes(before, first=self._remember),
            "post_grad_custom_post_pass": self._passes(after, last=self._restore),
        }
        if config.triton.cudagraphs or config.custom_should_partition_ops:
            settings["graph_partition"] = (
                False  # a CUDA graph is of all that the tap knows, or none
            )
        if self._materializes:  # patterns put several ops into one call, such as mm and add
            settings |= {"inplace_buffers": False, "pattern_matcher": False}
        if not self._fusion:
            settings["max_fusion_size"] = 1
        return settings

    def _passes(self, theirs: Any, first: Pass | None = None, last: Pass | None = None) -> Any:
        """The user's own passes with ours before and behind them, which only look and mark.

        Its uuid is a part of cache keys; code that is cached belongs to the graph that it names.
        """
        base: Any = private("torch._inductor.custom_graph_pass:CustomGraphPass")
        if hasattr(theirs, "dumpcmp"):
            return theirs
        users = list(theirs) if isinstance(theirs, (list, tuple)) else [theirs] if theirs else []

        def uuid(_: Any) -> str | None:
            named = [user.uuid() if isinstance(user, base) else None for user in users]
            digest = "" if self._now is None else self._now.traced.digest
            return None if None in named else f"{self._tag}{digest}{named}"

        def run(_: Any, graph: fx.Graph) -> None:
            for each in filter(None, (first, *users, last)):
                each(graph)

        return type("Passes", (base,), {"dumpcmp": True, "__call__": run, "uuid": uuid})()

    def _joint_passes(
        self, original: Original, module: fx.GraphModule, *args: Any, **kwargs: Any
    ) -> fx.GraphModule:
        """Passes over forward and backward together, which drop aliases: keep their Marks.

        A custom pass of ours would have Inductor sort the graph, which it may not do otherwise.
        """
        now = self._now
        before = [] if now is None else now.marks.known(module.graph)
        if now is not None:
            now.stages.setdefault("aot", graph_text(module))
        changed: fx.GraphModule = original(module, *args, **kwargs)
        if now is not None:
            now.marks.restore(changed.graph, before)
            now.passes.cut()
        return changed

    def _remember(self, nodes: fx.Graph) -> None:
        if self._now is not None:
            self._now.before_passes = self._now.marks.known(nodes)

    def _restore(self, nodes: fx.Graph) -> None:
        """Mark what passes made; have values of ops stored with `realize`, all without fusion."""
        if self._now is not None:
            self._now.marks.restore(nodes, self._now.before_passes)
        stored: Iterable[fx.Node] = tables.bases_of(nodes) if self._realize else ()
        if not self._fusion:
            stored = filter(tables.is_computed, nodes.nodes)
        for node in stored:
            node.meta["inductor_realize_to_strides"] = True

    # AOTAutograd traces dynamo's graph by running it node by node, and bodies in it as well

    def _trace(self, original: Original, interpreter: Any, node: fx.Node) -> Any:
        now = self._now
        if now is None:
            return original(interpreter, node)
        if node.op not in ("placeholder", "output", "get_attr"):
            now.marks.before(node, *interpreter.fetch_args_kwargs_from_env(node))
        result = original(interpreter, node)
        now.marks.after(node, result)
        return result

    def _trace_body(self, original: Original, interpreter: Any, node: fx.Node) -> Any:
        now = self._now if type(interpreter) is fx.Interpreter else None
        if now is None or node.graph not in now.traced.bodies:
            return original(interpreter, node)
        return self._trace(original, interpreter, node)

    def _sync(self, original: Original, tensor: torch.Tensor) -> None:
        original(tensor)
        if self._now is not None:
            self._now.marks.synced(tensor)

    # Inductor lowers the post-grad graph and writes its code

    def _lower(self, original: Original, graph: Any, *args: Any) -> Any:
        """Some passes run after all custom ones: what they made is marked before it is lowered."""
        if not self._fusion and is_outermost(graph):
            self._restore(graph.module.graph)
        return original(graph, *args)

    def _free_buffers(self, original: Original, scheduler: Any) -> None:
        """Inductor frees what it no longer needs after each kernel: the moment to read values."""
        if self._now is not None and is_outermost(lowering()):
            for value in written.newly_written(scheduler):
                for line in self._lines(self._now, value):
                    lowering().wrapper_code.writeline(line)
        original(scheduler)

    def _lines(self, now: tables.Compilation, value: Written) -> Iterator[str]:
        """The line that reads `value`, if some op is waiting for it."""
        inside = {op_of(now.traced, node) for node in value.origins} - {None}
        now.kernels.setdefault(value.kernel, set()).update(inside)  # type: ignore[arg-type]
        now.note_kernel(value)
        if not value.is_readable:
            return
        sizes: Sizes = []
        readings, op, origin = [], None, value.origin
        backward = bool(lowering().is_backward)
        if origin is not None:
            readings, op = tables.readings_of(origin, sizes, backward), op_of(now.traced, origin)
        if origin is not None and not self._fusion and not readings:
            near = op_near(now.traced, origin)
            slot = Slot(f"{'grad_' if backward else ''}inner.{origin.name}")
            readings = [] if near is None else [([], [Mark(near, slot)])]
        if readings or self._twin:  # what is no op's value still vouches for its kernel
            now.tapped.append(tables.Tapped(value, op, readings))
            given = "".join(f", {_size_expression(size)}" for size in sizes)
            yield f"_dumpcmp({len(now.tapped) - 1}, {value.variable}{given})"

    def _codegen(self, original: Original, graph: Any) -> Any:
        """Write the code, and at its end the table of its taps, which holds the twin's code too."""
        if graph.aot_mode:
            _refuse_package()
        wrapper, kernels = original(graph)
        now = self._now
        if now is not None and hasattr(wrapper, "value") and is_outermost(graph):
            table = tables.table_of(now, graph)
            if self._twin:
                origins = (each.value.origin for each in now.tapped)
                stored = {origin.name for origin in origins if origin is not None}
                table = replace(table, twin=self._twin_code(now, original, graph, stored))
            now.begin_code()
            wrapper.value += table.written()
        return wrapper, kernels

    def _twin_code(
        self, now: tables.Compilation, codegen: Original, graph: Any, stored: Set[str]
    ) -> tables.TwinCode:
        nodes = graph.module.graph
        problem = unrepeatable(nodes)
        if problem:
            return tables.TwinCode(problem)
        now.begin_code()
        try:
            code = lowered_again(graph, codegen, tables.hidden(nodes, stored))
        except Exception as error:  # whatever Inductor raises: the program runs without a twin
            return tables.TwinCode(f"it cannot be compiled: {type(error).__name__}: {error}")
        return tables.TwinCode("", tables.TWIN + code, tables.lines_of(now.tapped))


def _tracing_context() -> object | None:
    """What stands for the graph that is being compiled, the same for its backward."""
    found: object | None = private("torch._guards:TracingContext").try_get()
    return found


def _size_expression(number: object) -> str:
    """A symbolic size as Python code over the variables of the generated code."""
    graph = lowering()
    expression = number.node.expr if isinstance(number, torch.SymInt) else number
    return str(graph.wrapper_code.codegen_python_sizevar(graph.sizevars.simplify(expression)))


def refuse_cpp_wrapper() -> None:
    """Raise if Inductor is set to write C++ instead of the Python code that the tap extends."""
    config = private("torch._inductor.config")
    for setting in ("cpp_wrapper", "fx_wrapper"):
        if getattr(config, setting, False):
            raise CaptureError(
                f"torch._inductor.config.{setting} is on: Inductor writes no Python code to tap",
                hint=f"turn {setting} off for this dump (unset TORCHINDUCTOR_{setting.upper()}), "
                "or use --mode boundary --backend inductor",
            )


def _refuse_package(*_: Any, **__: Any) -> None:
    raise CaptureError(
        "an AOTInductor package has no Python code to tap",
        hint="dump the program that it was made of, under torch.compile, with --mode compiled",
    )
