"""Samples that a small decoder has drawn and scored, and six causes for which scores differ."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dumpcmp import demo

Line = dict[str, Any]
Sides = tuple[list[Line], list[Line]]


@dataclass(frozen=True)
class Rollout:
    """What is drawn: steps, samples a step, tokens a sample, and how sure the model is."""

    num_steps: int = 4
    num_samples: int = 8
    length: int = 96
    prompt: int = 16
    sharpness: float = 2.5  # what logits are multiplied by; a trained model is sure of most tokens
    seed: int = 0
    temperature: float = 1.0


def model_of(rollout: Rollout) -> nn.Module:
    model, _ = demo.build(demo.Size(longest=4 * rollout.length), seed=100 + rollout.seed)
    return model


@torch.no_grad()
def logits_of(model: nn.Module, tokens: Tensor, rollout: Rollout) -> Tensor:
    found: Tensor = model(tokens)[0].double() * rollout.sharpness
    return found


@cache
@torch.no_grad()
def drawn(rollout: Rollout, step: int) -> Tensor:
    """Tokens that the model draws itself, one after the other."""
    generator = torch.Generator().manual_seed(1000 * rollout.seed + step)
    model, cache = model_of(rollout), None
    tokens = torch.randint(128, (rollout.num_samples, rollout.prompt), generator=generator)
    fed = tokens
    while tokens.shape[1] < rollout.length:
        logits, cache = model(fed, cache)
        odds = (logits[:, -1].double() * rollout.sharpness / rollout.temperature).softmax(-1)
        fed = torch.multinomial(odds, 1, generator=generator)
        tokens = torch.cat([tokens, fed], 1)
    return tokens


def scores(logits: Tensor, tokens: Tensor, rollout: Rollout) -> Tensor:
    """Log probabilities of the response's tokens."""
    found = logits[:, :-1].log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0]
    return found[:, rollout.prompt - 1 :]


def noisy(rollout: Rollout) -> nn.Module:
    """The same model as another engine runs it: in bfloat16, but for its last layer."""
    model = model_of(rollout)
    for layer in model.get_submodule("layers").children():
        for name, child in layer.named_children():
            if name == "mlp":
                child.bfloat16()
                child.register_forward_pre_hook(lambda _, args: (args[0].bfloat16(),))
                child.register_forward_hook(lambda _, args, out: out.float())
    return model


Scoring = Callable[[Tensor, Tensor, int, Rollout], Tensor]  # logits, tokens, step -> mine's scores


def sides(rollout: Rollout, scoring: Scoring, *, is_noisy: bool = True) -> Sides:
    """Lines in the form of slime: what a trainer computed, and what a rollout comes to."""
    golden, mine = model_of(rollout), noisy(rollout) if is_noisy else model_of(rollout)
    both: Sides = ([], [])
    for step in range(rollout.num_steps):
        tokens = drawn(rollout, step)
        right = scores(logits_of(golden, tokens, rollout) / rollout.temperature, tokens, rollout)
        found = scoring(logits_of(mine, tokens, rollout), tokens, step, rollout)
        for side, values, name in (
            (both[0], right, "log_probs"),
            (both[1], found, "rollout_log_probs"),
        ):
            side += lines(tokens, values, name, step, rollout)
    return both


def lines(tokens: Tensor, values: Tensor, name: str, step: int, rollout: Rollout) -> list[Line]:
    return [
        {"step": step, "index": i, "tokens": tokens[i].tolist(),
         "response_length": rollout.length - rollout.prompt, name: values[i].tolist()}
        for i in range(tokens.shape[0])
    ]  # fmt: skip


def save(listed: list[Line], path: Path) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in listed))
    return path


def plainly(logits: Tensor, tokens: Tensor, step: int, rollout: Rollout) -> Tensor:
    return scores(logits / rollout.temperature, tokens, rollout)


def shifted(by: int) -> Scoring:
    def scoring(logits: Tensor, tokens: Tensor, step: int, rollout: Rollout) -> Tensor:
        return plainly(logits, tokens, step, rollout).roll(by, 1)

    return scoring


def at_temperature(temperature: float) -> Scoring:
    def scoring(logits: Tensor, tokens: Tensor, step: int, rollout: Rollout) -> Tensor:
        return scores(logits / temperature, tokens, rollout)

    return scoring


def cut_by_top_p(share: float) -> Scoring:
    """Renormalised over the likeliest tokens that have this share of all; the drawn one stays."""

    def scoring(logits: Tensor, tokens: Tensor, step: int, rollout: Rollout) -> Tensor:
        odds, order = logits.softmax(-1).sort(-1, descending=True)
        is_kept = odds.cumsum(-1) - odds < share
        kept = torch.zeros_like(is_kept).scatter(-1, order, is_kept)
        drawn_next = torch.cat([tokens[:, 1:], tokens[:, :1]], 1)
        kept.scatter_(-1, drawn_next[..., None], True)
        return scores(logits.masked_fill(~kept, -torch.inf), tokens, rollout)

    return scoring


def divided(temperature: float) -> Scoring:
    return lambda *told: plainly(*told) / temperature


def from_position(first: int, size: float) -> Scoring:
    """Attention reads a wrong block of its cache from one position of the whole sequence on."""

    def scoring(logits: Tensor, tokens: Tensor, step: int, rollout: Rollout) -> Tensor:
        torch.manual_seed(step)
        noise = torch.randn_like(logits) * size
        noise[:, : first - 1] = 0
        return scores(logits + noise, tokens, rollout)

    return scoring


