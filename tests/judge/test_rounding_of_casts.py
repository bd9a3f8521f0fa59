"""A cast of equal inputs to another dtype may round to nearest, and do nothing else."""

import numpy as np
import pytest

from dumpcmp.judge import Conditions, RoundingChecker
from dumpcmp.measure.metrics import measure
from dumpcmp.nouns.arithmetic import Arithmetic
from dumpcmp.nouns.row import Verdict
from dumpcmp.nouns.value import DTYPES, Value

NUMBERS = np.random.default_rng(0).standard_normal(256).astype(np.float32)


@pytest.mark.parametrize("factor, verdict", [(1.0, Verdict.PASS), (1.002, Verdict.FAIL)])
def test_a_cast_rounds_to_nearest(factor: float, verdict: Verdict) -> None:
    golden = Value(DTYPES["float32"], NUMBERS)
    target = Value(DTYPES["float16"], (NUMBERS * np.float32(factor)).astype(np.float16))
    conditions = Conditions(
        DTYPES["float32"], DTYPES["float16"], arithmetic=Arithmetic.MOVES, inputs_equal=True
    )
    assert RoundingChecker().check(measure(golden, target), conditions).verdict is verdict
