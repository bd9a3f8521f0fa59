"""verify_correctness: checks whatever torch.compile compiles in a block, a function or a class."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import wraps
from inspect import getattr_static, isfunction
from types import TracebackType
from typing import Any, Literal, TypeVar

from dumpcmp.pytorch.names import check_names
from dumpcmp.verifying.backend import Backend, OnFailure, VerifyingBackend, configured
from dumpcmp.verifying.config import VerifyConfig
from dumpcmp.verifying.report import Report

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


class verify_correctness:  # noqa: N801 - used as a function is
    """Check every graph that torch.compile compiles inside the block, whatever its backend.

    Yields the list that the reports are added to. As a decorator it does so around each call of a
    function, and around each test of a class.

        with dumpcmp.verify_correctness() as reports:
            torch.compile(model)(x)

        @dumpcmp.verify_correctness()
        class TestModel(unittest.TestCase): ...
    """

    def __init__(
        self,
        config: VerifyConfig | None = None,
        *,
        on_failure: OnFailure = "raise",
        reference: Literal["float64"] | None = None,
    ) -> None:
        self.config = configured(config, reference)
        self.on_failure: OnFailure = on_failure
        self._entered: list[ExitStack] = []

    def __enter__(self) -> list[Report]:
        check_names("verifying_backend", "verify_correctness")
        from torch._dynamo import config as dynamo
        from torch._dynamo import output_graph

        reports: list[Report] = []

        def wrapped(backend: Backend) -> Backend:
            if isinstance(backend, VerifyingBackend):
                return backend
            return VerifyingBackend(backend, self.config, self.on_failure, reports)

        with ExitStack() as stack:
            if self.config.enabled:  # its wrapper is what dynamo puts around what it verifies
                stack.callback(setattr, output_graph, "WrapperBackend", output_graph.WrapperBackend)
                output_graph.WrapperBackend = wrapped
            stack.enter_context(dynamo.patch(verify_correctness=self.config.enabled))
            self._entered.append(stack.pop_all())
        return reports

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._entered.pop().__exit__(kind, error, traceback)

    def __call__(self, decorated: Decorated) -> Decorated:
        """`decorated`, checked whenever it is called; a class, in each of its tests."""
        if isinstance(decorated, type):
            for name in dir(decorated):
                test = getattr_static(decorated, name)
                if name.startswith("test") and isfunction(test):
                    setattr(decorated, name, self(test))
            return decorated

        @wraps(decorated)
        def checked(*args: Any, **kwargs: Any) -> Any:
            with self:
                return decorated(*args, **kwargs)

        return checked  # type: ignore[return-value]
