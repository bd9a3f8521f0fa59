"""Records what a program leaves behind: what ``dump --certify`` compares a capture with.

Run as a file this is the witness from outside: a process that runs the program as it is, imports
nothing of dumpcmp, and writes down at the end what came of it. The capture records the same of its
own run, with the same code. It imports torch only when the program does.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import importlib
import importlib.util
import io
import json
import os
import random
import re
import runpy
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import fields, is_dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

# Notes are a list of findings in the order in which they came: a kind, a label that no other of
# that kind has, and a digest.
KERNEL, CALLS, BINARY, START, OUTPUT, GRADIENT, STATE, STDOUT, ENDING = KINDS = (
    "kernel", "sequence of kernels", "binary", "start", "output", "gradient", "state", "stdout",
    "ending",
)  # fmt: skip
WitnessNote = tuple[str, str, str]
CodeNames = dict[str, Any]  # of a module of generated code
UNWRITTEN = "unwritten"  # the digest of memory that nothing writes

_CALL_ATTRIBUTE = "_compiled_call_impl"  # of nn.Module: what its __call__ runs, where it is set
_KERNEL_CODE = re.compile(
    r"^(\w+) = async_compile\.\w+\([^\n]*?'''.*?'''[^\n]*\)$", re.MULTILINE | re.DOTALL
)
_COMMENT_LINE = re.compile(r"^\s*(#.*)?\n", re.MULTILINE)
_COMMENT = re.compile(r"  # .*$", re.MULTILINE)
_DEEPEST = 8  # level of containers inside containers


class WitnessNotes:
    """What one run of a program leaves behind."""

    def __init__(self, *, compiled: bool, compiles_roots: bool = False) -> None:
        self.compiled = compiled  # outputs are those of generated code, else those of modules
        self.compiles_roots = compiles_roots  # of a program that compiles nothing
        self.findings: list[WitnessNote] = []
        self.num_codes = 0
        self.is_repeated = True  # whether what ran is all seen: CUDA graphs replay unseen
        self._numbers: dict[int, int] = {}  # of generated code, by its names: two may have a path
        self._backward: set[int] = set()  # code that is given what forward left for it
        self._loaded: list[tuple[int, ModuleType]] = []
        self._given: dict[int, list[Any]] = {}  # to code that is no backward, when it last ran
        self._num_runs: dict[int | str, int] = {}  # of generated code, and of modules by name
        self._root: Any = None  # the module that was called last
        self._lock = threading.RLock()

    def note(self, kind: str, label: str, digest: str) -> None:
        with self._lock:
            self.findings.append((kind, label, digest))

    def note_all(self, kind: str, label: str, value: object) -> None:
        """Note every tensor and plain value inside of `value`."""
        for name, leaf in leaves(value):
            self.note(kind, f"{name} of {label}" if name else label, digest_of(leaf))

    # Generated code

    def load(self, source: str, module: ModuleType) -> None:
        """Note a piece of generated code: its kernels, and how it calls them."""
        with self._lock:
            number = self._numbers[id(vars(module))] = self.num_codes
            self.num_codes += 1
        graph = f"graph {number} ({kind_of(source)})"
        if kind_of(source) == "backward":
            self._backward.add(number)
        for name, kernel in kernels_of(source):
            self.note(KERNEL, f"{name} of {graph}", text_digest(kernel))
        self.note(CALLS, graph, text_digest(calls_of(source)))
        self._loaded.append((number, module))

    def run(
        self, names: CodeNames, inputs: Sequence[Any], outputs: object, left_out: Sequence[int]
    ) -> None:
        """Note one run of generated code, which is told by its `names`."""
        number = self._numbers.get(id(names), -1)
        count = self._num_runs[number] = self._num_runs.get(number, -1) + 1
        run = f"run {count} of graph {number}"
        given = list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]
        for position, value in enumerate(given):
            label = f"output {position} of {run}"
            if position in left_out:
                self.note(OUTPUT, label, UNWRITTEN)
            else:
                self.note_all(OUTPUT, label, value)
        if number not in self._backward:
            self._given[number] = list(inputs)

    def begin(self, names: CodeNames, inputs: Sequence[Any]) -> None:
        """Note what the first run of all generated code begins with."""
        if not self._num_runs:
            self.note_all(START, f"graph {self._numbers.get(id(names), -1)}", list(inputs))

    def replays(self) -> None:
        """Code runs inside of a CUDA graph, where it cannot be looked at."""
        self.is_repeated = False

    # Modules

    def begin_call(self, module: Any, args: Any, kwargs: Any) -> None:
        """Note the state and the arguments that the first call of a module begins with."""
        if module is not self._root:
            self._note_state()
            self._root = module
            if not any(kind == START for kind, _, _ in self.findings):
                self.note_all(START, type(module).__name__, (args, kwargs))
                for name, value in (*module.named_parameters(), *module.named_buffers()):
                    self.note(START, name, digest_of(value))

    def end_call(self, module: Any, result: object) -> None:
        name = type(module).__name__
        count = self._num_runs[name] = self._num_runs.get(name, -1) + 1
        self.note_all(OUTPUT, f"call {count} of {name}", result)

    def _note_state(self) -> None:
        """Note parameters, buffers and gradients of the module that was called last."""
        if self._root is None:
            return
        name = type(self._root).__name__
        count = self._num_runs.get(name, -1)
        for path, value in (*self._root.named_parameters(), *self._root.named_buffers()):
            label = f"{path} of {name} after call {count}"
            self.note(STATE, label, digest_of(value))
            if value.is_leaf and value.grad is not None:
                self.note(GRADIENT, label, digest_of(value.grad))

    # The end

    def end(self, error: BaseException | None, stdout: str) -> None:
        """Note what is there when the program has ended."""
        self._note_state()
        self._root = None
        for number, inputs in self._given.items():
            for position, value in enumerate(inputs):
                label = f"input {position} of graph {number}"
                self.note_all(STATE, label, value)
                if is_tensor(value) and value.is_leaf and value.grad is not None:
                    self.note(GRADIENT, label, digest_of(value.grad))
        self._given.clear()
        for number, module in self._loaded:
            for name, digest in binaries_of(module):
                self.note(BINARY, f"{name} of graph {number}", digest)
        self._loaded.clear()
        self.note(STDOUT, "stdout", text_digest(stdout))
        self.note(ENDING, "ending", "" if error is None else f"{type(error).__name__}: {error}")

    def to_json(self) -> dict[str, Any]:
        return {
            "findings": self.findings,
            "num_codes": self.num_codes,
            "is_repeated": self.is_repeated,
        }


# Digests


def text_digest(text: str) -> str:
    """The digest of a text."""
    return hashlib.blake2b(text.encode("utf-8", "backslashreplace"), digest_size=16).hexdigest()


def is_tensor(value: object) -> bool:
    """Whether `value` is a tensor, in a process that may not have imported torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def digest_of(value: Any) -> str:
    """Of a tensor its kind, shape and bytes; of anything else what it is as text."""
    if not is_tensor(value):
        return text_digest(f"{type(value).__name__} {value!r}")
    torch = sys.modules["torch"]
    if hasattr(value, "__tensor_flatten__"):
        inner = [digest_of(getattr(value, name)) for name in value.__tensor_flatten__()[0]]
        return text_digest(" ".join([type(value).__name__, *inner]))
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch(), torch.no_grad():
        return _tensor_digest(torch, value.detach())


