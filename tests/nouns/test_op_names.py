"""What is known of an op is known of it in every spelling: ``f``, ``torch.f`` and ``aten.f``."""

from __future__ import annotations

import ast
import importlib
import inspect
import operator
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import dumpcmp
from dumpcmp.align.synonyms import gives_views
from dumpcmp.comparing.binding import defaults_of, unnamed
from dumpcmp.comparing.spelling import Calling, asked_dtype, plain_argument
from dumpcmp.nouns.arithmetic import variance_beside, weight_name
from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.nouns.given import CallInputs
from dumpcmp.nouns.key import Key, Op, Slot
from dumpcmp.nouns.op_names import OpSet, OpTable, canonical, plain_name, writes_in_place
from dumpcmp.nouns.record import Call, Record
from dumpcmp.replay.arguments import CallArguments
from dumpcmp.replay.cancelling import norm_arguments
from dumpcmp.replay.choosing import chooses
from dumpcmp.replay.kinds import KINDS
from dumpcmp.replay.listed import function_named
from dumpcmp.replay.recorded import told_by
from dumpcmp.replay.rowwise import unfit_for_rows
from dumpcmp.replay.unreplayable import Unreplayable
from dumpcmp.taps.modes.aten import aten_function
from dumpcmp.taps.recording.functions import Function, function_of

PACKAGE = Path(dumpcmp.__file__).parent
PYTHON = {"torch": torch, "torch.Tensor": torch.Tensor, "torch.nn.functional": F}
PREFIXED = {"special_": torch.special, "linalg_": torch.linalg, "fft_": torch.fft}


@cache
def overloads() -> dict[str, list[str]]:
    """The ops of aten, and their overloads."""
    found: dict[str, list[str]] = defaultdict(list)
    for name in torch._C._dispatch_get_all_op_names():
        namespace, _, rest = name.partition("::")
        op, _, overload = rest.partition(".")
        if namespace == "aten" and not op.endswith("_backward"):
            found[op].append(overload or "default")
    return found


def by_python(op: str) -> list[str]:
    """Where Python has a function of the name of an op of aten."""
    found = [f"{room}.{op}" for room, holder in PYTHON.items() if callable(getattr(holder, op, 0))]
    for prefix, holder in PREFIXED.items():
        word = op.removeprefix(prefix)
        if word != op and hasattr(holder, word):
            found.append(f"{holder.__name__}.{word}")
    return found


# Ops of aten that Python has a function for, each with the ways to spell it in full.
TARGETS = {
    op: [*by_python(op), f"aten.{op}", *(f"aten.{op}.{one}" for one in found)]
    for op, found in overloads().items()
    if by_python(op)
}
NAMES = sorted({*KINDS, *(op for op in TARGETS if not writes_in_place(op))})


def test_every_way_to_reach_an_op_has_its_name() -> None:
    assert len(TARGETS) > 1000
    others = {op: {plain_name(t) for t in targets} for op, targets in TARGETS.items()}
    assert {op: names for op, names in others.items() if len(names) > 1} == {}
    in_place = [op for op in TARGETS if writes_in_place(op) and not op.startswith("__")]
    assert [op for op in in_place if plain_name(op[:-1]) != plain_name(op)] == []


@pytest.mark.parametrize("name_of", [plain_name, canonical])
def test_a_name_is_its_own_name(name_of: Callable[[str], str]) -> None:
    names = {name_of(target) for targets in TARGETS.values() for target in targets}
    assert {name: name_of(name) for name in names if name_of(name) != name} == {}
    assert [name for name in NAMES if canonical(plain_name(name)) != canonical(name)] == []


def test_what_is_recorded_has_the_name_of_what_was_called() -> None:
    overridable = torch.overrides.get_overridable_functions()
    eager = [function_of(func) for some in overridable.values() for func in some]
    eager += [
        function_of(f) for f in vars(operator).values() if callable(f) and hasattr(f, "__name__")
    ]
    for op in (
        "add_",
        "__and__",
        "_to_copy",
        "index_put_",
        "native_layer_norm",
        "split_with_sizes",
    ):
        packet = getattr(torch.ops.aten, op)
        eager += [aten_function(getattr(packet, overload)) for overload in packet.overloads()]
    named = [one for one in eager if one.name and plain_name(one.target) in KINDS]
    assert len(named) > 500
    apart = {
        one.target: one.name for one in named if plain_name(one.name) != plain_name(one.target)
    }
    assert apart == {}


