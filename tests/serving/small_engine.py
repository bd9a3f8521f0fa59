"""A small engine with the interfaces of vLLM: continuous batches, chunked prefill, paged cache."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

BLOCK, WIDTH, VOCABULARY = 4, 8, 32  # tokens of a block of the cache


class PagedModel(nn.Module):
    """One layer of attention over a paged cache; its tokens lie one request after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.project = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.logits_processor = LogitsProcessor(nn.Linear(WIDTH, VOCABULARY))
        self.pages = torch.zeros(64, BLOCK, WIDTH)
        self.tables: list[list[int]] = []  # of each request in the batch, its blocks
        self.lengths: list[int] = []  # rows of each request in the batch

    def forward(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        x = self.project(self.embed(input_ids))
        found, start = [], 0
        for table, length in zip(self.tables, self.lengths, strict=True):
            own, at = x[start : start + length], positions[start : start + length]
            for row, position in zip(own, at.tolist(), strict=True):
                self.pages[table[position // BLOCK], position % BLOCK] = row
            seen = self.pages[table].reshape(-1, WIDTH)[: int(at[-1]) + 1]
            mask = torch.arange(len(seen))[None] <= at[:, None]
            scores = (own @ seen.T).masked_fill(~mask, -torch.inf).softmax(-1)
            found.append(scores @ seen)
            start += length
        filling = x[start:]  # rows that fill a batch up belong to nobody
        return torch.cat([*found, filling])

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        found: Tensor = self.logits_processor(hidden_states)
        return found


class LogitsProcessor(nn.Module):
    def __init__(self, head: nn.Linear) -> None:
        super().__init__()
        self.head = head

    def forward(self, hidden_states: Tensor) -> Tensor:
        found: Tensor = self.head(hidden_states)
        return found


@dataclass
class Request:
    req_id: str
    tokens: list[int]
    blocks: list[int]
    num_computed: int = 0
    num_left: int = 3  # tokens to generate


@dataclass
class Runner:
    """As vLLM's model runner: it has the batch, prepares inputs and runs dummies."""

    model: PagedModel = field(default_factory=PagedModel)
    requests: dict[str, Request] = field(default_factory=dict)
    input_batch: Any = None

    def get_model(self) -> PagedModel:
        return self.model

    def _dummy_run(self, num_tokens: int) -> None:
        self.model.tables, self.model.lengths = [[0] * num_tokens], [num_tokens]
        self.model(torch.zeros(num_tokens, dtype=torch.int64), torch.arange(num_tokens))

    def _prepare_inputs(self, scheduled: dict[str, int], lengths: Any) -> tuple[Tensor, None, int]:
        return torch.tensor(np.cumsum(lengths) - 1), None, 1

    @torch.inference_mode()
    def execute_model(self, scheduled: dict[str, int], padded_to: int = 0) -> dict[str, int]:
        """Run so many tokens of each request; gives the next token of those that are through."""
        chosen = [self.requests[name] for name in scheduled]
        lengths = np.array(list(scheduled.values()))
        computed = np.array([request.num_computed for request in chosen])
        self.input_batch = SimpleNamespace(
            req_ids=[f"{name}-0123abcd" for name in scheduled], num_computed_tokens_cpu=computed
        )
        indices, *_ = self._prepare_inputs(scheduled, lengths)
        ids = [t for r, n in zip(chosen, lengths, strict=True)
               for t in r.tokens[r.num_computed : r.num_computed + int(n)]]  # fmt: skip
        positions = [p for r, n in zip(chosen, lengths, strict=True)
                     for p in range(r.num_computed, r.num_computed + int(n))]  # fmt: skip
        filling = [0] * max(0, padded_to - len(ids))
        self.model.tables = [request.blocks for request in chosen]
        self.model.lengths = [int(n) for n in lengths]
        hidden = self.model(torch.tensor(ids + filling), torch.tensor(positions + filling))
        logits = self.model.compute_logits(hidden[indices])
        found = {}
        for request, n, row in zip(chosen, lengths, logits, strict=True):
            request.num_computed += int(n)
            if request.num_computed == len(request.tokens):
                found[request.req_id] = int(row.argmax())
        return found


class Worker:
    """As vLLM's worker."""

    def __init__(self) -> None:
        self.model_runner = Runner()
        self.is_shut_down = False

    def load_model(self) -> None:
        torch.manual_seed(0)
        self.model_runner.model = PagedModel()

    def execute_model(self, scheduled: dict[str, int], padded_to: int = 0) -> dict[str, int]:
        return self.model_runner.execute_model(scheduled, padded_to)

    def shutdown(self) -> None:
        self.is_shut_down = True


def serve(worker: Worker, prompts: dict[str, list[int]], budget: int, padded_to: int = 0) -> None:
    """Serve prompts: decode what is running, and fill the budget up with chunks of prefills."""
    waiting = [Request(name, list(tokens), [4 * i + j for j in range(4)])
               for i, (name, tokens) in enumerate(prompts.items())]  # fmt: skip
    running: list[Request] = []
    while waiting or running:
        scheduled: dict[str, int] = {}
        left = budget
        running += waiting[:1]  # one joins at each step
        del waiting[:1]
        for request in running:
            wanted = min(left, len(request.tokens) - request.num_computed)
            if wanted:
                scheduled[request.req_id] = wanted
                left -= wanted
        worker.model_runner.requests = {request.req_id: request for request in running}
        for name, token in worker.execute_model(scheduled, padded_to).items():
            request = worker.model_runner.requests[name]
            request.num_left -= 1
            request.tokens.append(token)
        running = [request for request in running if request.num_left]
