"""Collectives: the ops that move values between ranks and compute none of their own."""

from enum import StrEnum


class Collective(StrEnum):
    """Which one it is, as the function of its op: ``layers.1.attn.o/all_reduce``."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    GATHER = "gather"
    SCATTER = "scatter"
    SEND = "send"
    RECV = "recv"

    @property
    def target(self) -> str:
        """Its name in torch."""
        return f"torch.distributed.{self}"

    @property
    def has_namesake(self) -> bool:
        """Whether a function of torch that moves nothing between ranks has the name, too."""
        return self in (Collective.GATHER, Collective.SCATTER)

    @property
    def keeps_shape(self) -> bool:
        """Whether it gives out the shape that it takes, so that its output is a value."""
        return self in (Collective.ALL_REDUCE, Collective.BROADCAST, Collective.REDUCE)

    @property
    def is_letter(self) -> bool:
        """Whether it goes from one rank to one other."""
        return self in (Collective.SEND, Collective.RECV)
