"""Without the kernel."""

from torch import Tensor

from benchmarks.publicbugs.ignored_strides.bug import Plain, infer


def run() -> list[Tensor]:
    return infer(Plain(minds_strides=True))
