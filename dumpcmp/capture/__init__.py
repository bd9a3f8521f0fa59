"""Capturing: hooks and modes that see what a program computes, and hand it to a Sink."""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _CallablePackage(ModuleType):
    """Lets ``dumpcmp.capture`` be the public function as well as the package of that name."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return import_module("dumpcmp.dumping").capture(*args, **kwargs)


sys.modules[__name__].__class__ = _CallablePackage