ALIKE = """
    absolute arccos arccosh arcsin arcsinh arctan arctan2 arctanh divide true_divide fix greater
    greater_equal less less_equal multiply negative not_equal subtract special.digamma special.erf
    special.erfc special.erfinv special.exp2 special.expit special.expm1 special.gammaln special.i0
    special.log1p special.logit special.psi special.round special.sinc special.xlogy
"""


@pytest.mark.parametrize("alias", ALIKE.split())
def test_aliases_compute_the_same(alias: str) -> None:
    name = plain_name(f"torch.{alias}")
    assert name != alias.replace(".", "_")
    one, other = operator.attrgetter(alias)(torch), getattr(torch, name)
    given = (torch.rand(64) + 1 if "cosh" in alias else torch.rand(64), torch.rand(64))
    try:
        found = one(given[0]), other(given[0])
    except TypeError:
        found = one(*given), other(*given)
    assert torch.equal(*found)


# Tables


SPEAKS_OF_OPS = re.compile(
    r"OpSet|WorkSet|OpTable|\((op: Op|key: Key|call: Call|function: str|target: str)\b"
)


@cache
def modules() -> list[ModuleType]:
    """Those with tables of ops, or with functions that are asked for one."""
    speaking = [path for path in files() if SPEAKS_OF_OPS.search(path.read_text())]
    places = [path.relative_to(PACKAGE.parent).with_suffix("") for path in speaking]
    return [importlib.import_module(".".join(place.parts)) for place in places]


def files() -> list[Path]:
    """All of the package, but for what names functions by signatures of its own."""
    found = sorted(PACKAGE.rglob("*.py"))
    return [path for path in found if path.parts[len(PACKAGE.parts)] not in OTHERS]


OTHERS = ("partitioning", "importing", "archive")


def tables() -> dict[str, OpSet | OpTable[Any]]:
    found: dict[int, tuple[str, OpSet | OpTable[Any]]] = {}
    for module in modules():
        for name, held in vars(module).items():
            if isinstance(held, OpSet | OpTable):
                found.setdefault(id(held), (f"{module.__name__}.{name}", held))
    return dict(found.values())


def answer(table: OpSet | OpTable[Any], function: str) -> object:
    return function in table if isinstance(table, OpSet) else table.get(function)


def test_every_table_of_ops_answers_alike_for_all_spellings() -> None:
    asked = tables()
    assert len(asked) > 60
    told = [(op, targets[at]) for op, targets in TARGETS.items() for at in (0, -1)]
    told += [(op, f"{before}aten.{op}") for op in NAMES for before in ("", "backward.")]
    apart = [
        (name, spelling)
        for name, table in asked.items()
        for op, spelling in told
        if answer(table, op) != answer(table, spelling)
    ]
    assert apart == []


def test_a_namespace_of_somebody_else_has_its_own_ops() -> None:
    own = {name for name, table in tables().items() for op in table if answer(table, f"mine.{op}")}
    assert own == set()


# Files whose lists of names are no tables of ops that anybody asks.
NO_TABLES = {
    "align/port/lines.py": "a sentence",
    "comparing/closeup.py": "names of coordinates",
    "replay/kinds.py": "lines of which an OpTable is made",
    "replay/onnx_ops/moving.py": "words of attributes of ONNX",
    "replay/onnx_ops/pooling.py": "words of attributes of ONNX",
    "report/csvfile.py": "names of columns",
    "report/earlier.py": "names of columns",
    "summary/packing.py": "names of numbers in a Summary",
    "summary/summary.py": "names of numbers in a Summary",
    "taps/inductor/views.py": "asked for nodes of aten's graphs alone, and says what runs them",
    "taps/recording/functions.py": "how Python orders operands; what is recorded is in that order",
}
NO_OPS = frozenset(
    """
    bfloat16 bool byte char complex device dim double dtype float half int item layout long numel
    shape short size stride
    """.split()  # noqa: SIM905
)


def listed(node: ast.AST) -> list[str]:
    """The words of a literal: a list of strings, the keys of a dict, or words in one string."""
    match node:
        case ast.Tuple(elts=found) | ast.List(elts=found) | ast.Set(elts=found):
            constants: list[ast.expr | None] = list(found)
        case ast.Dict(keys=keys):
            constants = keys
        case ast.Constant(value=str(text)) if all(map(str.isidentifier, text.split())):
            return text.split()
        case _:
            return []
    return [c.value for c in constants if isinstance(c, ast.Constant) and isinstance(c.value, str)]


