"""Marks the nodes that are values of ops, while AOTAutograd traces and passes rewrite the graph."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree
from torch.utils.weak import WeakIdKeyDictionary, WeakIdRef

from dumpcmp.nouns.key import Slot
from dumpcmp.pytorch.names import private
from dumpcmp.pytorch.trees import Slots, slots_of
from dumpcmp.taps.inductor.graph_values import GraphValue, merged
from dumpcmp.taps.modes.traced import Mark, Traced
from dumpcmp.taps.recording.calls import arguments_of
from dumpcmp.taps.recording.functions import Function, in_order

MARK = "dumpcmp"  # in Node.meta: the Marks of the node


def op_of(graph: Traced, node: fx.Node) -> int | None:
    """The op that `node` of an AOT or post-grad graph belongs to.

    A forward node remembers dynamo's node; a backward node has autograd's number of the
    forward node whose gradient it computes.
    """
    prefixes = {id(body): prefix for body, prefix in graph.bodies.items()}
    sources = node.meta.get("from_node")
    while sources:
        source = sources[-1]
        name = prefixes.get(source.node_info.graph_id, "") + source.name
        if name in graph.index and not source.from_node:
            return graph.index[name]
        sources = source.from_node
    marks: list[Mark] | None = node.meta.get(MARK)
    return marks[0].op if marks else graph.sequence.get(node.meta.get("seq_nr", -1))


def op_near(graph: Traced, node: fx.Node) -> int | None:
    """The op that `node` or its nearest user belongs to: sums of gradients belong to none.

    Of what only leaves the graph, such as the sum of a shared weight's gradients, the op of what
    it was computed from.
    """
    waiting = deque([node])
    seen = {node}
    while waiting:
        each = waiting.popleft()
        found = op_of(graph, each)
        if found is not None:
            return found
        new = [user for user in each.users if user not in seen]
        seen.update(new)
        waiting.extend(new)
    sources = (op_of(graph, source) for source in node.all_input_nodes)
    return next((number for number in sources if number is not None), None)


class Marking:
    """The Marks of one graph of dynamo: put on while it is traced, kept on through the passes."""

    def __init__(self, graph: Traced) -> None:
        self._graph = graph
        self._parameters: set[Any] = set()  # traced ones: their gradients are not ours
        self._given: set[Any] = set()  # arguments, as autograd knows them
        self._gradients: dict[Any, list[Mark]] = {}
        self._began = 0  # autograd's number when the present node began
        self._arguments: tuple[Any, ...] = ()  # of the present node
        self._traced = _TracedTensors()

    # While AOTAutograd traces dynamo's graph

    def before(self, node: fx.Node, args: Any, kwargs: Any) -> None:
        """Mark the inputs of dynamo's `node`, which may change them in place."""
        number = self._graph.number_of(node)
        if number is not None:
            self._began = _sequence_number()
            function = self._graph.ops[number].function
            self._arguments = in_order(function, args)
            self._mark_all(number, _inputs_of(function, self._arguments, kwargs))

    def after(self, node: fx.Node, result: object) -> None:
        """Mark the outputs of dynamo's `node`, which gave `result`."""
        if isinstance(node.meta.get("example_value"), nn.Parameter):
            self._parameters.add(WeakIdRef(result))
        elif node.op == "placeholder" and isinstance(result, Tensor):
            self._given.add(_differentiated(result))
        place = self._graph.grafted.get(node.name)
        if place is not None and isinstance(result, Tensor):
            self._mark_all(place.op, [(str(place.slot), result)])
        number = self._graph.number_of(node)
        if number is not None:
            made = range(self._began, _sequence_number())
            self._graph.sequence.update(dict.fromkeys(made, number))
            changes = self._graph.ops[number].function.returns_nothing
            given = self._arguments[0] if changes else result
            others = {place.slot for place in self._graph.grafted.values() if place.op == number}
            found = slots_of("output", given)
            self._mark_all(number, [each for each in found if each[0] not in others])

    def _mark_all(self, number: int, found: Slots) -> None:
        """Mark the traced nodes of the tensors in `found` as slots of op `number`."""
        for name, tensor in found:
            slot = Slot(name)
            self._traced.mark(tensor, [Mark(number, slot)])
            if tensor.requires_grad and WeakIdRef(tensor) not in self._parameters:
                self._watch_gradient(tensor, Mark(number, slot.gradient))

    def _watch_gradient(self, tensor: Tensor, mark: Mark) -> None:
        """Put `mark` on the gradient of `tensor`, once autograd traces it.

        Autograd runs the hook with the whole gradient, as it does on an eager run. To that of an
        argument of the graph others may add: it is watched when the graph runs.
        """
        which = _differentiated(tensor)
        if which in self._given or _traced_node(tensor) is None:
            return
        marks = self._gradients.get(which)
        if marks is None:
            marks = self._gradients[which] = []
            hooked: Any = tensor
            hooked.register_hook(lambda gradient: self._mark_gradient(gradient, marks))
        marks.append(mark)

    def _mark_gradient(self, gradient: Tensor | None, marks: list[Mark]) -> None:
        """Mark a gradient; of one of several outputs that nobody took there is none."""
        if gradient is not None:
            self._traced.mark(gradient, marks)

    def synced(self, tensor: Tensor) -> None:
        """Torch has brought `tensor` up to date with what was written to its memory."""
        self._traced.synced(tensor)

    def values(self) -> list[GraphValue]:
        """What dynamo's graph computes with, whether a kernel stores it or not."""
        return merged(self._traced.values.values())

    # While Inductor rewrites the graph

    def known(self, nodes: fx.Graph) -> list[Known]:
        """The marked `nodes` of a graph, before passes change it."""
        return [
            Known(node.name, _kind(node), node.meta[MARK], tuple(_uses(node)))
            for node in nodes.nodes
            if node.meta.get(MARK)
        ]

    def restore(self, nodes: fx.Graph, before: Iterable[Known]) -> None:
        """Give the Marks of nodes that passes removed to what took their place."""
        present = {node.name: node for node in nodes.nodes}
        for known in before:
            if known.name in present:
                continue
            heir = self._rewritten(known, nodes) or _successor(known, present)
            if heir is not None:
                marks = heir.meta.setdefault(MARK, [])
                marks += [mark for mark in known.marks if mark not in marks]

    def _rewritten(self, known: Known, nodes: fx.Graph) -> fx.Node | None:
        """The one new node that says it was made of the op whose node vanished: its result."""
        ops = {mark.op for mark in known.marks if mark.slot.is_output}
        unmarked = [node for node in nodes.nodes if not node.meta.get(MARK)]
        alike = [node for node in unmarked if _kind(node) == known.kind]
        found = [node for node in alike if op_of(self._graph, node) in ops]
        inner = {source for node in found for source in node.all_input_nodes}
        results = [node for node in found if node not in inner]
        return results[0] if len(results) == 1 else None


