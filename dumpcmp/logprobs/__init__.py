"""Use case: where two engines, or rollout and trainer, give other log probabilities, and why."""

from dumpcmp.logprobs.comparing_logprobs import compare_logprobs as compare_logprobs
from dumpcmp.logprobs.logprob_report import LogprobCause as LogprobCause
from dumpcmp.logprobs.logprob_report import LogprobReport as LogprobReport
from dumpcmp.logprobs.logprob_report import LogprobSample as LogprobSample
