"""vLLM's plugin: captures the model in every worker, with request ids and positions.

vLLM loads it through the entry point ``vllm.general_plugins`` in each of its processes. It does
nothing unless DUMPCMP_SERVING_PATH is set. Only methods of worker and model runner are wrapped that
exist in both of vLLM's model runners, each on the one object that a process has.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import wraps
from typing import Any

from dumpcmp.serving.served_capture import ServedCapture, served_capture, wrapped

_SUFFIX = re.compile(r"-[0-9a-f]{8}$")
_PREPARING = ("_prepare_inputs", "prepare_inputs")  # of the first and the second model runner


def register() -> None:
    """Capture in this process, if the environment asks for it and it becomes a worker."""
    capture = served_capture()
    if capture is None:
        return
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    begin = WorkerWrapperBase.init_device  # by then there is a worker, and no model yet
    if getattr(begin, "of_dumpcmp", False):
        return  # plugins may be loaded twice

    @wraps(begin)
    def init_device(self: Any, *args: Any, **kwargs: Any) -> Any:
        watch_worker(self.worker, capture)
        return begin(self, *args, **kwargs)

    init_device.of_dumpcmp = True  # type: ignore[attr-defined]
    WorkerWrapperBase.init_device = init_device


def watch_worker(worker: Any, capture: ServedCapture) -> None:
    """Capture the model of `worker` once it is loaded, and while it runs requests."""

    def load_model(method: Any, *args: Any, **kwargs: Any) -> Any:
        found = method(*args, **kwargs)
        runner = worker.model_runner
        model = runner.get_model()
        logits = getattr(model, "logits_processor", None)  # which is called beside the model
        capture.begin(*(each for each in (model, logits) if each is not None))
        watch_runner(runner, model, capture)
        return found

    def execute_model(method: Any, *args: Any, **kwargs: Any) -> Any:
        with capture.running_requests():
            return method(*args, **kwargs)

    def shutdown(method: Any, *args: Any, **kwargs: Any) -> Any:
        capture.end()
        return method(*args, **kwargs)

    wrapped(worker, "load_model", load_model)
    wrapped(worker, "execute_model", execute_model)
    wrapped(worker, "shutdown", shutdown)


def watch_runner(runner: Any, model: Any, capture: ServedCapture) -> None:
    """Hear of dummy runs, of the requests whose tokens a batch has, and of those with logits."""
    logit_rows: list[tuple[str, int]] = []

    def dummy(method: Any, *args: Any, **kwargs: Any) -> Any:
        with capture.running_dummies():
            return method(*args, **kwargs)

    def prepare(method: Any, *args: Any, **kwargs: Any) -> Any:
        found = method(*args, **kwargs)
        batch = found if hasattr(found, "req_ids") else runner.input_batch
        lengths = found.num_scheduled_tokens if batch is found else args[1]
        names = plain_names(list(batch.req_ids)[: len(lengths)])
        capture.name_rows(names, [int(length) for length in lengths[: len(names)]])
        indices = found.logits_indices if batch is found else found[0]
        logit_rows[:] = rows_of_logits(runner, names, lengths, indices)
        return found

    def compute_logits(method: Any, hidden: Any, *args: Any, **kwargs: Any) -> Any:
        known = logit_rows if len(hidden) == len(logit_rows) else []  # else those of a prompt
        with capture.naming(known):
            return method(hidden, *args, **kwargs)

    wrapped(model, "compute_logits", compute_logits)
    wrapped(runner, "_dummy_run", dummy)
    for name in _PREPARING:
        wrapped(runner, name, prepare)


def plain_names(names: Sequence[str]) -> list[str]:
    """The ids that requests came with: vLLM adds a suffix of its own, which differs in each run."""
    plain = [_SUFFIX.sub("", name) for name in names]
    return plain if len(set(plain)) == len(names) else list(names)


def rows_of_logits(
    runner: Any, names: Sequence[str], lengths: Sequence[int], indices: Any
) -> list[tuple[str, int]]:
    """Which request and position each row is of which logits are computed; empty if unknown."""
    computed = getattr(getattr(runner, "input_batch", None), "num_computed_tokens_cpu", None)
    if computed is None:
        return []
    rows = [
        (name, int(start) + i)
        for name, start, length in zip(names, computed, lengths, strict=False)
        for i in range(int(length))
    ]
    wanted = [int(index) for index in indices.tolist()]
    return [rows[index] for index in wanted] if max(wanted, default=-1) < len(rows) else []
