"""In what two calls of the same op differ besides their tensors."""

from __future__ import annotations

from dataclasses import dataclass

from dumpcmp.nouns.key import Site


@dataclass(frozen=True, slots=True)
class CallDifference:
    """Two calls that found each other, and that do not ask for the same computation."""

    golden_site: Site
    golden: str  # "gelu(approximate='none')"
    target: str  # "gelu(approximate='tanh')"
    said: str  # "golden calls gelu(approximate='none'), the target gelu(approximate='tanh')"
