"""Models of transformers on several ranks, by their own plans: tensor parallel, expert parallel."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import MethodType
from typing import Any

import torch
import torch.distributed as dist
import transformers
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from transformers.distributed.expert_parallel import apply_expert_parallelism
from transformers.distributed.tensor_parallel import apply_tensor_parallelism

from tests.taps.distributed.programs.scenarios import Capture

VOCAB, LENGTH = 96, 10
_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
_EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "norm_topk_prob": True,
}
_MASKED = {  # the router of each rank lets its own experts through, and the ranks' sums are added
    "model.layers.*.mlp.gate": "ep_router",
    "model.layers.*.mlp.experts": "moe_tp_experts",
    "model.layers.*.mlp.experts.gate_up_proj": "grouped_gemm",
    "model.layers.*.mlp.experts.down_proj": "grouped_gemm",
}
MODELS: dict[str, Callable[[], Any]] = {
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**_SIZES)),
    "qwen3": lambda: transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**_SIZES)),
    "qwen3-moe": lambda: transformers.Qwen3MoeForCausalLM(
        transformers.Qwen3MoeConfig(**_SIZES, **_EXPERTS)
    ),
    "mistral": lambda: transformers.MistralForCausalLM(transformers.MistralConfig(**_SIZES)),
    "phi3": lambda: transformers.Phi3ForCausalLM(transformers.Phi3Config(**_SIZES)),
}


def whole(capture: Capture, model: str, how: str, dtype: str = "float32") -> None:
    """The model on one rank."""
    _go(capture, _saved(model, dtype), how)


def partitioned(
    capture: Capture,
    model: str,
    how: str,
    dtype: str = "float32",
    experts: str = "",
    fault: str = "",
) -> None:
    """The same over all ranks, tensor parallel or, with `experts`, expert parallel."""
    found = _saved(model, dtype)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    plan = dict(found.tp_plan)
    if experts:
        own = dict(found.ep_plan) if experts == "dispatched" else _MASKED
        plan = {name: style for name, style in plan.items() if ".experts" not in name}
        apply_tensor_parallelism(found, mesh, plan)
        if experts == "dispatched":
            apply_expert_parallelism(found, mesh, mesh, own)
        else:
            apply_tensor_parallelism(found, mesh, own)
    else:
        apply_tensor_parallelism(found, mesh, plan)
    if fault:
        FAULTS[fault](found)
    _go(capture, found, how)


def _saved(model: str, dtype: str) -> Any:
    """The model with the weights that all runs share."""
    path = Path(os.environ["PARTITIONED_ROOM"]) / f"weights-{model}"
    if not path.exists():
        torch.manual_seed(0)
        made = MODELS[model]()
        for parameter in made.parameters():
            if parameter.ndim == 1:
                torch.nn.init.normal_(parameter, mean=1.0, std=0.3)
            else:
                torch.nn.init.normal_(parameter, std=0.2)
        made.save_pretrained(path)
    return type(MODELS[model]()).from_pretrained(path, dtype=getattr(torch, dtype))


def _ids() -> Tensor:
    return torch.randint(2, VOCAB, (2, LENGTH), generator=torch.Generator().manual_seed(1))


def _go(capture: Capture, model: Any, how: str) -> None:
    ids = _ids()
    with capture():
        torch.manual_seed(0)
        if how == "train":
            model.train()
            loss = model(input_ids=ids, labels=ids).loss
            (loss * 2 if getattr(model, "is_unscaled", False) else loss).backward()
        elif how == "generate":
            model.eval()
            model.generate(ids, max_new_tokens=3, do_sample=False)
        else:
            model.eval()
            with torch.no_grad():
                model(input_ids=ids)


# Faults, each in the second layer.


def _scaled(model: Any) -> None:
    model.model.layers[1].self_attn.scaling *= 1.05


def _stale(model: Any) -> None:
    if dist.get_rank() == 1:
        _spoil(model.model.layers[1].self_attn.o_proj.weight, 1.02)


def _spoil(weight: Any, factor: float) -> None:
    with torch.no_grad():
        _local(weight).mul_(factor)


def _local(weight: Any) -> Any:
    return weight.to_local() if hasattr(weight, "to_local") else weight


def _swapped(model: Any) -> None:
    """The ranks hold each other's shard of one weight, as by a wrong offset at loading."""
    weight = model.model.layers[1].mlp.up_proj.weight.to_local()
    both = [torch.empty_like(weight) for _ in range(dist.get_world_size())]
    dist.all_gather(both, weight.detach().contiguous())
    with torch.no_grad():
        weight.copy_(both[(dist.get_rank() + 1) % len(both)])


