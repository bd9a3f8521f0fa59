"""Effects of which nothing can be shown: nobody knows what made them, or what they are made of."""

from __future__ import annotations

from collections.abc import Iterable

from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.shadows.kernel_regions import is_compiled
from dumpcmp.shadows.program import Program, StepEffect
from dumpcmp.shadows.quantities import Quantity
from dumpcmp.shadows.shadow import Shadow


def why_unshown(golden: tuple[Shadow, StepEffect], target: tuple[Shadow, StepEffect]) -> str:
    """Why an effect that differs may be the same after all; empty where it is another."""
    quantities = [shadow.quantity(effect.value) for shadow, effect in (golden, target)]
    for side, quantity, (_, effect) in zip(
        ("golden", "the target"), quantities, (golden, target), strict=True
    ):
        try:
            _ = quantity.tensor
        except DumpcmpError as error:
            return f"{effect.name} of {side} cannot be computed again: {error.message}"
    bridged = [_bridges_behind(quantity) for quantity in quantities]
    alone = bridged[0].keys() ^ bridged[1].keys()
    for each in (*bridged[0].values(), *bridged[1].values()):
        if id(each) in alone and each.application is not None:
            application = each.application
            return f"it depends on {application.name}, which cannot be run: {application.problem}"
    return ""


def _bridges_behind(quantity: Quantity) -> dict[int, Quantity]:
    """What stands as it was recorded, rounded, in the place of what could not be run."""
    seen: dict[int, Quantity] = {}
    waiting = [quantity]
    while waiting:
        each = waiting.pop()
        if id(each) not in seen:
            seen[id(each)] = each
            waiting += each.inputs
    return {number: each for number, each in seen.items() if each.is_bridge}


def unmade_effects(program: Program) -> Iterable[StepEffect]:
    """What a compiled run leaves behind that no op of its graphs is known to have made."""
    if not any(map(is_compiled, program.nodes)):
        return
    for effect in program.effects:
        slot = effect.value.key.slot
        if effect.value not in program.producers and (slot.is_output or slot.is_gradient):
            yield effect
