"""What the table of partitioned runs runs, by name; no torch is needed to read it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Words = dict[str, Any]
_PROGRAMS = "tests.taps.distributed.programs"
_HAND = f"{_PROGRAMS}.scenarios"


@dataclass(frozen=True)
class Program:
    """A function that runs a model under a capture: where it is, and what it is told."""

    function: str  # module:name
    words: Words = field(default_factory=dict)
    mode: str = "eager"
    backward: bool = True


@dataclass(frozen=True)
class Planted:
    """A fault: what the program is told, and where the answer must point."""

    fault: str
    at: str  # a regular expression for the op
    rank: int | None = None  # where one rank alone is wrong: it must be named
    said: str = ""  # or must be said, as a regular expression
    near: str = r"(model\.)?layers\.1\b.*"  # ops of the same layer


@dataclass(frozen=True)
class Subject:
    """A way to run a model on several ranks, and the whole model that it is held against."""

    golden: str
    program: Program
    ranks: int = 2
    faults: tuple[Planted, ...] = ()


def _own(name: str, backward: bool = True, **words: Any) -> Program:
    home = _PROGRAMS if name.startswith(("staged", "contexts")) else "benchmarks.partitioned"
    return Program(f"{home}.{name}", words, backward=backward)


def _aten(name: str) -> Program:
    return Program(f"benchmarks.partitioned.{name}", mode="aten")


def _hugging(model: str, how: str, **words: Any) -> Program:
    return _own("hugging:partitioned", how == "train", model=model, how=how, **words)


GOLDENS: dict[str, Program] = {
    **{
        f"{model}-{how}": _own("hugging:whole", how == "train", model=model, how=how)
        for model in ("llama", "qwen3", "qwen3-moe")
        for how in ("forward", "generate", "train")
    },
    "plain": Program(f"{_HAND}:golden"),
    "plain-aten": Program(f"{_HAND}:golden", mode="aten"),
    "fused": Program(f"{_HAND}:golden", {"fused": True}),
    "two-steps": _own("staged:whole", steps=2),
    "experts": _own("routed:whole", backward=False),
    "places": _own("capacities:whole", backward=False, kind="places"),
    "groups": _own("capacities:whole", backward=False, kind="groups"),
    "long": _own("contexts:whole", backward=False),
    "gpt": _own("unseen_gpt:whole"),
    "conv": _own("unseen_others:conv_whole"),
    "skip": _own("unseen_others:skip_whole"),
    "capacity": _own("unseen_others:capacity_whole", backward=False),
    "stacked": _own("unseen_thirds:stacked_whole", backward=False),
    "grouped": _own("unseen_thirds:grouped_whole"),
    "functional": _own("unseen_thirds:functional_whole", backward=False),
    "recurrent": _own("unseen_fourths:recurrent_whole", backward=False),
    "flat": _own("unseen_fourths:flat_whole"),
    "axes": _own("unseen_axes:whole"),
    "vision": _own("unseen_fifths:vision_whole", backward=False),
    "translator": _own("unseen_fifths:translator_whole"),
    "device": _own("shared_device:whole"),
    "device-fused": _own("shared_device:whole", fused=True),
}

_LAYER = r"model\.layers\.1\.self_attn"
_MOE = r"model\.layers\.1\.mlp"
_TP_FAULTS = {
    one.fault: one
    for one in (
        Planted("scale", rf"{_LAYER}/(scaled_dot_product_attention|mul|softmax)"),
        Planted("stale", rf"{_LAYER}\.o_proj", rank=1),
        Planted("swapped", r"model\.layers\.1\.mlp\.up_proj", said="rank . holds the shard"),
        Planted("unreduced", r"model\.layers\.1\.mlp\.down_proj"),
        Planted("heads", rf"{_LAYER}\.k_proj(/.*)?"),
        Planted("activation", r"model\.layers\.1\.mlp(\.act_fn)?/(silu|gelu)"),
        Planted("rotary", rf"({_LAYER}|model\.layers\.1)/(roll|mul)", rank=1),
        Planted("cache", rf"{_LAYER}/(roll|cat)", rank=1),
        Planted("norm", rf"{_LAYER}\.k_norm(/mul)?", rank=1),
        Planted("gradient", rf"{_LAYER}\.o_proj(/linear)?", rank=1),
        Planted("unscaled", r"<root>.*|lm_head(/.*)?", said="2 times golden"),
        Planted("unnormalised", rf"{_MOE}\.gate(/(sum|itruediv|truediv|div|to))?"),
        Planted("wrong expert", rf"{_MOE}(\.gate)?/(add|remainder|topk)|{_MOE}\.gate", rank=1),
        Planted("stale expert", rf"{_MOE}\.experts", rank=1),
        Planted("permuted", rf"{_MOE}\.experts"),
    )
}


def _planted(*names: str) -> tuple[Planted, ...]:
    return tuple(_TP_FAULTS[name] for name in names)


_SPREAD = ("scale", "stale", "unnormalised", "stale expert", "permuted", "wrong expert")
_HUGGING = {
    ("llama", "forward"): ("scale", "stale", "swapped", "unreduced", "heads", "activation"),
    ("llama", "generate"): ("cache", "stale", "rotary"),
    ("llama", "train"): ("gradient", "activation", "unscaled"),
    ("qwen3", "forward"): ("norm", "heads", "unreduced"),
    ("qwen3", "generate"): ("cache", "rotary", "swapped"),
    ("qwen3", "train"): ("scale", "stale", "swapped", "unreduced", "activation"),
    ("qwen3-moe", "forward"): ("unnormalised", "wrong expert", "permuted"),
    ("qwen3-moe", "generate"): ("cache", "stale expert", "norm"),
    ("qwen3-moe", "train"): ("stale expert", "gradient", "unscaled"),
}
_LOSS = r"<root>|head(/linear)?"  # the loss is outside of the model: what it gives back first
_STAGED = (
    Planted("activation", r"layers\.1\.mlp/(relu|gelu)"),
    Planted("eps", r"layers\.1\.norm2/layer_norm"),
    Planted("weight", r"layers\.1\.attn\.o(/linear)?"),
    Planted("order", r"<root>", said="microbatch|order"),
    Planted("labels", _LOSS),
    Planted("unscaled", _LOSS, said="2 times golden"),
)

_IN_GRAPHS = (
    Planted("activation", r"layers\.1\.mlp/(relu|gelu)"),
    Planted("eps", r"layers\.1\.norm2/layer_norm"),
    Planted("stale", r"layers\.1\.attn\.o(/linear)?", rank=1),
)

_DISPATCHED = (
    Planted("activation", r"layers\.1\.mlp/aten\.(relu|gelu)"),
    Planted("eps", r"layers\.1\.norm2/aten\.native_layer_norm"),
)
_BACKWARD = r"<root>.*|head(/.*)?"  # what is nearest to the loss, which is outside of the model

_BY_HAND = (
    Planted("bias on every rank", r"layers\.1\.attn\.o/linear"),
    Planted("all_reduce twice", r"layers\.1\.attn\.o/all_reduce", said="2 times golden"),
    Planted("forgotten all_reduce", r"layers\.1\.attn\.o(/linear)?", said="partial|reduction"),
    Planted("stale weights", r"layers\.1\.attn\.o", rank=1),
    Planted("swapped shards", r"layers\.1\.attn\.qkv", said="holds the shard"),
    Planted("gradients not summed", r"layers\.1\.(norm1|attn\.qkv).*"),
)

_RING = (Planted("rescale", r"layers\.1\.attn/scaled_dot_product_attention", rank=1),)
_GATHERED = (
    Planted("own keys", r"layers\.1\.attn/cat", rank=1),
    Planted("mask", r"layers\.1\.attn/(ones_like|ge|scaled_dot_product_attention)"),
)

SUBJECTS: dict[str, Subject] = {
    **{
        f"hf tp {model} {how}": Subject(
            f"{model}-{how}",
            _hugging(model, how),
            faults=_planted(*names),
        )
        for (model, how), names in _HUGGING.items()
    },
    "hf tp llama bf16": Subject("llama-forward", _hugging("llama", "forward", dtype="bfloat16"),
                                faults=_planted("stale", "swapped", "activation")),
    "hf ep masked": Subject("qwen3-moe-forward", _hugging("qwen3-moe", "forward", experts="masked"),
                            faults=_planted(*_SPREAD)),
    "hf ep dispatched": Subject(
        "qwen3-moe-forward", _hugging("qwen3-moe", "forward", experts="dispatched"),
        faults=_planted(*_SPREAD)),
    "gpipe": Subject("plain", _own("staged:pipeline"), faults=_STAGED),
    "1f1b, two steps": Subject(
        "two-steps", _own("staged:pipeline", schedule="Schedule1F1B", steps=2), faults=_STAGED[1:]),
    "interleaved": Subject("plain", _own("staged:interleaved"), faults=_STAGED[:4]),
    "exported": Subject("plain", _own("staged:exported"), faults=_STAGED[:4]),
    "experts": Subject("experts", _own("routed:spread", False), faults=(
        Planted("wrong expert", r"layers\.1\.moe/(add|argsort)", rank=1),
        Planted("permutation", r"layers\.1\.moe/setitem"),
        Planted("weight", r"layers\.1\.moe\.experts\.3\.down(/linear)?", rank=1),
    )),
    **{
        f"experts with a capacity, {kind}": Subject(
            kind, _own("capacities:spread", False, kind=kind), faults=(
                Planted("wrong expert", r"moes\.1/(one_hot|add)", rank=1, near=r"moes\.1.*"),
                Planted("dropped all_to_all", rf"moes\.1/{back}", near=r"moes\.1.*"),
                Planted("combine weight", rf"moes\.1/{weighed}", rank=1, near=r"moes\.1.*"),
            ))
        for kind, back, weighed in (("places", "cat", "(mul|roll)"),
                                    ("groups", "einsum", "(getitem|mul)"))
    },
    "experts with a capacity, einsum": Subject(
        "capacity", _own("unseen_others:capacity_spread", False), faults=(
            Planted("not normalised", r"moes\.1/(mul|sum|div)", rank=1, near=r"moes\.1.*"),
            Planted("experts not sent back in order", r"moes\.1/(view|transpose|contiguous|flip)",
                    near=r"moes\.1.*"),
            Planted("expert weight", r"moes\.1(/bmm)?", rank=1, near=r"moes\.1.*"),
        )),
    **{
        f"context {how}": Subject("long", _own("contexts:partitioned", False, how=how), faults=(
            Planted("offset", r"layers\.1\.attn/(div|sub)", rank=1),
            Planted("weight", r"layers\.1\.down(/linear)?", rank=1),
            *(_RING if how == "ring" else _GATHERED),
        ))
        for how in ("gather", "ring", "zigzag")
    },
    "fsdp": Subject("plain", _own("sharded:fsdp"), faults=(
        Planted("activation", r"layers\.1\.mlp/(relu|gelu)"),
        Planted("eps", r"layers\.1\.norm2/layer_norm"),
        Planted("stale", r"layers\.1\.norm2(/layer_norm)?", rank=1),
        Planted("loss", _LOSS),
    )),
    "fsdp, two steps": Subject("two-steps", _own("sharded:fsdp", steps=2), faults=(
        Planted("eps", r"layers\.1\.norm2/layer_norm"),
        Planted("stale", r"layers\.1\.norm2(/layer_norm)?", rank=1),
        Planted("loss", _LOSS),
    )),
    "fsdp mixed": Subject("plain", _own("sharded:fsdp", mixed=True), faults=(
        Planted("activation", r"layers\.1\.mlp/(relu|gelu)"),
        Planted("eps", r"layers\.1\.norm2/layer_norm"),
        Planted("stale", r"layers\.1\.norm2(/layer_norm)?", rank=1),
    )),
    "aten tp+sp": Subject("plain-aten", _aten("dispatched:sequence_parallel"), faults=(
        *_DISPATCHED,
        Planted("stale", r"layers\.1\.attn\.o(/.*)?", rank=1),
        Planted("swapped", r"layers\.1\.mlp\.up(/.*)?", said="holds the shard"),
    )),
    "aten fsdp": Subject("plain-aten", _aten("sharded:fsdp"), faults=(
        *_DISPATCHED,
        Planted("stale", r"layers\.1\.norm2(/.*)?", rank=1),
        Planted("loss", _BACKWARD),
    )),
    "aten ddp": Subject("plain-aten", _aten("dispatched:replicas"), faults=(
        *_DISPATCHED,
        Planted("stale", r"layers\.1\.attn\.o(/.*)?", rank=1),
        Planted("not averaged", _BACKWARD, said="nothing that was recorded adds them up"),
    )),
    **{
        f"{mode} {how}": Subject(
            "plain", Program("benchmarks.partitioned.graphs:run",
                             {"how": how, "is_compiled": mode == "compiled"}, mode=mode),
            faults=_IN_GRAPHS,
        )
        for mode in ("fx", "compiled") for how in ("tp", "fsdp")
    },
    "megatron": Subject("fused", Program(f"{_HAND}:megatron"), faults=_BY_HAND),
}  # fmt: skip

_ON_DEVICE = (*_STAGED[:2], Planted("stale", r"layers\.1\.norm2(/layer_norm)?", rank=1))

# Several processes that share one GPU, or the CPU where there is none.
ONE_DEVICE: dict[str, Subject] = {
    "tensor parallel, DTensor": Subject("device", _own("shared_device:tensor_parallel"), faults=(
        *_STAGED[:2],
        Planted("stale", r"layers\.1\.attn\.o(/linear)?", rank=1),
        Planted("swapped", r"layers\.1\.mlp\.up(/linear)?", said="holds the shard"),
    )),
    "tensor parallel by hand": Subject(
        "device-fused", _own("shared_device:by_hand"), faults=_BY_HAND),
    "FSDP2": Subject("device", _own("shared_device:fsdp"), faults=(
        *_ON_DEVICE, Planted("loss", _LOSS))),
    "FSDP2, bf16 against fp32": Subject(
        "device", _own("shared_device:fsdp", mixed=True), faults=_ON_DEVICE),
    "pipeline, GPipe": Subject("device", _own("shared_device:pipeline"), faults=(
        *_STAGED[:4], _STAGED[5])),
}  # fmt: skip

# Other models in other hands. Nothing was tuned on them.
HELD_OUT: dict[str, Subject] = {
    "gpt, sequence parallel": Subject("gpt", _own("unseen_gpt:sequence_parallel"), faults=(
        Planted("local reduce", r"h\.2\.mlp(/.*)?", near=r"h\.2.*"),
        Planted("eps on one rank", r"h\.2\.ln_2/layer_norm", rank=1, near=r"h\.2.*"),
        Planted("key bias dropped", r"h\.2\.attn\.key.*", rank=1, near=r"h\.2.*"),
        Planted("old value weights", r"h\.2\.attn\.value.*", rank=1, near=r"h\.2.*"),
        Planted("relu for its square", r"h\.2\.mlp/(square|relu)", near=r"h\.2.*"),
    )),
    "convolutions, FSDP2": Subject("conv", _own("unseen_others:conv_sharded"), faults=(
        Planted("padding", r"blocks\.2\.conv_b/.*", near=r"blocks\.2.*"),
        Planted("groups of norm", r"blocks\.2\.gn_a/group_norm", near=r"blocks\.2.*"),
        Planted("stale convolution", r"blocks\.2\.conv_a", rank=1, near=r"blocks\.2.*"),
    )),
    "pipeline with a skip": Subject("skip", _own("unseen_others:skip_piped"), faults=(
        Planted("skip scaled", r"<root>(/mul)?|mix.*", near=r"up.*|<root>/.*"),
        Planted("other activation", r"<root>/(elu|celu)", near=r"up.*|<root>/.*"),
        Planted("weight on first", r"down1.*", near=r"down.*"),
    )),
    "experts in a loop, summed": Subject("stacked", _own("unseen_thirds:stacked_spread", False),
                                         faults=(
        Planted("scaled twice", r"ffn\.1/mul", rank=1, near=r"ffn\.1.*"),
        Planted("tanh gelu", r"ffn\.1/(gelu|relu)", rank=1, near=r"ffn\.1.*"),
        Planted("old expert", r"ffn\.1(/linear)?", rank=0, near=r"ffn\.1.*"),
    )),
    "groups in training, DDP": Subject("grouped", _own("unseen_thirds:grouped_spread"), faults=(
        Planted("sum for mean", r"body\.1/(mean|sum|sigmoid)", rank=1, near=r"body\.1.*"),
        Planted("half left out", r"body\.1/mul", rank=1, near=r"body\.1.*"),
        Planted("stale mix", r"body\.1\.mix(/linear)?", rank=1, near=r"body\.1.*"),
    )),
    "functional collectives": Subject("functional", _own("unseen_thirds:functional_split", False),
                                      faults=(
        Planted("not summed", r"1(/(add|all_reduce))?|1\.down(/linear)?", near=r"1\b.*"),
        Planted("largest for sum", r"1/(all_reduce|add)", near=r"1\b.*"),
        Planted("bias of another", r"1\.up(/linear)?", rank=1, near=r"1\b.*"),
    )),
    "recurrent, split by gates": Subject(
        "recurrent", _own("unseen_fourths:recurrent_split", False), faults=(
            Planted("gates exchanged", r"upper/(lerp|mul|rsub|add)", rank=1, near=r"upper.*"),
            Planted("parts exchanged", r"<root>/(all_gather|cat)", near=r"lower.*|<root>/.*"),
            Planted("stale gate", r"upper\.gate_h(/linear)?", rank=1, near=r"upper.*"),
        )),
    "two axes by hand": Subject("axes", _own("unseen_axes:two_axes"), ranks=4, faults=(
        Planted("inner scaled", r"1/(mul|silu)", rank=3, near=r"1\b.*"),
        Planted("wrong group", r"1/(all_reduce|matmul|add)|1", said="batch|partial|rank",
                near=r"1\b.*"),
        Planted("old rows", r"1(/.*)?", rank=3, near=r"1\b.*"),
        Planted("bucket over features", r"\d(/.*)?|<root>.*"),
    )),
    "tokens of images, exchanged for heads": Subject(
        "vision", _own("unseen_fifths:vision_split", False), faults=(
            Planted("scores not scaled", r"blocks\.1\.attn/(mul|scaled_dot_product_attention)",
                    rank=1, near=r"blocks\.1.*"),
            Planted("parts in another order", r"blocks\.1\.attn/(cat|getitem|view|all_to_all)",
                    rank=0, near=r"blocks\.1.*"),
            Planted("old fc1", r"blocks\.1\.fc1(/linear)?", rank=1, near=r"blocks\.1.*"),
            Planted("positions off by one", r"<root>/(getitem|add)", rank=1, near=r"<root>.*"),
        )),
    "encoder and decoder on two axes": Subject(
        "translator", _own("unseen_fifths:translator_meshed"), ranks=4, faults=(
            Planted("distances turned", r"writes\.1\.cross/(mul|sub)", near=r"writes\.1.*"),
            Planted("stale values", r"writes\.1\.cross\.v(/linear)?", rank=3,
                    near=r"writes\.1.*"),
            Planted("gate forgotten", r"writes\.1(\.wi)?(/(mul|linear))?", near=r"writes\.1.*"),
            Planted("another source", r"<root>", said="rank [23]"),
        )),
    "data parallel by hand": Subject("flat", _own("unseen_fourths:flat_spread"), faults=(
        Planted("slope", r"<root>/(Cube|mul|tanh|apply).*|first(/linear)?", near=r"<root>.*"),
        Planted("not averaged", r"(<root>|first|second)(/.*)?", near=r"<root>.*"),
        Planted("old scale", r"<root>(/mul)?", rank=1, near=r"<root>.*"),
    )),
}  # fmt: skip

ALL = SUBJECTS | HELD_OUT | ONE_DEVICE