def _tensor_digest(torch: Any, tensor: Any) -> str:
    said = f"{tensor.dtype} {tuple(tensor.shape)} {tensor.layout}"
    if tensor.layout is not torch.strided:
        return digest_of(tensor.to_dense())
    if tensor.is_quantized:
        tensor = tensor.int_repr()
    lying = tensor.resolve_conj().resolve_neg().cpu().contiguous()
    nbytes = lying.numel() * lying.element_size()
    if not nbytes:
        return text_digest(said)
    memory = (ctypes.c_char * nbytes).from_address(lying.data_ptr())
    return hashlib.blake2b(
        memory, digest_size=16, person=text_digest(said)[:16].encode()
    ).hexdigest()


def leaves(value: object, name: str = "", depth: int = 0) -> Iterator[tuple[str, object]]:
    """The tensors and plain values inside of `value`, with their paths.

    What is neither is known by its type alone, and so is what lies too deep.
    """
    if is_tensor(value) or value is None or isinstance(value, (bool, int, float, complex, str)):
        yield name, value
        return
    inner = _parts(value) if depth < _DEEPEST else None
    if inner is None:
        yield name, type(value)
        return
    for word, part in inner:
        yield from leaves(part, f"{name}.{word}" if name else word, depth + 1)


def _parts(value: object) -> list[tuple[str, object]] | None:
    if isinstance(value, dict):
        return [(str(key), part) for key, part in value.items()]
    if isinstance(value, (list, tuple)):
        return [(str(i), part) for i, part in enumerate(value)]
    if is_dataclass(value) and not isinstance(value, type):
        return [(f.name, getattr(value, f.name, None)) for f in fields(value)]
    return None