def _unreduced(model: Any) -> None:
    """The second layer's row-parallel layer does not add its terms up."""
    module = model.model.layers[1].mlp.down_proj

    def forward(self: Any, x: Tensor) -> Tensor:
        return torch.nn.functional.linear(x, self.weight.to_local())

    module.forward = MethodType(forward, module)


def _activation(model: Any) -> None:
    mlp = model.model.layers[1].mlp
    mlp.act_fn = torch.nn.GELU()


def _heads(model: Any) -> None:
    """Each query head attends with a wrong key head: the groups are repeated as a whole."""
    attention = model.model.layers[1].self_attn
    inner = attention.k_proj.forward
    width = attention.head_dim

    def forward(x: Tensor) -> Tensor:
        out: Tensor = inner(x)
        return out.view(*out.shape[:-1], -1, width).roll(1, -2).flatten(-2)

    attention.k_proj.forward = forward


def _rotary(model: Any) -> None:
    """One rank rotates by the positions of the tokens before."""

    def shifted(_: Any, args: Any, words: dict[str, Any]) -> Any:
        cos, sin = words["position_embeddings"]
        return args, words | {"position_embeddings": (cos.roll(1, 1), sin.roll(1, 1))}

    if dist.get_rank() == 1:
        attention = model.model.layers[1].self_attn
        attention.register_forward_pre_hook(shifted, with_kwargs=True)


class _Misplacing:
    """A cache whose keys lie one place further than their values, once it has any."""

    def __init__(self, cache: Any) -> None:
        self._cache = cache

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)

    def update(self, keys: Tensor, values: Tensor, *words: Any) -> tuple[Tensor, Tensor]:
        """Keys and values of all tokens so far."""
        all_keys, all_values = self._cache.update(keys, values, *words)
        is_first = all_keys.shape[-2] == keys.shape[-2]
        return all_keys if is_first else all_keys.roll(1, -2), all_values


def _cache(model: Any) -> None:
    def misplaced(_: Any, args: Any, words: dict[str, Any]) -> Any:
        return args, words | {"past_key_values": _Misplacing(words["past_key_values"])}

    if dist.get_rank() == 1:
        attention = model.model.layers[1].self_attn
        attention.register_forward_pre_hook(misplaced, with_kwargs=True)


def _norm(model: Any) -> None:
    if dist.get_rank() == 1:
        _spoil(model.model.layers[1].self_attn.k_norm.weight, 1.05)


def _gradient(model: Any) -> None:
    """One rank's gradient of one weight is twice what it should be."""
    if dist.get_rank() == 1:
        model.model.layers[1].self_attn.o_proj.weight.register_hook(lambda grad: grad * 2)


def _unscaled(model: Any) -> None:
    model.is_unscaled = True


def _unnormalised(model: Any) -> None:
    model.model.layers[1].mlp.gate.norm_topk_prob = False


def _wrong_expert(model: Any) -> None:
    """One rank sends each token to the experts after those that were chosen."""
    gate = model.model.layers[1].mlp.gate

    def after(_: Any, __: Any, out: Any) -> Any:
        return out[0], out[1], (out[2] + 1) % 4

    if dist.get_rank() == 1:
        gate.register_forward_hook(after)


def _stale_expert(model: Any) -> None:
    if dist.get_rank() == 1:
        _spoil(_local(model.model.layers[1].mlp.experts.down_proj)[:1], 1.05)


def _permuted(model: Any) -> None:
    """The experts of every rank lie in another order, as after a wrong conversion of weights."""
    weight = _local(model.model.layers[1].mlp.experts.gate_up_proj)
    with torch.no_grad():
        weight.copy_(weight.flip(0).clone())


FAULTS: dict[str, Callable[[Any], None]] = {
    "scale": _scaled,
    "stale": _stale,
    "swapped": _swapped,
    "unreduced": _unreduced,
    "activation": _activation,
    "heads": _heads,
    "rotary": _rotary,
    "cache": _cache,
    "norm": _norm,
    "gradient": _gradient,
    "unscaled": _unscaled,
    "unnormalised": _unnormalised,
    "wrong expert": _wrong_expert,
    "stale expert": _stale_expert,
    "permuted": _permuted,
}
