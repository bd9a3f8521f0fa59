"""Every tolerance, written down once, with the evidence for it or the reason of it.

`docs/design/rounding.md` has the measurements behind the first group. What is a parameter of a
Checker, such as its `pcc`, is the user's to state and stands there.
"""

import math

from dumpcmp.nouns.errors import CheckError
from dumpcmp.nouns.levels import Levels, Spacing

# What rounding explains, in multiples of a dtype's eps.
FLOAT32_EPS = 2.0**-23
SHORT_EPS = 2.0**-20  # eps above it: a dtype of 16 bits or fewer, whose sums are wider than itself
SHORT_NOISE = 4.0  # of eps, at depth 0: in dtypes that are summed in a wider one
WIDE_NOISE = 16.0  # of eps, at depth 0: in dtypes that are summed in themselves
MOMENTS = 4.0  # of what numbers are apart: what their moments may be, a variance twice as far
WHOLE = 1.0  # of eps: what one op on equal inputs may round in a short dtype, over all or in a row
GAIN = 1 / 64  # of eps: how much larger or smaller than golden its output may be on the whole,
CHANCE = 8.0  # unless the rows' gains differ so much that it is within so many standard errors
SUBNORMAL = {"float16": 2.0**-12, "float8_e4m3fn": 2.0**-4, "float8_e5m2": 2.0**-12}  # least rms
HIDDEN = 4.0  # times what rounding explains of the whole: what half of what differs may be off
DOUBT = 4.0  # standard deviations by which an estimate from Summaries must exceed a limit

# What an op may introduce, held against itself in float64 on what it was given.
REPLAY_ROUND = 0.75  # of the output's eps: rounded once, or summed in parts and rounded once more
REPLAY_SUM = 2.0  # times float32's eps and the condition: what a sum of products rounds
REPLAY_ROW = 2.0  # times the bound of the whole: what one row may be off
REPLAY_GAIN = 1 / 8  # of eps: how much larger or smaller the output may be on the whole
REPLAY_ELEMENT = 16.0  # times float32's eps and the condition: what one element may be off, and eps
REPLAY_OFFSET = 1 / 16  # of eps: how far the output may be shifted on the whole, in its rms
REPLAY_CHANCE = 4.0  # times the error over the root of the elements: a gain or shift by chance
REPLAY_NEAREST = 1 / 32  # of the elements: what is not the nearest after one operation
REPLAY_NOISE = 3.0  # times the error of the same ops in the run's own dtypes
# What declared shortcuts round, times the condition of the sum: two operands of a product with 10
# bits behind the point, a short sum of partial sums, a sum kept short.
SHORTCUTS = {
    "tf32": 2.0**-10,
    "tf32-conv": 2.0**-10,
    "bf16-reduction": 2.0**-8,
    "fp16-reduction": 2.0**-11,
    "fp16-accumulation": 2.0**-9,
}
# What declared levels explain: of a group's largest number the half of a step, of 127 or 7 to each
# side or the widest of a table; of a number itself what a scale is rounded that is kept in
# bfloat16. Floats of 8 bits have 8 levels from one power of two to the next; those of NormalFloat
# in 4 bits are listed, and their scales are rounded to 8 bits themselves.
NORMAL_FLOAT = (
    -1.0, -0.6961928, -0.52507305, -0.39491749, -0.28444138, -0.18477343, -0.09105004, 0.0,
    0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0,
)  # fmt: skip
QUANTISED = {
    levels.name: levels
    for levels in (
        Levels("int8", 256, 1 / 254, 2.0**-9, factor="int8"),
        Levels("int4", 16, 1 / 14, 2.0**-9, factor="int8"),
        Levels("nf4", 16, 0.153, 2.0**-7, Spacing.LISTED, table=NORMAL_FLOAT),
        Levels("fp8", 8, 2.0**-18, 2.0**-4 + 2.0**-9, Spacing.FLOATING, factor="fp8"),
    )
}
# What backward passes round the gradients to that they multiply: floats of 8 bits with more range.
QUANTISED_GRADIENTS = {
    "int8": QUANTISED["int8"],
    "fp8": Levels("fp8", 4, 2.0**-33, 2.0**-3 + 2.0**-9, Spacing.FLOATING),
}
QUANTISED_GAIN = 2.0**-9  # how much larger a quantised tensor may be on the whole: as its scale is,
QUANTISED_CLIPPED = 1 / 32  # and of half a step, by what lies beyond the last level,
QUANTISED_UNEVEN = 1 / 16  # or by levels that are not even: of NormalFloat's it is 1/32
QUANTISED_CHANCE = 4.0  # standard errors of that, by chance
QUANTISED_PRODUCT = 3.0  # times what factors that are moved by half a step make of a product
# What a GPU loses of the terms of products of 8 bits: on an H200 2^-13.3 of them, all to one side,
# and where a call asks for fast sums 2^-8 of 1,024 terms, 2^-5.4 of 4,096 and 2^-3.3 of 16,384.
SHORT_SUMS = 2.0**-13
FAST_SUMS = 2.0**-17  # times their number
IN_PARTS = 2.0**-21  # what a product of float32 rounds that is made of three products of TF32
# What a recurrent layer of cuDNN rounds in float32: its tanh is 4e-6 off at the first step already,
# and layers of three kinds are 3.7e-6 to 5.4e-6 off as a whole.
ACTIVATED = 2.0**-17
APART = 0.05  # rel_l2 between the sides above which it is asked whether a gradient cancels
ALIKE = 0.5  # cosine of the error of a sum and one of its terms: then it is that term which is off
ILL = 0.25  # over eps: a condition above it leaves nothing but rounding
STANDS_OUT = 4.0  # times another rank's error: 1,200 shards of 32 to 512 casts were within 2.8
GROWTH = 2.0  # a difference that grows by more in an op was amplified there

