"""What dynamo must not trace for a capture, since the program would see that it was traced."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import unwrap
from types import CodeType
from typing import Any

from dumpcmp.pytorch.names import is_there, patched, private, standing_in
from dumpcmp.taps.modes.warning_places import has_warned

_SKIPPED = "torch._dynamo.variables.functions:SkipFunctionVariable.call_function"
_INLINED = "torch._dynamo.symbolic_convert:InliningInstructionTranslator.check_inlineable"
_APPLIED = "torch._dynamo.variables.misc:AutogradFunctionVariable.call_apply"
_EXAMPLE = "torch._dynamo.side_effects:SideEffects.get_example_value"
_MADE = "torch._dynamo.variables.user_defined:UserDefinedClassVariable.call_function"

_FAKES = "torch._subclasses.fake_tensor:FakeTensorMode.cache_clear"

FUNCTIONS = "custom autograd Functions, whose nodes would have another class"
FINALIZERS = "objects with finalizers, which would run twice"
SETTINGS = "settings of Python's interpreter, such as the limit of recursion"
WARNINGS = "warnings, which would name other lines"


class LeftToPythonError(Exception):
    """Says why a function of the program runs as it is, and not as a graph."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class PythonOnly:
    """Stops dynamo at what the program would see; tells afterwards what that was.

    The function that does it, and those around it, run as they are then, and are recorded as in
    eager mode; those that they call are traced on their own.
    """

    def __init__(self, is_ours: Callable[[], bool]) -> None:
        self._is_ours = is_ours
        self.reasons: dict[str, None] = {}
        self.codes: list[CodeType] = []  # that dynamo was told to leave alone

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Stop dynamo while the block runs."""
        ours = {
            _SKIPPED: self._skipped,
            _INLINED: self._inlined,
            _APPLIED: self._applied,
            _EXAMPLE: self._example,
            _MADE: self._made,
        }
        with patched(*(standing_in(path, one) for path, one in ours.items() if is_there(path))):
            yield

    def stop_if_warned(self) -> None:
        """Stop where the code that was traced has warned."""
        if self._is_ours() and has_warned():
            if is_there(_FAKES):  # what an op gave is known now, and would not warn again
                private(_FAKES)()
            self._stop(WARNINGS)

    def facts(self) -> dict[str, list[str]]:
        """What ran as it is, and is recorded as in eager mode."""
        return {"not_traced": list(self.reasons)} if self.reasons else {}

    def _stop(self, why: str) -> None:
        self.reasons[why] = None
        raise LeftToPythonError(why)

    def _skipped(self, original: Any, variable: Any, *args: Any, **kwargs: Any) -> Any:
        if self._is_ours():
            self._stop_if_warning(variable.value)
            if _is_setting(variable.value):
                self._stop(SETTINGS)
        return original(variable, *args, **kwargs)

    def _inlined(self, original: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        if self._is_ours():
            self._stop_if_warning(getattr(function, "fn", None))
        return original(function, *args, **kwargs)

    def _stop_if_warning(self, function: Any) -> None:
        if unwrap(function) is unwrap(warnings.warn):
            self._stop(WARNINGS)

    def _applied(self, original: Any, variable: Any, *args: Any, **kwargs: Any) -> Any:
        if self._is_ours():
            self._leave_alone(variable.fn_cls.forward)
            self._stop(FUNCTIONS)
        return original(variable, *args, **kwargs)

    def _leave_alone(self, function: Any) -> None:
        """Have dynamo not look at a function when it is called, at whatever depth."""
        code = getattr(function, "__code__", None)
        if code is not None and code not in self.codes:
            self.codes.append(code)
            private("torch._dynamo.eval_frame:skip_code")(code)

    def _example(
        self, original: Any, effects: Any, base: Any, kind: Any, *args: Any, **kwargs: Any
    ) -> Any:
        self._stop_if_finalized(kind)
        return original(effects, base, kind, *args, **kwargs)

    def _made(self, original: Any, kind: Any, *args: Any, **kwargs: Any) -> Any:
        self._stop_if_finalized(kind)
        return original(kind, *args, **kwargs)

    def _stop_if_finalized(self, kind: Any) -> None:
        if self._is_ours() and _is_finalized(getattr(kind, "value", None)):
            self._stop(FINALIZERS)


def _is_setting(function: Any) -> bool:
    """Whether `function` sets how this process interprets programs."""
    name = str(getattr(function, "__name__", ""))
    return getattr(function, "__module__", None) == sys.__name__ and name.startswith("set")


def _is_finalized(kind: Any) -> bool:
    """Whether objects of `kind` run code of the program's when they are freed."""
    return isinstance(kind, type) and hasattr(kind, "__del__")
