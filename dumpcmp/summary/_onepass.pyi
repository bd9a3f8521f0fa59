from numpy import generic
from numpy.typing import NDArray

def absorb(
    numbers: NDArray[generic],
    width: int,
    start: int,
    key: int,
    signs: NDArray[generic],
    bases: NDArray[generic],
    sums: NDArray[generic],
    /,
) -> tuple[float, float, float, float, int]: ...
