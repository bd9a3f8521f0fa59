"""Has Inductor's kernels of a graph compiled in one file: most of their time is the headers'.

The kernels are Inductor's own to the letter, each in a namespace; what calls them differs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any
from weakref import WeakKeyDictionary

Kernel = Callable[..., None]


def compile_together(put: Callable[[object, str, object], None] = setattr) -> None:
    """Let Inductor's kernels of a graph be compiled when all of them were asked for.

    `put` takes the place of attributes, for good or for a while.
    """
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.codecache import LambdaFuture

    files: WeakKeyDictionary[AsyncCompile, KernelFile] = WeakKeyDictionary()
    wait = AsyncCompile.wait

    def ask(self: AsyncCompile, argtypes: list[str], source: str) -> Any:
        return LambdaFuture(files.setdefault(self, KernelFile()).add(argtypes, source))

    def load(self: AsyncCompile, scope: dict[str, Any]) -> None:
        files.pop(self, None)
        for name, asked in scope.items():
            if isinstance(asked, LambdaFuture):
                scope[name] = asked.result()
        wait(self, scope)

    put(AsyncCompile, "cpp_pybinding", ask)
    put(AsyncCompile, "wait", load)


class KernelFile:
    """Kernels that are asked for one by one, and compiled when the first of them is needed."""

    def __init__(self) -> None:
        self.sources: list[tuple[Sequence[str], str]] = []

    def add(self, argtypes: Sequence[str], source: str) -> Callable[[], Kernel]:
        self.sources.append((argtypes, source))
        return partial(self._loaded, len(self.sources) - 1)

    def _loaded(self, number: int) -> Kernel:
        entry = self.module.kernel

        def kernel(*args: Any) -> None:
            entry(number, args)

        return kernel

    @cached_property
    def module(self) -> Any:
        from torch._inductor.codecache import CppPythonBindingsCodeCache as Cache

        suffix = Cache.suffix_template.format(
            arg_len=2,
            call_entry_func="\n".join(self._calls()),
            entry_func=Cache.entry_function,
            extra_parse_arg="",
        )
        return Cache.load("\n".join(self._lines()) + suffix)

    def _lines(self) -> list[str]:
        """The sources one after another, after what they include."""
        lines = [source.splitlines() for _, source in self.sources]
        included = dict.fromkeys(one for own in lines for one in own if one.startswith("#include"))
        found = list(included)
        for number, own in enumerate(lines):
            body = (line for line in own if not line.startswith("#include"))
            found += [f"namespace n{number} {{", *body, "}"]
        return [line.replace('extern "C"', "static") for line in found]

    def _calls(self) -> list[str]:
        cases = ["PyObject* given = PyTuple_GET_ITEM(args, 1);",
                 "switch (PyLong_AsLong(PyTuple_GET_ITEM(args, 0))) {"]  # fmt: skip
        for number, (argtypes, _) in enumerate(self.sources):
            kinds = (argtype.replace("const ", "") for argtype in argtypes)
            parsed = ", ".join(f"parse_arg<{kind}>(given, {n})" for n, kind in enumerate(kinds))
            cases.append(f"case {number}: n{number}::kernel({parsed}); break;")
        return [*cases, "}", "Py_RETURN_NONE;"]
