"""SGLang's plugin: captures the model in every worker, with request ids and positions.

SGLang loads it through the entry point ``sglang.srt.plugins``, and applies the hooks that it
registers. It does nothing unless DUMPCMP_SERVING_PATH is set.
"""

from __future__ import annotations

from typing import Any

from dumpcmp.serving.served_capture import ServedCapture, served_capture

_RUNNER = "sglang.srt.model_executor.model_runner.ModelRunner"


def register() -> None:
    """Have SGLang call us around loading its model and around each batch."""
    capture = served_capture()
    if capture is None:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    watcher = RunnerWatcher(capture)
    HookRegistry.register(f"{_RUNNER}.load_model", watcher.loaded, HookType.AFTER)
    HookRegistry.register(f"{_RUNNER}.forward", watcher.forward, HookType.AROUND)


class RunnerWatcher:
    """What to do around the methods of SGLang's ModelRunner."""

    def __init__(self, capture: ServedCapture) -> None:
        self.capture = capture

    def loaded(self, result: Any, runner: Any, *_: Any, **__: Any) -> Any:
        """Capture the model that `runner` has loaded; a draft model is left out."""
        if not getattr(runner, "is_draft_worker", False):
            self.capture.begin(runner.model)
        return result

    def forward(self, method: Any, runner: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Run a batch: of requests if it has their ids, else to warm up or to capture a graph."""
        names = getattr(batch, "rids", None)
        if not names:
            with self.capture.running_dummies():
                return method(runner, batch, *args, **kwargs)
        with self.capture.running_requests():
            self.capture.name_rows(list(names), lengths_of(batch))
            return method(runner, batch, *args, **kwargs)


def lengths_of(batch: Any) -> list[int]:
    """How many rows each request of a batch has: what it is extended by, or one in decoding."""
    lengths = getattr(batch, "extend_seq_lens_cpu", None)
    if lengths is None:
        lengths = getattr(batch, "extend_seq_lens", None)
    if lengths is None:
        return [1] * len(batch.rids)
    return [int(length) for length in (lengths.tolist() if hasattr(lengths, "tolist") else lengths)]