def _inputs_of(function: Function, args: tuple[Any, ...], kwargs: Any) -> Slots:
    """The input slots; symbolic sizes are left out, since to read one would fix it."""
    symbolic = (torch.SymInt, torch.SymFloat)
    args, kwargs = pytree.tree_map_only(symbolic, lambda _: 0, (args, kwargs))
    return arguments_of(args, kwargs, function.positions)[0]


class _TracedTensors:
    """Puts Marks on the nodes of traced tensors, as torch makes them.

    Functionalization turns writes into new nodes, and replays the views of what was written to
    when they are next used: until then the node of such a view has a value of before. To bring it
    up to date ourselves would put nodes elsewhere into the graph, and have Inductor write other
    kernels. So its Marks wait until torch does it; if something is written before that, the value
    that was marked is nowhere in the graph.
    """

    def __init__(self) -> None:
        self.values: dict[fx.Node, GraphValue] = {}  # by traced node
        self._synced: Any = WeakIdKeyDictionary()  # writes that there were when it was up to date
        self._waiting: Any = WeakIdKeyDictionary()  # writes that there were, and the Marks

    def mark(self, tensor: Tensor, marks: list[Mark]) -> None:
        num_writes = _num_writes(tensor)
        if not num_writes or self._synced.get(tensor) == num_writes:
            self._mark(tensor, marks)
            return
        before, waiting = self._waiting.get(tensor, (num_writes, []))
        kept = waiting if before == num_writes else []
        self._waiting[tensor] = num_writes, [*kept, *marks]

    def synced(self, tensor: Tensor) -> None:
        num_writes = self._synced[tensor] = _num_writes(tensor)
        before, waiting = self._waiting.pop(tensor, (num_writes, []))
        if before == num_writes:
            self._mark(tensor, waiting)

    def _mark(self, tensor: Tensor, marks: list[Mark]) -> None:
        node = _traced_node(tensor) if marks else None
        if node is not None:
            node.meta.setdefault(MARK, []).extend(marks)
            self.values.setdefault(node, GraphValue.of(tensor)).marks.extend(marks)


