"""Metrics as users might write them, and as nobody should."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import sys
import time
from contextlib import suppress
from typing import Any

from dumpcmp.measure import metric_process


def signs(golden: Any, target: Any) -> dict[str, float]:
    return {"flipped": int(((golden < 0) != (target < 0)).sum()), "count": golden.size}


def largest(golden: Any, target: Any) -> list[float]:
    return [golden.max(), target.max()]


def shapes(golden: Any, target: Any) -> dict[str, float]:
    return {"numel": golden.size, "dims": target.ndim, "width": golden.itemsize}


def raising(golden: Any, target: Any) -> float:
    raise ValueError("no such number")


def leaving(golden: Any, target: Any) -> float:
    sys.exit(0)


def interrupted(golden: Any, target: Any) -> float:
    raise KeyboardInterrupt


def recursing(golden: Any, target: Any) -> float:
    return recursing(golden, target)


def out_of_memory(golden: Any, target: Any) -> float:
    return len(bytearray(1 << 60))


def asking(golden: Any, target: Any) -> float:
    return float(input("which number? "))


def wordy(golden: Any, target: Any) -> str:
    return "quite far"


def turning(golden: Any, target: Any) -> float:
    """Writes to what it is given."""
    golden[:], target[:] = target.copy(), 0
    return float(golden.sum())


def looping(golden: Any, target: Any) -> float:
    while True:
        pass


def waiting(golden: Any, target: Any) -> float:
    time.sleep(1e6)
    return 0.0


def matching(golden: Any, target: Any) -> float:
    """Python's lock is held all the while: nothing else of its process goes on."""
    return float(re.match("(a|aa)+$", "a" * 100 + "b") is None)


def waiting_in_c(*_: Any) -> Any:
    return ctypes.PyDLL(None).pause()


def deaf(golden: Any, target: Any) -> float:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    return float(waiting_in_c())


def ending(golden: Any, target: Any) -> float:
    os._exit(0)


def crashing(golden: Any, target: Any) -> float:
    return float(ctypes.string_at(0)[0])


def killing(golden: Any, target: Any) -> float:
    os.kill(os.getpid(), signal.SIGKILL)
    return 0.0


def stopped(golden: Any, target: Any) -> float:
    """Stands still until somebody lets it go on, as a process on a machine that is busy."""
    os.kill(os.getpid(), signal.SIGSTOP)
    return 5.0


def hidden(golden: Any, target: Any) -> float:
    """Goes on where nobody can hear of it."""
    os.closerange(3, 1000)
    return waiting(golden, target)


def babbling(golden: Any, target: Any) -> float:
    """Writes to whatever is open, also where its process answers."""
    for number in range(3, 1000):
        with suppress(OSError):
            os.write(number, b"\0\0\0\1?")
    return 0.0


def doubled(golden: Any, target: Any) -> float:
    """Forks, and lets the fork go on as if it were the one that was asked."""
    os.fork()
    return float(golden[0])


def blocking(golden: Any, target: Any) -> float:
    """Answers, and has its process read no array of the next question."""
    setattr(metric_process, "_received", waiting_in_c)  # noqa: B010 - not of its type
    return 1.0