def loose_tables(tree: ast.AST) -> Iterator[str]:
    """The lists of ops in `tree` that answer for the one spelling in which they are written.

    So does a comparison of a recorded name with a word.
    """
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in TABLES:
            continue
        words = listed(node) if isinstance(node, LITERALS) else []
        ops = [word for word in words if word in TARGETS and word not in NO_OPS]
        if len(ops) > 1 and 2 * len(ops) >= len(words):
            yield " ".join(words)
            continue
        if isinstance(node, ast.Compare) and isinstance(node.comparators[0], ast.Constant):
            yield from [ast.unparse(node)] * ast.unparse(node.left).endswith("op.function")
        waiting += ast.iter_child_nodes(node)


LITERALS = (ast.Tuple, ast.List, ast.Set, ast.Dict, ast.Constant)
TABLES = ("OpSet", "WorkSet", "OpTable")


def test_every_list_of_ops_is_a_table_that_knows_spellings() -> None:
    found = defaultdict(list)
    for path in files():
        for table in loose_tables(ast.parse(path.read_text())):
            found[path.relative_to(PACKAGE).as_posix()].append(table)
    assert {place: some for place, some in found.items() if place not in NO_TABLES} == {}
    assert [place for place in NO_TABLES if place not in found] == []


# Predicates

# What else they are asked for.
REST: dict[str, tuple[Any, ...]] = {
    "dtype": ("float32", "bfloat16", "float16"),
    "device": ("cpu", "cuda:0"),
    "value": (Slot("input.0"), Slot("input.1"), Slot("output.0")),
    "gradient": (Slot("grad_input.0"), None),
    "slot": (Slot("input.0"), Slot("input.out")),
}
ANSWERS = ("bool", "Arithmetic", "frozenset[str]", "tuple[str, str]", "OpSet")
STRINGS = ("function", "target")  # what a string is called that names an op
SCORES = {"input.0": object()}, {"output.0": object(), "output.1": object()}

# Where the order of arguments is another one for aten, and the answer is about that.
CONVENTIONS = {
    ("weight_name", "embedding"): "aten takes the weight first",
    ("weight_name", "batch_norm"): "aten takes weight and bias before the moments",
    ("variance_beside", "batch_norm"): "aten takes weight and bias before the moments",
    ("is_moment_of_before", "batch_norm"): "aten takes weight and bias before the moments",
    ("_moments", "batch_norm"): "aten takes weight and bias before the moments",
}
NO_PREDICATES = {
    "dumpcmp.nouns.op_names.is_dispatched": "asks for the spelling itself",
}


def key(function: str, slot: str) -> Key:
    return Key("M", 0, Op(f"layer/{function}"), 1, slot)


def call(function: str, arguments: str = "{}") -> Call:
    return Call("M", 0, Op(f"layer/{function}"), 0, 0, target=function, arguments=arguments)


def slot_beside(function: str) -> list[object]:
    found = [variance_beside(key(function, f"input.{number}")) for number in range(5)]
    return [one and one.slot for one in found]


# Those whose answer is a name, or that are asked for a call and more.
BY_HAND: dict[str, Callable[[str], object]] = {
    "plain_name": plain_name,
    "canonical": canonical,
    "weight_name": lambda f: [weight_name(key(f, f"input.{number}")) for number in range(5)],
    "variance_beside": slot_beside,
    "told_by": told_by,
    "chooses": lambda f: chooses(call(f), *SCORES),
    "unfit_for_rows": lambda f: unfit_for_rows(call(f), {"input.0": (8, 4)}, {}),
    "Calling.function": lambda f: Calling(call(f), CallInputs((), {}, ()), None).function,
    "plain_argument": lambda f: plain_argument("dim", (1, 0), of_matrix(f)),
    "asked_dtype": lambda f: asked_dtype(of_matrix(f)),
    "defaults_of": lambda f: defaults_of(f, "").get("start"),
    "unnamed": lambda f: list(unnamed(CallInputs(("ij->i",), {}, ()), f)),
    "Function.draws": lambda f: Function(f, random=True).draws((), {}),
}


def of_matrix(function: str) -> Calling:
    first = Record(key(function, "input.0"), 0, "float32", (2, 3))
    return Calling(call(function), CallInputs((), {}, ()), first)


def predicates() -> dict[str, Callable[[str], object]]:
    """Every function of the package that is asked for an op, or for a call or value of one."""
    found = dict(BY_HAND)
    for module in modules():
        for name, held in vars(module).items():
            function = inspect.unwrap(held) if callable(held) else held
            if not inspect.isfunction(function) or function.__module__ != module.__name__:
                continue
            signature = inspect.signature(function)
            parameters = list(signature.parameters.values())
            answers = getattr(signature.return_annotation, "__name__", signature.return_annotation)
            others = [parameter.name for parameter in parameters[1:]]
            if not parameters or answers not in ANSWERS or not REST.keys() >= set(others):
                continue
            first = parameters[0]
            kind = getattr(first.annotation, "__name__", first.annotation)
            is_name = kind == "str" and first.name in STRINGS
            if is_name or kind in ("Op", "Key", "Call"):
                full = f"{module.__name__}.{name}"
                found[full] = partial(asked, held, kind, [REST[other] for other in others])
    return {name: one for name, one in found.items() if name not in NO_PREDICATES}


