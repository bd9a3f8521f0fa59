"""Makes of a ``.pt2`` a clean copy that torch may load: the graph alone, in plain words.

`torch.export.load` unpickles sample inputs and weights, maps compiled libraries, evaluates the text
of symbolic sizes, imports what a tree's context names, and executes source that it writes from the
names of a graph. So it never sees the user's file. What has no place in a plain program is refused
by name; the copy holds the checked graph, and empty tensors in place of all weights, which nobody
here needs.
"""

import ast
import io
import json
import re
import warnings
import zipfile
from pathlib import Path
from string import ascii_letters, digits
from typing import Any, BinaryIO

import torch

from dumpcmp.nouns.errors import ProgramFileError
from dumpcmp.pytorch.plain_files import open_plain

_LIMIT = 1 << 30  # bytes of one entry that is read
_AGAIN = "export the model again with torch.export.save, without custom objects"
_MODEL, _SAMPLES = "models/model.json", "data/sample_inputs/"
CONFIGS = ("data/weights/model_weights_config.json", "data/constants/model_constants_config.json")
_FORBIDDEN = (
    (re.compile(r"data/constants/(opaque_obj|custom_obj)"), "a pickled object"),
    (re.compile(r"data/(weights|constants)/.*\.pt|serialized_\w+\.pt"), "pickles of an old format"),
    (re.compile(r"data/aotinductor/"), "compiled code"),
)
_LEAF = '[1, {"type": null, "context": null, "children_spec": []}]'
_NOTHING = {"sizes": [{"as_int": 0}], "strides": [{"as_int": 1}], "storage_offset": {"as_int": 0}}