# Generated code


def kind_of(source: str) -> str:
    """Whether generated code is for a forward, a backward or for inference alone."""
    found = re.search(r"^# AOT ID: \['\w*?_?(forward|backward|inference)'\]", source, re.MULTILINE)
    return found.group(1) if found else "graph"


def kernels_of(source: str) -> list[tuple[str, str]]:
    """The names of the kernels in generated code, and the code of each, to the byte."""
    return [(found.group(1), found.group()) for found in _KERNEL_CODE.finditer(source)]


def calls_of(source: str) -> str:
    """Generated code without its kernels, and without comments: those count graphs and lines."""
    return _COMMENT.sub("", _COMMENT_LINE.sub("", _KERNEL_CODE.sub(r"\1", source)))


def binaries_of(module: ModuleType) -> Iterator[tuple[str, str]]:
    """The compiled binaries of the Triton kernels that generated code has run."""
    for name, kernel in list(vars(module).items()):
        for launcher in getattr(kernel, "launchers", None) or ():
            if isinstance(found := getattr(launcher, "cache_hash", None), str):
                yield name, found  # of its source and of the options that were found the fastest
            break  # several, until a run has found that out


Unwrap = Callable[[str], "str | None"]  # code as the program's own, None where it is not


@contextmanager
def code_loads(evidence: WitnessNotes, unwrap: Unwrap, watches_runs: bool) -> Iterator[None]:
    """Note what generated code is loaded, and, with `watches_runs`, what it takes and gives."""

    def install(codecache: ModuleType) -> Callable[[], None]:
        cache = codecache.PyCodeCache
        original = vars(cache)["load_by_key_path"]

        def load(cls: Any, key: str, path: str, *args: Any, **kwargs: Any) -> Any:
            module = original.__get__(None, cls)(key, path, *args, **kwargs)
            if hasattr(module, "call") and (source := unwrap(Path(path).read_text())) is not None:
                evidence.load(source, module)
                if watches_runs:
                    module.call = _watched(evidence, vars(module), module.call)
            return module

        cache.load_by_key_path = classmethod(load)
        return lambda: setattr(cache, "load_by_key_path", original)

    with after_import("torch._inductor.codecache", install):
        yield


def _watched(
    evidence: WitnessNotes, names: CodeNames, call: Callable[..., Any]
) -> Callable[..., Any]:
    """`call`, the entry of generated code, with what it takes and gives noted."""
    torch = sys.modules["torch"]

    def watched(args: list[Any]) -> Any:
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            evidence.replays()
            return call(args)
        inputs = list(args)
        evidence.begin(names, inputs)
        outputs = call(args)
        evidence.run(names, inputs, outputs, ())
        return outputs

    return watched


# Modules