def _num_writes(tensor: Tensor) -> int:
    """How often the memory of `tensor` was written to while it was traced."""
    if not isinstance(tensor, private("torch._subclasses.functional_tensor:FunctionalTensor")):
        return 0
    return int(private("torch:_functionalize_mutation_counter")(tensor.elem))


def _traced_node(tensor: Tensor) -> fx.Node | None:
    """The node of the graph being traced whose value `tensor` has; None outside of tracing."""
    mode = private("torch.fx.experimental.proxy_tensor:get_proxy_mode")()
    if mode is None:
        return None
    if isinstance(tensor, private("torch._subclasses.functional_tensor:FunctionalTensor")):
        tensor = private("torch:_from_functional_tensor")(tensor.elem)
    slot_of = private("torch.fx.experimental.proxy_tensor:get_proxy_slot")
    proxy = slot_of(tensor, mode.tracer, None, lambda slot: slot.proxy)
    return None if proxy is None else proxy.node


def _sequence_number() -> int:
    """How many autograd nodes this thread has made."""
    return int(private("torch._C._autograd:_get_sequence_nr")())


def _differentiated(tensor: Tensor) -> Any:
    """What `tensor` is to autograd: what an in-place op makes of it is another one.

    AOTAutograd traces a graph more than once; the id of a tensor that is gone may come again.
    """
    made_by = tensor.grad_fn
    return WeakIdRef(tensor) if made_by is None else (made_by._sequence_nr(), tensor.output_nr)


class Use(NamedTuple):
    """Where a node was used: which argument of which node."""

    user: str
    target: Any
    position: int
    num_arguments: int


class Known(NamedTuple):
    """A marked node before the passes ran, and what is needed to find who took its place."""

    name: str
    kind: str  # shape and dtype
    marks: list[Mark]
    uses: tuple[Use, ...]


def _kind(node: fx.Node) -> str:
    """Shape and dtype of the value of `node`, as text: to compare symbols would fix them."""
    value = node.meta.get("val")
    return f"{list(value.shape)} {value.dtype}" if isinstance(value, Tensor) else ""


def _uses(node: fx.Node) -> Iterator[Use]:
    for user in node.users:
        arguments = pytree.tree_leaves((user.args, user.kwargs))
        for position, argument in enumerate(arguments):
            if argument is node:
                yield Use(user.name, user.target, position, len(arguments))


def _successor(known: Known, nodes: dict[str, fx.Node]) -> fx.Node | None:
    """The node that all former users of a vanished node now take in its stead.

    It stands for the vanished node, with the right value or, where a pass is at fault, a wrong
    one. None where the users are gone too, disagree, or take a value of another kind.
    """
    found = {_now_at(use, nodes) for use in known.uses} - {None}
    node = found.pop() if len(found) == 1 else None
    return node if node is not None and _kind(node) == known.kind else None


def _now_at(use: Use, nodes: dict[str, fx.Node]) -> fx.Node | None:
    user = nodes.get(use.user)
    if user is None or user.target != use.target:
        return None
    arguments = pytree.tree_leaves((user.args, user.kwargs))
    found = arguments[use.position] if len(arguments) == use.num_arguments else None
    return found if isinstance(found, fx.Node) else None