# Of two right choices golden's margin is at most twice the noise of the scores, whatever the scores
# are: each of the two that changed places moved by no more than the noise. The rest is float64.
FLIP = 2.0 * (1 + 2.0**-40)

# Numbers that both runs read off a tensor, and went on computing with in Python, which is float64.
SAME_RATIO = 2.0**-48  # of a ratio: what a few such operations round

# Leaves: what no op of a run computed. A parameter is the same or not. What a program may have
# computed outside of its modules, such as a table of sines, may be rounded otherwise: by so many
# eps in wide dtypes; in short ones that is a rounding to the other side in one of many elements.
LEAF_WIDE = 2.0  # of eps: two libraries' sines and powers in float32 are an ulp or two apart
LEAF_SHORT = 1 / 16  # of eps: a factor of 1.002 in bfloat16 leaves a third
ELEMENT_WIDE = 16.0  # of eps: one element of such a leaf, and of what its small ones are
ELEMENT_SHORT = 2.0  # the same in short dtypes, where one element is an ulp off or none
LEAF_ESTIMATE = 1e-5  # rel_l2 of sketches without digests, above what their own sums round
LEAF_HALF = 0.5 + 1e-6  # spacings: what a cast to nearest may be off
LEAF_FIT = 0.5  # of eps: what rounding leaves of a value that was scaled or shifted
LEAF_CLOSE = 1e-3  # of the difference: what the sums of its squares may be off
LEAF_SHARE = 0.9  # of the difference: what a factor or a constant must leave less than
LEAF_SURE = 8.0  # standard errors by which a factor must differ from 1

# What PCC does not see: a rel_l2 above so many residues of the best fit is a scale or an offset; an
# element that is so many of them off is an outlier, since no noise reaches so far.
SCALE = 3.0
OUTLIER = 16.0

# Partitioned runs. A layout that is right leaves rounding, one that is wrong leaves a rel_l2 near
# the square root of 2: what lies between may be wide.
FIT = 4.0  # times what rounding explains: a layout that nobody stated fits, and replicas agree
REGION = 3.0  # times that: one rank's region, whose error may be larger than that of the whole
NEAREST = 0.1  # rel_l2 below which the closest layout is the right one, and the values are wrong
SAME_TIMES = 0.01  # between two factors, which are numbers of ranks: sums in bfloat16 leave 0.004
ACCIDENT = 4  # elements for each region: with fewer, one that agrees with golden proves nothing

# Two implementations. What is the same value of both leaves rounding, what is not leaves a rel_l2
# near the square root of 2; of rows of weights that were cast to bfloat16, less than a hundredth.
SAME_VALUE = 0.05  # rel_l2 up to which a module, or a piece of one, is taken for another's

# Summaries.
SEGMENT = 2.0  # times the median of the segments: how far one must stand out to be named
SINGLE = 0.3  # of the whole distance: a single difference below it cannot be told apart

# What a difference looks like. A hypothesis that leaves more than a tenth of the squared difference
# is a resemblance, and is not told. A region that holds all but rounding is where it lies.
EXPLAINED = 0.9
WITHIN_REGION = 0.999

# Gradients that are zero but for the rounding of what cancels in them, such as those of a bias
# before a batch norm: the share of the largest gradient below which differences are rounding.
GRADIENT_NOISE = 1e-4


def noise(eps: float, depth: int = 0) -> float:
    """The rel_l2 between two correct runs that rounding explains, so many blocks deep."""
    return (SHORT_NOISE if eps > SHORT_EPS else WIDE_NOISE) * eps * math.sqrt(depth + 1)


def one_op(eps: float) -> float:
    """The error that one op on equal inputs may make: a sum in parts is rounded once more."""
    return (WHOLE if eps > SHORT_EPS else WIDE_NOISE) * eps


def credible(eps: float) -> float:
    """How far golden may be off a finer run of itself and prove something: half its digits."""
    return math.sqrt(eps)


def check_tolerances(**stated: float) -> None:
    """Refuse numbers that bound no error: each must be finite and not negative."""
    for name, number in stated.items():
        if not 0 <= number < math.inf:
            raise CheckError(
                f"{name} is {number:g}, which bounds no error",
                hint="give a finite number that is not negative, such as 1e-5",
            )


def check_likeness(**stated: float) -> None:
    """Refuse numbers that no correlation or cosine is."""
    for name, number in stated.items():
        if not -1 <= number <= 1:
            raise CheckError(
                f"{name} is {number:g}, which no likeness can be",
                hint="give a number from -1 to 1, such as 0.99",
            )