class Door:
    """Stands in for `nn.Module._compiled_call_impl`, which every module call asks for.

    A forward hook would have torch leave its fast paths, and dynamo would trace it; this is seen
    by neither. Only calls that are inside of no other are noted.
    """

    def __init__(self, evidence: WitnessNotes, inner: Any) -> None:
        self._evidence, self._inner = evidence, inner
        self._here = threading.local()
        self._torch = sys.modules["torch"]
        self._compiled: dict[int, tuple[Any, Any]] = {}

    def __get__(self, module: Any, owner: type | None = None) -> Any:
        if self._torch.compiler.is_dynamo_compiling():
            return None
        if module is None:
            return self
        inner = self._inner
        run = inner.__get__(module, owner) if hasattr(inner, "__get__") else None
        run = run or module.__dict__.get(_CALL_ATTRIBUTE)
        if getattr(self._here, "is_inside", False):
            return run
        return self._noting(module, run or module._call_impl)

    def __set__(self, module: Any, call: Any) -> None:
        module.__dict__[_CALL_ATTRIBUTE] = call

    def _noting(self, module: Any, run: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if not self._evidence.compiles_roots:
                self._evidence.begin_call(module, args, kwargs)
            self._here.is_inside = True
            try:
                if self._evidence.compiles_roots:
                    return self._run_compiled(module, args, kwargs)
                result = run(*args, **kwargs)
            finally:
                self._here.is_inside = False
            self._evidence.end_call(module, result)
            return result

        return call

    def _run_compiled(self, module: Any, args: Any, kwargs: Any) -> Any:
        """Run `module` as torch.compile makes it, with nothing of ours on nn.Module meanwhile."""
        if id(module) not in self._compiled:
            self._compiled[id(module)] = module, self._torch.compile(module)
        setattr(self._torch.nn.Module, _CALL_ATTRIBUTE, self._inner)
        try:
            return self._compiled[id(module)][1](*args, **kwargs)
        finally:
            setattr(self._torch.nn.Module, _CALL_ATTRIBUTE, self)


@contextmanager
def module_calls(evidence: WitnessNotes) -> Iterator[None]:
    """Note what the outermost calls of modules give."""

    def install(modules: ModuleType) -> Callable[[], None]:
        owner = modules.Module
        before = vars(owner)[_CALL_ATTRIBUTE]
        setattr(owner, _CALL_ATTRIBUTE, Door(evidence, before))
        return lambda: setattr(owner, _CALL_ATTRIBUTE, before)

    with after_import("torch.nn.modules.module", install, once="torch"):
        yield


# Imports, stdout


@contextmanager
def after_import(
    name: str, install: Callable[[ModuleType], Callable[[], None]], once: str = ""
) -> Iterator[None]:
    """Have `install` change the module `name` once it is imported, and undo it at the end.

    It is imported when the program does so: `once` is the module whose import must be over.
    """
    with ExitStack() as undo:

        def changed() -> None:
            undo.callback(install(sys.modules[name]))

        if (once or name) in sys.modules:
            changed()
        else:
            finder = _Finder(once or name, changed)
            sys.meta_path.insert(0, finder)
            undo.callback(finder.leave)
        yield


class _Finder:
    """Finds one module as all others would, and says when it has been imported."""

    def __init__(self, name: str, imported: Callable[[], None]) -> None:
        self._name, self._imported = name, imported

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        if name != self._name:
            return None
        self.leave()
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            loader, imported = spec.loader, self._imported
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                imported()

            loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

    def leave(self) -> None:
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]


class Tee:
    """Hands on what is written, and keeps it."""

    def __init__(self, stream: Any, is_terminal: bool | None = None) -> None:
        self._stream, self._is_terminal = stream, is_terminal
        self.written = io.StringIO()

    def write(self, text: str) -> int:
        self.written.write(text)
        return int(self._stream.write(text))

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def isatty(self) -> bool:
        return bool(self._stream.isatty()) if self._is_terminal is None else self._is_terminal

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def stdout_kept(is_terminal: bool | None = None) -> Iterator[Tee]:
    """Keep what is printed while the block runs."""
    before, tee = sys.stdout, Tee(sys.stdout, is_terminal)
    sys.stdout = tee
    try:
        yield tee
    finally:
        sys.stdout = before


