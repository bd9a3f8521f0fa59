"""Use case: whether the weights that a program has loaded are those of its checkpoint."""

from dumpcmp.weights.comparing_weights import compare_weights as compare_weights
from dumpcmp.weights.weight_rows import WeightReport as WeightReport
from dumpcmp.weights.weight_rows import WeightRow as WeightRow
from dumpcmp.weights.weight_rows import WeightVerdict as WeightVerdict
