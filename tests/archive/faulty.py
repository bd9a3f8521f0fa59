"""A system that fails on purpose, or that remembers what was written so that power can be lost."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from dumpcmp.archive.write import dense, part, ring

CALLS = ("open", "pwrite", "ftruncate", "posix_fallocate", "fsync", "close")


@dataclass
class System:
    """Stands in for the module `os` in the writer: calls pass through `before` first."""

    before: Callable[[str, tuple[Any, ...]], None]
    names: tuple[str, ...] = CALLS
    num_calls: int = field(default=0, init=False)

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in self.names:
            return real

        def call(*args: Any) -> Any:
            self.num_calls += 1
            self.before(name, args)
            return real(*args)

        return call

    def install(self, patch: pytest.MonkeyPatch) -> None:
        for module in (dense, part, ring):
            patch.setattr(module, "os", self)


def failing(at: int, number: int) -> System:
    """A system whose `at`-th call fails with the error `number`, and all after it."""

    def before(name: str, args: tuple[Any, ...]) -> None:
        if system.num_calls > at and name != "close":
            raise OSError(number, os.strerror(number))

    system = System(before)
    return system


class Disk:
    """Remembers the writes to every part, in order: any of them may not have reached the disk."""

    def __init__(self) -> None:
        self.writes: list[tuple[int, int, bytes]] = []  # descriptor, address, content

    def before(self, name: str, args: tuple[Any, ...]) -> None:
        if name == "pwrite":
            descriptor, content, address = args
            self.writes.append((os.fstat(descriptor).st_ino, address, bytes(content)))

    @staticmethod
    def content(writes: list[tuple[int, int, bytes]]) -> bytes:
        """The file as it is with these writes and no others."""
        room = bytearray()
        for _, address, content in writes:
            room.extend(bytes(max(0, address + len(content) - len(room))))
            room[address : address + len(content)] = content
        return bytes(room)
