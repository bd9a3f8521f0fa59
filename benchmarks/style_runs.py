"""Runs a style in a process of its own, captured or not, and tells all that it was seen to do.

``python -m benchmarks.style_runs MODE,... STYLE...`` prints one line of JSON for each run.
Processes are forked from one that has imported torch, and of dumpcmp what captures in these modes.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import io
import json
import os
import random
import re
import select
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
import torch._dynamo  # which optimizers import, and takes seconds
from torch import Tensor, nn
from torch.nn.modules import module as nn_module

from benchmarks import styles

_autograd: Any = torch._C._autograd
SECONDS = 180.0  # that a run may take
UNCAPTURED = "uncaptured"
Seen = dict[str, Any]


def observed(name: str, mode: str) -> Seen:
    """Run a style in forked processes, one a rank, by `mode` or uncaptured."""
    size = styles.RANKS.get(name, 1)
    with tempfile.TemporaryDirectory() as room:

        def run(rank: int) -> Seen:
            os.environ["STYLE_STORE"] = room
            if size > 1:
                os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size)}
            return _run(styles.STYLES[name], mode, f"{room}/d")

        begun = [_forked(partial(run, rank)) for rank in range(size)]
        each = [_heard(*one) for one in begun]
    return each[0] if size == 1 else {f"rank {n}": one for n, one in enumerate(each)}


def _forked(run: Callable[[], Any]) -> tuple[int, int]:
    """Run a function in a forked process: its number, and where what it returns can be read."""
    heard, told = os.pipe()
    pid = os.fork()
    if pid:
        os.close(told)
        return pid, heard
    status = 1
    try:
        os.close(heard)
        text = json.dumps(run())
        with os.fdopen(told, "w") as pipe:
            pipe.write(text)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _heard(pid: int, pipe: int) -> Any:
    """What a forked process returned; it is ended if it takes too long."""
    parts = []
    with os.fdopen(pipe, "rb", buffering=0) as file:
        while select.select([file], [], [], SECONDS)[0]:
            if not (part := file.read(1 << 16)):
                break
            parts.append(part)
        else:
            os.kill(pid, signal.SIGKILL)
            parts = []
    _, status = os.waitpid(pid, 0)
    if not parts:
        return {"died": f"status {status}, {os.urandom(4).hex()}"}  # the same as no other run
    return json.loads(b"".join(parts))


def _run(style: styles.Style, mode: str, path: str) -> Seen:
    """What a style did in this process."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell may have ignored
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    torch.set_num_threads(1)
    with (
        warnings.catch_warnings(record=True) as said,
        contextlib.redirect_stdout(io.StringIO()) as printed,
    ):
        warnings.simplefilter("always")
        before, patched = _process(), _patched()
        with _captured(mode, path):
            try:
                result: Any = style()
            except BaseException as error:
                result = error
            numbers = _random_states()
        after = _process()
    seen: Seen = {"result": told(result), "stdout": printed.getvalue(), "random numbers": numbers}
    seen["process"] = after
    seen["left behind"] = [name for name, one in _patched().items() if one is not patched[name]]
    seen["changed"] = [name for name, value in after.items() if value != before[name]]
    seen["modules"] = [_of_module(module) for module in styles.WATCHED]
    program = [one for one in said if one.category.__module__.partition(".")[0] != "dumpcmp"]
    seen["warnings"] = sorted(
        f"{w.category.__name__} {_plain(str(w.message))} {w.filename}:{w.lineno}" for w in program
    )
    remarks = [one for one in said if one not in program]
    seen["remarks"] = sorted({_plain(str(one.message)) for one in remarks})
    return seen


def _captured(mode: str, path: str) -> contextlib.AbstractContextManager[Any]:
    if mode == UNCAPTURED:
        return contextlib.nullcontext()
    import dumpcmp

    return dumpcmp.capture(None, path, mode=mode, backward=True)


def _random_states() -> list[str]:
    states = (torch.get_rng_state().numpy().tobytes(), repr(random.getstate()).encode(),
              repr(np.random.get_state()).encode())  # fmt: skip
    return [_digest(state) for state in states]


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()


_PATCHED = (
    (torch, "compile"), (torch.overrides, "handle_torch_function"),
    (torch.overrides, "has_torch_function"), (torch.autograd.Function, "apply"),
    (Tensor, "backward"), (Tensor, "__torch_function__"), (nn.Module, "__call__"),
    (nn.Module, "_call_impl"), (nn.Module, "_compiled_call_impl"), (signal, "signal"),
)  # fmt: skip


def _process() -> dict[str, Any]:
    """The state of torch and of Python that a capture could leave changed."""
    hooks = [name for name in vars(nn_module) if name.startswith("_global_") and "hooks" in name]
    return {
        "function modes": torch._C._len_torch_function_stack(),
        "dispatch modes": torch._C._len_torch_dispatch_stack(),
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "dtype": str(torch.get_default_dtype()),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "anomalies": torch.is_anomaly_enabled(),
        "saved hooks": _autograd._saved_tensors_hooks_is_enabled(),
        "threads": torch.get_num_threads(),
        "limit": sys.getrecursionlimit(),
        "depth": styles.depth_left(),
        "signals": [_plain(str(signal.getsignal(n))) for n in (signal.SIGINT, signal.SIGUSR1)],
        **{name: len(getattr(nn_module, name)) for name in hooks},
    }


def _patched() -> dict[str, Any]:
    """What a capture stands in for while it runs."""
    return {f"{at.__name__}.{name}": vars(at)[name] for at, name in _PATCHED}