def load_graph(path: Path) -> torch.export.ExportedProgram:
    """The program at `path`, of whose weights and constants there are no elements."""
    try:
        copy = clean_copy(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.export.load(copy)
    except ProgramFileError:
        raise
    except Exception as error:
        raise ProgramFileError(
            f"{path} is not a program that torch {torch.__version__} can load: {error}",
            hint="write it with torch.export.save(program, 'model.pt2')",
        ) from error


def clean_copy(path: Path) -> io.BytesIO:
    """The program at `path` without all that loading could execute; refused where it has any."""
    with open_plain(path) as file, zipfile.ZipFile(file) as archive:
        entries = _entries(path, archive, _size(file))
        for name, entry in entries.items():
            for pattern, what in _FORBIDDEN:
                if pattern.match(name):
                    raise _refused(path, entry.filename, f"{what}, which loading would execute")
            if name.startswith(_SAMPLES):
                _check_samples(path, archive, entry)
        configs = {name: _json(path, archive, entries, name) for name in CONFIGS}
        program = _json(path, archive, entries, _MODEL)
    for name, config in configs.items():
        configs[name] = _emptied(path, name, config)
    try:
        copied = _program(program)
    except ValueError as error:
        raise _refused(path, _MODEL, str(error)) from error
    return _written(copied, configs)


def _refused(path: Path, entry: str, why: str) -> ProgramFileError:
    return ProgramFileError(f"{path} is not loaded: its entry {entry} holds {why}", hint=_AGAIN)


def _size(file: BinaryIO) -> int:
    return file.seek(0, io.SEEK_END)


def _entries(path: Path, archive: zipfile.ZipFile, size: int) -> dict[str, zipfile.ZipInfo]:
    """The entries by their names below the root folder; torch stores them without compression."""
    total = 0
    for entry in archive.infolist():
        total += entry.file_size
        if total > size:
            why = f"more than it can: {total} bytes up to here, the file has {size}"
            raise _refused(path, entry.filename, why)
    return {
        entry.filename.partition("/")[2] or entry.filename: entry for entry in archive.infolist()
    }


def _check_samples(path: Path, archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> None:
    """Refuse sample inputs that ``weights_only=True`` would not load. They are not unpickled."""
    data = io.BytesIO(_read(path, archive, entry))
    try:
        with zipfile.ZipFile(data) as inner:
            _entries(path, inner, entry.file_size)
        data.seek(0)
        unsafe = torch.serialization.get_unsafe_globals_in_checkpoint(data)
    except (zipfile.BadZipFile, ValueError, RuntimeError) as error:
        raise _refused(path, entry.filename, "a pickle that is not of torch.save") from error
    if unsafe:
        raise _refused(
            path, entry.filename, f"a pickle of {unsafe[0]}, which loading would execute"
        )


def _read(path: Path, archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    if entry.file_size > _LIMIT:
        raise _refused(path, entry.filename, f"more than {_LIMIT >> 20} MiB")
    return archive.read(entry)


def _json(
    path: Path, archive: zipfile.ZipFile, entries: dict[str, zipfile.ZipInfo], name: str
) -> Any:
    if name not in entries:
        raise ValueError(f"it has no entry {name}")
    return json.loads(_read(path, archive, entries[name]))


def _emptied(path: Path, name: str, config: Any) -> dict[str, Any]:
    """The weights or constants of `config`, each as an empty tensor of its dtype."""
    payloads: dict[str, Any] = {}
    for number, (weight, payload) in enumerate(config["config"].items()):
        if payload.get("use_pickle") is not False or not payload.get("tensor_meta"):
            entry = f"{Path(name).parent}/{payload.get('path_name')}"
            raise _refused(path, entry, "a pickle (use_pickle), which loading would execute")
        meta = payload["tensor_meta"]
        kept = {key: meta[key] for key in ("dtype", "requires_grad", "layout")}
        payloads[weight] = {
            "path_name": f"{'weight' if 'weights' in name else 'tensor'}_{number}",
            "is_param": bool(payload["is_param"]),
            "use_pickle": False,
            "tensor_meta": {**kept, **_NOTHING, "device": {"type": "cpu", "index": None}},
        }
    return {"config": payloads}


def _written(program: Any, configs: dict[str, Any]) -> io.BytesIO:
    from torch.export.pt2_archive import PT2ArchiveWriter  # and half of torch's compiler with it

    copy, samples = io.BytesIO(), io.BytesIO()
    torch.save(((), {}), samples)
    with PT2ArchiveWriter(copy) as writer:
        for name, config in configs.items():
            writer.write_string(name, json.dumps(config))
            for payload in config["config"].values():
                writer.write_bytes(f"{Path(name).parent}/{payload['path_name']}", b"")
        writer.write_string(_MODEL, json.dumps(program))
        writer.write_bytes(f"{_SAMPLES}model.pt", samples.getvalue())
    copy.seek(0)
    return copy


def _program(program: dict[str, Any]) -> dict[str, Any]:
    """The program's graph with checked words, and without its trees, guards and notes."""
    module = program["graph_module"]
    signature = {"inputs": [], "outputs": [], "in_spec": _LEAF, "out_spec": _LEAF}
    return {
        **{key: program[key] for key in ("opset_version", "range_constraints", "schema_version")},
        "verifiers": program.get("verifiers", []),
        "torch_version": str(torch.__version__),
        "guards_code": [],
        "graph_module": {
            "graph": _checked(module["graph"]),
            "signature": _checked(module["signature"]),
            "module_call_graph": [
                {"fqn": "", "signature": {**signature, "forward_arg_names": None}}
            ],
            "metadata": {},
            "treespec_namedtuple_fields": {},
        },
    }


_WORDS_OF_FLOATS = ("Infinity", "-Infinity", "NaN")
_PATH = r"[\w.@<>]*"
_MODULE_STACK = re.compile(rf"({_PATH},{_PATH},{_PATH})(;{_PATH},{_PATH},{_PATH})*", re.ASCII)
_WORD = re.compile(r"[\w.]*", re.ASCII)  # cannot end or begin anything in Python source
_TARGET = re.compile(
    r"torch\.ops\.\w+\.\w+(\.\w+)?|_operator\.\w+|math\.\w+|torch\.(sym|_sym)_\w+", re.ASCII
)


def _checked(thing: Any, key: str = "") -> Any:
    """`thing` with every text in it checked by the `key` that it stands under."""
    if isinstance(thing, list):
        return [_checked(each, key) for each in thing]
    if isinstance(thing, dict):
        return {_key(name, key): _inside(name, value) for name, value in thing.items()}
    if not isinstance(thing, str) or key in ("as_string", "as_strings"):
        return thing  # texts that are arguments: written as literals
    if key in ("as_float", "as_floats") and thing in _WORDS_OF_FLOATS:
        return thing
    if key == "expr_str":
        return _expression(thing)
    if not (_TARGET if key in ("target", "as_operator") else _WORD).fullmatch(thing):
        raise ValueError(f"{thing[:80]!r}, which is no name of a graph")
    return thing


def _key(name: str, key: str) -> str:
    return name if key == "as_string_to_argument" else str(_checked(name))


def _inside(name: str, value: Any) -> Any:
    if name != "metadata":
        return _checked(value, name)
    kept = {"stack_trace": str(value["stack_trace"])} if "stack_trace" in value else {}
    stack = str(value.get("nn_module_stack", ""))
    return {**kept, "nn_module_stack": stack} if _MODULE_STACK.fullmatch(stack) else kept


_FUNCTIONS = (
    "Abs Add And BitwiseFn_bitwise_and BitwiseFn_bitwise_or CeilToInt CleanDiv Eq Equality "
    "FloatTrueDiv Float FloorDiv FloorToInt Ge GreaterThan Gt Identity Integer IntTrueDiv "
    "IsNonOverlappingAndDenseIndicator Le LessThan Lt Max Min Mod ModularIndexing Mul Ne Not Or "
    "Piecewise PythonMod Rational RoundDecimal RoundToInt StrictGreaterThan StrictLessThan Symbol "
    "ToFloat TruncToFloat TruncToInt Unequality Where ceiling floor"
)
_SPELLED = frozenset(ascii_letters + digits + "_.+-")  # names of symbols, and floats
_LONGEST = 4000  # characters of an expression
_HIGHEST = 64  # exponent


def _expression(text: str) -> str:
    """A symbolic size, which torch will evaluate: arithmetic of symbols, small enough to end."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body if len(text) <= _LONGEST else None
    except SyntaxError:
        tree = None
    if not _is_size(tree):
        raise ValueError(f"{text[:80]!r}, which is no symbolic size")
    return text


def _is_size(node: ast.AST | None, powers: bool = True) -> bool:
    """Whether `node` is plain arithmetic; powers are of what has none inside."""
    match node:
        case ast.Constant(value=value):
            return isinstance(value, int | float)
        case ast.Name(id=name):
            return _WORD.fullmatch(name) is not None and not name.startswith("_")
        case ast.UnaryOp(operand=operand):
            return _is_size(operand, powers)
        case (
            ast.BinOp(left=base, op=ast.Pow(), right=exponent)
            | ast.Call(func=ast.Name(id="Pow" | "PowByNatural"), args=[base, exponent], keywords=[])
        ):
            return powers and _is_size(base, powers=False) and _is_exponent(exponent)
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() | ast.Mult() | ast.Div(), right=right):
            return _is_size(left, powers) and _is_size(right, powers)
        case ast.BinOp(left=left, op=ast.FloorDiv() | ast.Mod(), right=right):
            return _is_size(left, powers) and _is_size(right, powers)
        case ast.Compare(left=left, comparators=others):
            return all(_is_size(each, powers) for each in (left, *others))
        case ast.Call(func=ast.Name(id="Symbol" | "Float"), args=[ast.Constant(value=str(word))]):
            return set(word) <= _SPELLED and _are_flags(node.keywords)
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
            return name in _FUNCTIONS.split() and all(_is_size(a, powers) for a in arguments)
    return False


def _are_flags(keywords: list[ast.keyword]) -> bool:
    """Assumptions of a symbol or the precision of a number, such as ``integer=True``."""
    return all(
        word.arg and isinstance(word.value, ast.Constant) and word.value.value in range(65)
        for word in keywords
    )


def _is_exponent(node: ast.AST) -> bool:
    match node:
        case ast.UnaryOp(operand=operand):
            return _is_exponent(operand)
        case ast.Constant(value=int(value)):
            return value <= _HIGHEST
        case ast.Call(func=ast.Name(id="Integer" | "Rational"), args=arguments, keywords=[]):
            return all(map(_is_exponent, arguments))
    return False