def asked(held: Any, kind: str, rest: list[tuple[Any, ...]], function: str) -> list[object]:
    """All that a predicate says of calls of `function`, and of what they take."""
    firsts: list[Any] = [function]
    if kind == "Op":
        firsts = [Op(f"layer/{function}")]
    elif kind == "Call":
        firsts = [call(function)]
    elif kind == "Key":
        firsts = [key(function, slot) for slot in ("input.0", "input.1", "input.3", "output.0")]
    return [outcome(held, first, *more) for first in firsts for more in product(*rest)]


def outcome(held: Any, *args: Any) -> object:
    try:
        return held(*args)
    except DumpcmpError as error:
        return type(error)


def test_every_predicate_answers_alike_for_an_op_of_aten() -> None:
    found = predicates()
    assert {"dumpcmp.nouns.arithmetic.arithmetic_of", "dumpcmp.align.synonyms.gives_views",
            "dumpcmp.taps.recording.functions.is_target"} <= found.keys()  # fmt: skip
    apart = {
        (name.rpartition(".")[2], op)
        for name, ask in found.items()
        for op in NAMES
        if ask(op) != ask(f"aten.{op}")
    }
    assert apart == CONVENTIONS.keys()


def test_every_predicate_on_targets_answers_alike() -> None:
    """In place or not is a part of what is called, and no spelling of it."""
    found = {
        name: ask
        for name, ask in predicates().items()
        if name.startswith("dumpcmp.taps.recording.functions.") or name.endswith("writes_in_place")
    }
    assert len(found) > 4
    apart = [
        (name, targets)
        for name, ask in found.items()
        for targets in TARGETS.values()
        if any(ask(target) != ask(targets[0]) for target in targets)
    ]
    assert apart == []


def replayed(target: str) -> object:
    """What decides how a call is run again, or its elements are followed: no rule sees more."""
    try:
        found = function_named(target)
    except Unreplayable:
        return None
    return found.name, found.kind, found.changes_first


def test_an_op_is_run_again_alike_however_it_was_reached() -> None:
    told = {
        op: {replayed(target) for target in targets} - {None} for op, targets in TARGETS.items()
    }
    assert sum(map(bool, told.values())) > 500
    assert {op: found for op, found in told.items() if len(found) > 1} == {}


@pytest.mark.parametrize(
    ("function", "target", "given"),
    [
        ("batch_norm", "aten.batch_norm.default", (0, 3, 4, 1, 2)),
        ("instance_norm", "aten.instance_norm.default", (0, 3, 4, 1, 2)),
        ("layer_norm", "aten.layer_norm.default", (0, 1, 2, 3)),
        ("group_norm", "aten.group_norm.default", (0, 1, 2, 3)),
    ],
)
def test_norms_are_given_the_same_in_either_order(
    function: str, target: str, given: tuple[int, ...]
) -> None:
    words = tuple(f"argument {number}" for number in given)
    python = function_named(f"torch.nn.functional.{function}")
    ours = norm_arguments(python, CallArguments(tuple(sorted(words)), {}))
    theirs = norm_arguments(function_named(target), CallArguments(words, {}))
    assert ours == theirs and len(ours) == len(given)


# What torch itself knows


def test_views_are_those_that_torch_says_share_memory() -> None:
    """By schemas: what gives out memory of its first argument alone, and writes to nothing."""
    views = set()
    for op, found in overloads().items():
        for overload in found:
            schema = getattr(getattr(torch.ops.aten, op), overload)._schema
            gives = any(one.alias_info for one in schema.returns)
            aliases = [one for one in schema.arguments if one.alias_info]
            is_first = bool(aliases) and aliases == schema.arguments[:1]
            if gives and is_first and not aliases[0].alias_info.is_write:
                views.add(op)
    listed_ops = {op for op in views if op in KINDS}
    assert len(listed_ops) > 35
    assert {op for op in listed_ops if not gives_views(f"aten.{op}")} == NO_VIEWS.keys()


NO_VIEWS = {
    **dict.fromkeys(("_conj", "conj", "_neg_view"), "shows other elements"),
    **dict.fromkeys(("positive", "resolve_conj", "resolve_neg", "to"), "the tensor, or a copy"),
    "lift_fresh": "the tensor itself",
}