# Programs


def run_script(script: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Run a file as Python itself would, with `arguments` in sys.argv; gives its globals."""
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    return runpy.run_path(script, run_name="__main__")


def run_module(module: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Run a module as ``python -m`` would; gives its globals."""
    sys.argv = [module, *arguments]
    sys.path.insert(0, str(Path.cwd()))
    return runpy.run_module(module, run_name="__main__", alter_sys=True)


def model_and_inputs(made: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]] | None:
    """A model and what to call it with, out of what a factory returned; None if it is neither."""
    from torch import Tensor, nn

    if isinstance(made, nn.Module):
        made = (made, getattr(made, "example_inputs", None))
    match made:
        case (nn.Module() as model, dict() as kwargs):
            return model, (), kwargs
        case (nn.Module() as model, (*args,)):
            return model, tuple(args), {}
        case (nn.Module() as model, Tensor() as tensor):
            return model, (tensor,), {}
    return None


def run_model(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], backward: bool) -> None:
    """Call `model`, and run backward from the sum of all that it returns."""
    result = model(*args, **kwargs)
    if backward:
        tensors = [leaf for _, leaf in leaves(result) if is_tensor(leaf)]
        sum(tensor.sum() for tensor in tensors if tensor.requires_grad).backward()  # type: ignore[attr-defined]


def run_factory(name: str, backward: bool) -> None:
    """Call the model that ``pkg.mod:build`` makes on its example inputs."""
    module, _, function = name.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    made = model_and_inputs(getattr(importlib.import_module(module), function)())
    if made is None:
        raise TypeError(f"{name} gave no model with its inputs")
    run_model(*made, backward)


def seed_everything(seed: int) -> None:
    """Seed the generators of Python, numpy and torch, and ask torch for determinism."""
    import numpy as np
    import torch

    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(True, warn_only=True)


@contextmanager
def alone(evidence: WitnessNotes) -> Iterator[None]:
    """Have `evidence` gathered of a run that nothing else looks at."""
    with ExitStack() as ends:
        if evidence.compiled:
            ends.enter_context(code_loads(evidence, lambda source: source, watches_runs=True))
        if evidence.compiles_roots or not evidence.compiled:
            ends.enter_context(module_calls(evidence))
        yield


def error_of(program: Callable[[], object]) -> BaseException | None:
    """Run `program`; what it raised, an exit without trouble aside."""
    try:
        program()
    except SystemExit as end:
        return end if end.code else None
    except BaseException as raised:
        return raised
    return None


def main(words: Sequence[str]) -> None:
    """Run the program that `words` ask for, and write down what came of it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--report", required=True)
    for flag in ("--compiled", "--compile-roots", "--terminal", "--backward"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--kind", choices=("script", "module", "factory"))
    parser.add_argument("program", nargs=argparse.REMAINDER)
    asked = parser.parse_args(words)
    name, *arguments = asked.program
    programs: dict[str, Callable[[], object]] = {
        "script": lambda: run_script(name, arguments),
        "module": lambda: run_module(name, arguments),
        "factory": lambda: run_factory(name, asked.backward),
    }
    owner = os.getpid()
    if asked.seed is not None:
        seed_everything(asked.seed)
    evidence = WitnessNotes(compiled=asked.compiled, compiles_roots=asked.compile_roots)
    with stdout_kept(asked.terminal) as tee, alone(evidence):
        error = error_of(programs[asked.kind])
        if os.getpid() != owner:  # a child that the program forked ends as it would
            raise error or SystemExit(0)
        evidence.end(error, tee.written.getvalue())
    Path(asked.report).write_text(json.dumps(evidence.to_json()))


if __name__ == "__main__":
    if sys.path[:1] == [str(Path(__file__).resolve().parent)]:
        del sys.path[0]
    main(sys.argv[1:])
