"""Programs that signals and forks disturb; each prints what it lived through.

Run as ``python interrupted.py FOLDER MODE,MODE raises,calls,forks,exits``: one archive for each of
each mode. Every mode has a process of its own, forked from one that has imported torch.
"""

import gc
import importlib
import os
import random
import signal
import sys
import time
from types import FrameType

import torch
from torch import Tensor, nn

import dumpcmp
import dumpcmp.dumping.capturing

IS_LONG = "DUMPCMP_INTERRUPTS" in os.environ
SECONDS = 1.0 if IS_LONG else 0.3


class Repeating(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        for _ in range(5):
            x = x * 1.01
        return x


model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
repeating = Repeating()
x = torch.ones(2, 4)


def both() -> None:
    model(x)
    repeating(x)


def usual_seconds() -> float:
    """How long the models take once they have run before."""
    for _ in range(2):
        began = time.monotonic()
        both()
    return time.monotonic() - began


def raises() -> None:
    """A handler that raises, as timeouts do: each comes out where the program can catch it."""
    sent = caught = done = 0
    armed = False

    def handler(number: int, frame: FrameType | None) -> None:
        nonlocal sent, armed
        if armed:
            armed, sent = False, sent + 1
            raise TimeoutError("mine")

    signal.signal(signal.SIGALRM, handler)
    seconds, end = usual_seconds(), time.monotonic() + SECONDS
    while time.monotonic() < end or caught < 5:
        try:
            armed = True
            signal.setitimer(signal.ITIMER_REAL, max(1e-4, random.uniform(0, 2 * seconds)))
            both()
            done += 1
            armed = False
        except TimeoutError:
            caught += 1
    print(sent, caught, done, flush=True)


def calls() -> None:
    """A handler that runs a module itself."""
    num_calls, inner = 0, nn.Linear(4, 4)

    def handler(number: int, frame: FrameType | None) -> None:
        nonlocal num_calls
        num_calls += 1
        inner(x)
        signal.setitimer(signal.ITIMER_REAL, 0.02)  # not before this call has ended

    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.02)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end or num_calls < 5:
        both()
    signal.setitimer(signal.ITIMER_REAL, 0)
    print(num_calls, flush=True)


def forks() -> None:
    """Children that go on computing; those that hang are counted."""
    hung, num_children = 0, 60 if IS_LONG else 20
    for number in range(num_children):
        model(x)
        child = os.fork()
        if not child:
            model(x + number)
            os._exit(0)
        time.sleep(random.random() / 500)
        hung += not ended(child)
    print(num_children, hung, flush=True)


def exits() -> None:
    """A child that leaves the capture, and the program, by its end."""
    model(x)
    child = os.fork()
    if not child:
        model(x)
        sys.exit(3)
    print(os.waitpid(child, 0)[1] >> 8, flush=True)


def ended(child: int) -> bool:
    """Whether `child` ends within a while; it is killed where it does not."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if os.waitpid(child, os.WNOHANG)[0]:
            return True
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


def live(folder: str, mode: str, what: list[str]) -> None:
    """Go through the parts `what` under `mode`."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what starts it may ignore them
    mine = signal.getsignal(signal.SIGINT)
    for name in what:
        with dumpcmp.capture(None, f"{folder}/{name}", mode=mode):
            assert signal.getsignal(signal.SIGINT) is mine
            {"raises": raises, "calls": calls, "forks": forks, "exits": exits}[name]()
        assert signal.getsignal(signal.SIGINT) is mine is signal.default_int_handler
        assert signal.signal.__module__ == "signal"


def main(folder: str, modes: str, what: str) -> int:
    gc.freeze()  # whoever ends searches all of torch for garbage otherwise
    for mode in modes.split(","):
        child = os.fork()
        if not child:
            live(f"{folder}/{mode}", mode, what.split(","))
            return 0  # and end as any program does
        if status := os.waitpid(child, 0)[1]:
            return os.waitstatus_to_exitcode(status)
        importlib.import_module("torch._dynamo")  # once for the modes that need it, not in each
        gc.freeze()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
