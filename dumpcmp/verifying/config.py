"""What a verification checks, and by which rule."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from dumpcmp.judge import (
    AllCloseValueChecker,
    Checker,
    ExactChecker,
    Fp64Checker,
    FullValueChecker,
    RoundingChecker,
)
from dumpcmp.judge.tolerances import GRADIENT_NOISE, check_tolerances
from dumpcmp.nouns.errors import CheckError
from dumpcmp.nouns.row import Verdict

_ALWAYS_FAILING = frozenset(
    (Verdict.FAIL, Verdict.NONFINITE, Verdict.SHAPE, Verdict.ERROR, Verdict.INCONCLUSIVE)
)


@dataclass(frozen=True, slots=True)
class VerifyConfig:
    """Which attributes of each value are checked, and the rule for its elements.

    `value_checker` is one Checker, or several that must all pass. With `reference`, golden also
    runs in float64: a value that is not close elementwise passes if the target's error is not
    much larger than golden's own (see `Fp64Checker`).
    """

    enabled: bool = True
    verify_size: bool = True  # both sides give the same values: none missing, none extra
    verify_dtype: bool = True
    verify_shape: bool = True  # False: values of as many elements are compared in flat order
    verify_values: bool = True
    value_checker: Checker | Sequence[Checker] = field(default_factory=RoundingChecker)
    verify_stride: bool = False  # outputs lie in memory alike, so that the same views of them work
    backward: bool = False
    noise: float = GRADIENT_NOISE  # of the largest gradient: differences below it are rounding
    reference: Literal["float64"] | None = None
    dump_tensors: bool = False  # verify() keeps inputs and both sides' outputs, as archives
    dump_tensors_path: str = ""  # the directory for them; empty: the working directory

    def __post_init__(self) -> None:
        if self.reference not in (None, "float64"):
            raise CheckError(
                f"reference is {self.reference!r}", hint="say reference='float64', or None"
            )
        if not self.checkers:
            raise CheckError("no value checker is given", hint="see dumpcmp.RoundingChecker")
        check_tolerances(noise=self.noise)

    @property
    def checkers(self) -> tuple[Checker, ...]:
        """The rules for the elements, which must all pass."""
        checker = self.value_checker
        return tuple(checker) if isinstance(checker, Sequence) else (checker,)

    @property
    def wants_reference(self) -> bool:
        """Whether golden has to run in float64 too."""
        return self.reference is not None or any(
            isinstance(checker, Fp64Checker) for checker in self.checkers
        )

    @property
    def forgives_noise(self) -> bool:
        """Whether gradients may differ by `noise`: not where each element was to be close."""
        elementwise = AllCloseValueChecker | ExactChecker | FullValueChecker
        asked = any(isinstance(checker, elementwise) for checker in self.checkers)
        return self.noise > 0 and (self.reference is not None or not asked)

    @property
    def failing(self) -> frozenset[Verdict]:
        """The verdicts that make a verification fail."""
        chosen = {Verdict.UNPAIRED: self.verify_size, Verdict.DTYPE: self.verify_dtype}
        return _ALWAYS_FAILING | {verdict for verdict, fails in chosen.items() if fails}


def given(config: VerifyConfig | None) -> VerifyConfig | None:
    """`config`, if it is one for a verification."""
    if isinstance(config, VerifyConfig | None):
        return config
    raise CheckError(
        f"the config is a {type(config).__name__}, which says nothing about a verification",
        hint="give a dumpcmp.VerifyConfig; a PartitionConfig is for verify_partition_options",
    )