def few(which: Mapping[int, list[int]], size: float = 1.5) -> Scoring:
    """Some samples of some steps have another sample's state."""

    def scoring(logits: Tensor, tokens: Tensor, step: int, rollout: Rollout) -> Tensor:
        torch.manual_seed(step)
        noise = torch.randn_like(logits) * size
        mask = torch.zeros(logits.shape[0], 1, 1)
        mask[which.get(step, [])] = 1
        return scores(logits + noise * mask, tokens, rollout)

    return scoring


@torch.no_grad()
def perturbed(rollout: Rollout, size: float) -> nn.Module:
    model = copy.deepcopy(model_of(rollout))
    torch.manual_seed(7)
    for parameter in model.parameters():
        parameter.add_(torch.randn_like(parameter) * parameter.std() * size)
    return model


def other_weights(size: float, growth: float = 0.0, first: int = 0) -> Scoring:
    """Weights that are off by `size` of their spread, `growth` more each step, from `first` on."""

    def scoring(logits: Tensor, tokens: Tensor, step: int, rollout: Rollout) -> Tensor:
        if step < first:
            return plainly(logits, tokens, step, rollout)
        model = perturbed(rollout, size + growth * (step - first))
        return plainly(logits_of(model, tokens, rollout), tokens, step, rollout)

    return scoring


@dataclass(frozen=True)
class Case:
    """A cause, how it comes about, and what is drawn."""

    name: str
    cause: str  # empty: nothing is wrong
    scoring: Scoring
    rollout: Rollout = Rollout()
    is_noisy: bool = True


COLD = Rollout(temperature=0.7)
ONE_STEP = Rollout(num_steps=1, num_samples=16)
CASES = (
    Case("one token late", "shifted", shifted(1)),
    Case("one token early", "shifted", shifted(-1)),
    Case("one token late, one step", "shifted", shifted(1), ONE_STEP),
    Case("raw beside temperature 0.7", "temperature", at_temperature(1.0), COLD),
    Case("temperature 1.3 for 1", "temperature", at_temperature(1.3)),
    Case("temperature 0.6 for 1", "temperature", at_temperature(0.6), ONE_STEP),
    Case("log probabilities divided by 0.8", "temperature", divided(0.8), is_noisy=False),
    Case("processed by top-p 0.8", "temperature", cut_by_top_p(0.8), is_noisy=False),
    Case("wrong from position 32 on", "position", from_position(32, 0.8)),
    Case("wrong from position 64 on", "position", from_position(64, 1.5)),
    Case("wrong from position 48 on, one step", "position", from_position(48, 1.0), ONE_STEP),
    Case("two samples of 32", "state", few({1: [3], 2: [5]})),
    Case("one sample of 16", "state", few({0: [7]}), ONE_STEP),
    Case("three samples of one step", "state", few({2: [0, 1, 4]}, 1.0)),
    Case("weights off by 10 %", "weights", other_weights(0.10)),
    Case("weights off by 5 %, one step", "weights", other_weights(0.05), ONE_STEP),
    Case("weights off by 20 %", "weights", other_weights(0.2)),
    Case("weights that stay behind", "synchronisation", other_weights(0.0, 0.05)),
    Case("weights that stay behind, six steps", "synchronisation", other_weights(0.01, 0.03),
         Rollout(num_steps=6)),
    Case("weights that stay behind, few samples", "synchronisation", other_weights(0.0, 0.05),
         Rollout(num_samples=4, length=48)),
    Case("an update that did not come at step 2", "synchronisation", other_weights(0.1, first=2)),
    Case("nothing", "", plainly),
    Case("nothing, to the bit", "", plainly, is_noisy=False),
    Case("nothing, one step", "", plainly, ONE_STEP),
    Case("nothing, temperature 0.7", "", plainly, COLD),
    Case("nothing, a model that is sure", "", plainly, Rollout(sharpness=5.0)),
    Case("nothing, a model that is not", "", plainly, Rollout(sharpness=1.0)),
    Case("nothing, few short samples", "", plainly, Rollout(num_samples=3, length=40)),
)  # fmt: skip


def held_out() -> tuple[Case, ...]:
    """The same causes of other sizes, on other samples: looked at once."""
    other = Rollout(num_steps=5, num_samples=12, length=144, prompt=8, sharpness=3.0, seed=11)
    small = Rollout(num_steps=1, num_samples=6, length=80, prompt=20, sharpness=2.0, seed=12)
    warm = replace(other, temperature=1.2)
    return (
        Case("shifted by one", "shifted", shifted(1), other),
        Case("shifted by one, few samples", "shifted", shifted(-1), small),
        Case("raw beside temperature 1.2", "temperature", at_temperature(1.0), warm),
        Case("temperature 0.8", "temperature", at_temperature(0.8), small),
        Case("top-p 0.9", "temperature", cut_by_top_p(0.9), other, is_noisy=False),
        Case("from position 96 on", "position", from_position(96, 1.0), other),
        Case("from position 40 on", "position", from_position(40, 0.7), small),
        Case("four samples of 60", "state", few({0: [1], 3: [2, 9], 4: [0]}), other),
        Case("one sample of 6", "state", few({0: [4]}, 1.2), small),
        Case("weights off by 7 %", "weights", other_weights(0.07), other),
        Case("weights off by 15 %", "weights", other_weights(0.15), small),
        Case("weights that stay behind", "synchronisation", other_weights(0.0, 0.04), other),
        Case("no update from step 3 on", "synchronisation", other_weights(0.12, first=3), other),
        Case("nothing", "", plainly, other),
        Case("nothing, few samples", "", plainly, small),
        Case("nothing, temperature 1.2", "", plainly, warm),
    )