def _of_module(root: nn.Module) -> Any:
    """Weights, gradients, hooks and attributes of a module and of all in it."""
    found = []
    for path, module in root.named_modules():
        held = vars(module)
        hooks = {
            k: len(v) for k, v in held.items() if k.endswith("hooks") and hasattr(v, "__len__")
        }
        weights = {**module._parameters, **module._buffers}
        found.append(
            [path, type(module).__name__, module.training, hooks, sorted(map(_plain, held)),
             {name: _of_weight(tensor) for name, tensor in weights.items()}]
        )  # fmt: skip
    return found


def _of_weight(tensor: Tensor | None) -> Any:
    if tensor is None:
        return None
    hooks = [
        len(getattr(tensor, n, None) or ())
        for n in ("_backward_hooks", "_post_accumulate_grad_hooks")
    ]
    grad = tensor.grad if tensor.is_leaf else None
    return [told(tensor), None if grad is None else told(grad), hooks]


def _plain(text: str) -> str:
    """`text` without addresses, names of temporary files and identifiers drawn by lot."""
    temporary = re.escape(tempfile.gettempdir())
    return re.sub(rf"0x[0-9a-f]+|{temporary}/\S+|\w{{8}}(-\w{{4}}){{3}}-\w{{12}}", "…", text)


def told(value: Any, depth: int = 0) -> Any:
    """`value` as JSON: tensors by all that tells them apart, bits included."""
    if depth > 12:
        return "deep"
    if isinstance(value, Tensor):
        return _of_tensor(value)
    if isinstance(value, BaseException):
        return _of_error(value)
    if isinstance(value, np.ndarray):
        return ["ndarray", str(value.dtype), list(value.shape), _digest(value.tobytes())]
    if isinstance(value, Mapping):
        return [type(value).__name__, [[str(k), told(v, depth + 1)] for k, v in value.items()]]
    if isinstance(value, (list, tuple, set)):
        return [type(value).__name__, [told(v, depth + 1) for v in value]]
    return f"{type(value).__name__} {_plain(repr(value))}"


def _of_error(error: BaseException) -> Any:
    """An exception, with the functions of the program that it went through."""
    frames = traceback.extract_tb(error.__traceback__)
    places = [f"{f.name}:{f.lineno}" for f in frames if f.filename == styles.__file__]
    causes = [type(error.__cause__).__name__, type(error.__context__).__name__]
    return ["raised", type(error).__name__, _plain(str(error)), places, causes]


def _of_tensor(tensor: Tensor) -> Any:
    kind = type(tensor).__name__
    facts = [kind, str(tensor.dtype), [str(n) for n in tensor.shape], str(tensor.layout),
             tensor.requires_grad, tensor.is_leaf, type(tensor.grad_fn).__name__]  # fmt: skip
    with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
        return [*facts, _bits(tensor if isinstance(tensor, styles.Wrapped) else tensor.detach())]


def _bits(tensor: Tensor) -> Any:
    local = getattr(tensor, "_local_tensor", None)
    if local is not None:
        return ["local", _bits(local)]
    if isinstance(tensor, styles.Wrapped):
        return ["enclosed", _bits(tensor.enclosed)]
    if tensor.is_nested:
        return [_bits(one) for one in tensor.unbind()]
    if tensor.layout is torch.sparse_coo:
        whole = tensor.coalesce()
        return [_bits(whole.indices()), _bits(whole.values())]
    if tensor.layout is torch.sparse_csr:
        return [_bits(tensor.crow_indices()), _bits(tensor.col_indices()), _bits(tensor.values())]
    if tensor.is_meta:
        return "meta"
    if tensor.is_quantized:
        return [_bits(tensor.int_repr()), str(tensor.q_scale())]
    plain = tensor.resolve_conj().resolve_neg()
    flat = plain.contiguous().reshape(-1).view(torch.uint8) if plain.numel() else plain.new_empty(0)
    return [list(tensor.stride()), _digest(flat.numpy().tobytes() if plain.numel() else b"")]


def first_difference(wanted: Any, seen: Any, at: str = "") -> str:
    """Where two trees of JSON differ first; empty where they do not."""
    if isinstance(wanted, dict) and isinstance(seen, dict):
        for key in {**wanted, **seen}:
            if found := first_difference(wanted.get(key), seen.get(key), f"{at}/{key}"):
                return found
        return ""
    if isinstance(wanted, list) and isinstance(seen, list):
        for number, (one, other) in enumerate(zip(wanted, seen, strict=False)):
            if found := first_difference(one, other, f"{at}/{number}"):
                return found
        return "" if len(wanted) == len(seen) else f"{at}: {len(wanted)} and {len(seen)} long"
    return "" if wanted == seen else f"{at}: {wanted!s:.60} and {seen!s:.60}"


def get_ready(mode: str) -> None:
    """Import what a run in `mode` imports, so that not every process has to."""

    def imported() -> list[str]:
        with tempfile.TemporaryDirectory() as room:
            _run(lambda: nn.Linear(2, 2)(torch.ones(2)), mode, f"{room}/d")
        return [name for name in sys.modules if name != "__main__"]

    for name in _heard(*_forked(imported)):
        importlib.import_module(name)


def main(modes: str, *names: str) -> None:
    """Run styles one after another, and tell of each run on a line of its own."""
    for mode in modes.split(","):
        get_ready(mode)
    for name in names:
        for mode in modes.split(","):
            print(json.dumps([name, mode, observed(name, mode)]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
