# SPDX-License-Identifier: Apache-2.0
"""Headers of models for make_quantize.py: names, shapes and the metadata that llama.cpp wants, but no values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Shapes = dict[str, list[int]]


@dataclass(frozen=True)
class Model:
    """`tensors`: name -> shape, the row last. Matrices are F16, vectors F32."""

    name: str
    metadata: Mapping[str, Any]
    tensors: Shapes


def metadata(
    arch: str, layers: int, width: int, heads: Any = None, heads_kv: Any = None, **more: Any
) -> dict[str, Any]:
    """`more`: further keys, with __ where a dot stands."""
    keys: dict[str, Any] = {"context_length": 2048, "embedding_length": width, "block_count": layers}
    keys |= {"attention.layer_norm_epsilon": 1e-5, "attention.layer_norm_rms_epsilon": 1e-5, "vocab_size": 32000}
    if heads is not None:
        keys |= {"attention.head_count": heads, "attention.head_count_kv": heads if heads_kv is None else heads_kv}
    keys |= {key.replace("__", "."): value for key, value in more.items()}
    return {"general.architecture": arch} | {f"{arch}.{key}": value for key, value in keys.items()}


def ends(width: int, vocabulary: int, *, tied: bool = False) -> Shapes:
    found = {"token_embd.weight": [vocabulary, width], "output_norm.weight": [width]}
    return found if tied else found | {"output.weight": [vocabulary, width]}


def each(layers: int | Sequence[int], parts: Callable[[int], Shapes] | Shapes, prefix: str = "blk") -> Shapes:
    """`parts` in every layer, as weights unless a name says otherwise."""
    found = {}
    for layer in range(layers) if isinstance(layers, int) else layers:
        for name, shape in (parts(layer) if callable(parts) else parts).items():
            full = name if name.endswith((".weight", ".bias", "ssm_a", "ssm_d")) else f"{name}.weight"
            found[f"{prefix}.{layer}.{full}"] = shape
    return found


def split_attention(width: int, keys: int, queries: int = 0) -> Shapes:
    queries = queries or width
    matrices = {"attn_q": [queries, width], "attn_k": [keys, width], "attn_v": [keys, width]}
    return {"attn_norm": [width], **matrices, "attn_output": [width, queries]}


def fused_attention(width: int, keys: int) -> Shapes:
    return {"attn_norm": [width], "attn_qkv": [width + 2 * keys, width], "attn_output": [width, width]}


def gated(width: int, inner: int) -> Shapes:
    return {"ffn_norm": [width], "ffn_gate": [inner, width], "ffn_up": [inner, width], "ffn_down": [width, inner]}


def plain(width: int, inner: int) -> Shapes:
    return {"ffn_norm": [width], "ffn_up": [inner, width], "ffn_down": [width, inner]}


def experts(width: int, inner: int, count: int) -> Shapes:
    wide, narrow = [count, inner, width], [count, width, inner]
    stacked = {"ffn_gate_exps": wide, "ffn_up_exps": wide, "ffn_down_exps": narrow}
    return {"ffn_norm": [width], "ffn_gate_inp": [count, width], **stacked}


def split_experts(width: int, inner: int, count: int) -> Shapes:
    found: Shapes = {"ffn_norm": [width], "ffn_gate_inp": [count, width]}
    for k in range(count):
        found |= {f"ffn_{way}.{k}": [inner, width] for way in ("gate", "up")} | {f"ffn_down.{k}": [width, inner]}
    return found


def llama(name: str, layers: int, width: int, inner: int, heads: int, heads_kv: int, vocabulary: int = 32000,
          *, arch: str = "llama", tied: bool = False, feed: Shapes | None = None, **more: Any) -> Model:  # fmt: skip
    keys = width // heads * heads_kv
    parts = split_attention(width, keys) | (feed or gated(width, inner))
    if arch == "qwen2":
        parts |= {"attn_q.bias": [width], "attn_k.bias": [keys], "attn_v.bias": [keys]}
    about = metadata(arch, layers, width, heads, heads_kv, feed_forward_length=inner, **more)
    return Model(name, about, ends(width, vocabulary, tied=tied) | each(layers, parts))


def mixtral() -> list[Model]:
    count = {"expert_count": 8, "expert_used_count": 2}
    stacked = llama("mixtral-8x7b", 32, 4096, 14336, 32, 8, feed=experts(4096, 14336, 8), **count)
    split = llama("mixtral-8x7b-split", 32, 4096, 14336, 32, 8, feed=split_experts(4096, 14336, 8), **count)
    grok = llama("grok-1", 64, 6144, 32768, 48, 8, arch="grok", feed=experts(6144, 32768, 8), tied=True, **count)
    return [stacked, split, grok]


def falcon(name: str, layers: int, width: int, heads: int, heads_kv: int) -> Model:
    parts = fused_attention(width, width // heads * heads_kv) | plain(width, 4 * width)
    about = metadata("falcon", layers, width, heads, heads_kv, feed_forward_length=4 * width)
    return Model(name, about, ends(width, 65024) | each(layers, parts))


def gpt2() -> Model:
    parts = fused_attention(768, 768) | plain(768, 3072) | {"attn_qkv.bias": [2304]}
    return Model(
        "gpt2",
        metadata("gpt2", 12, 768, 12, feed_forward_length=3072),
        ends(768, 50257, tied=True) | {"position_embd.weight": [1024, 768]} | each(12, parts),
    )


def phi3() -> Model:
    parts = fused_attention(3072, 3072) | {"ffn_up": [16384, 3072], "ffn_down": [3072, 8192], "ffn_norm": [3072]}
    about = metadata("phi3", 32, 3072, 32, feed_forward_length=8192)
    return Model("phi3-mini", about, ends(3072, 32064) | each(32, parts))


def deepseek2() -> Model:
    width, count = 2048, 64

    def parts(layer: int) -> Shapes:
        latent = {"attn_q": [3072, width], "attn_kv_a_mqa": [576, width], "attn_kv_a_norm": [512]}
        attention = {"attn_norm": [width], **latent, "attn_kv_b": [4096, 512], "attn_output": [width, 2048]}
        if layer == 0:
            return attention | gated(width, 10944)
        shared = {"ffn_gate_shexp": [2816, width], "ffn_up_shexp": [2816, width], "ffn_down_shexp": [width, 2816]}
        return attention | experts(width, 1408, count) | shared

    about = metadata(
        "deepseek2", 27, width, 16, feed_forward_length=10944, expert_count=count, expert_used_count=6,
        expert_feed_forward_length=1408, expert_shared_count=2, expert_weights_scale=1.0, leading_dense_block_count=1,
        attention__kv_lora_rank=512, attention__key_length=192, attention__value_length=128, rope__dimension_count=64,
    )  # fmt: skip
    return Model("deepseek2-lite", about, ends(width, 102400) | each(27, parts))


def qwen3moe() -> Model:
    parts = split_attention(2048, 512, 4096) | {"attn_q_norm": [128], "attn_k_norm": [128]}
    about = metadata(
        "qwen3moe", 48, 2048, 32, 4, feed_forward_length=6144, expert_count=128, expert_used_count=8,
        expert_feed_forward_length=768, attention__key_length=128, attention__value_length=128,
    )  # fmt: skip
    return Model("qwen3-30b-a3b", about, ends(2048, 151936) | each(48, parts | experts(2048, 768, 128)))


def glm4moe() -> Model:
    """The last of the 47 blocks predicts the token after the next one, and counts."""
    width = 4096

    def parts(layer: int) -> Shapes:
        attention = split_attention(width, 1024, 12288) | {"attn_q.bias": [12288]}
        shared = {"ffn_gate_shexp": [1408, width], "ffn_up_shexp": [1408, width], "ffn_down_shexp": [width, 1408]}
        found = attention | (gated(width, 10944) if layer == 0 else experts(width, 1408, 128) | shared)
        return found | ({"nextn.eh_proj": [width, 2 * width], "nextn.enorm": [width]} if layer == 46 else {})

    about = metadata(
        "glm4moe", 47, width, 96, 8, feed_forward_length=10944, expert_count=128, expert_used_count=8,
        expert_shared_count=1, expert_feed_forward_length=1408, expert_weights_scale=1.0, expert_weights_norm=True,
        leading_dense_block_count=1, nextn_predict_layers=1, attention__key_length=128, attention__value_length=128,
    )  # fmt: skip
    return Model("glm4-air", about, ends(width, 151552) | each(47, parts))


def dbrx() -> Model:
    parts = fused_attention(6144, 1024) | experts(6144, 10752, 16) | {"attn_output_norm": [6144]}
    about = metadata(
        "dbrx", 40, 6144, 48, 8, feed_forward_length=10752, expert_count=16, expert_used_count=4,
        attention__clamp_kqv=8.0,
    )  # fmt: skip
    return Model("dbrx", about, ends(6144, 100352) | each(40, parts))


def mamba() -> Model:
    mixer = {"ssm_in": [3072, 768], "ssm_conv1d": [1536, 4], "ssm_x": [80, 1536], "ssm_dt": [1536, 48]}
    parts = {"attn_norm": [768], **mixer, "ssm_dt.bias": [1536], "ssm_a": [1536, 16], "ssm_d": [1536]}
    about = metadata(
        "mamba", 24, 768, 0, 0, feed_forward_length=0, ssm__conv_kernel=4, ssm__inner_size=1536, ssm__state_size=16,
        ssm__time_step_rank=48,
    )  # fmt: skip
    return Model("mamba-130m", about, ends(768, 50280, tied=True) | each(24, parts | {"ssm_out": [768, 1536]}))


def rwkv6() -> Model:
    width, inner = 2048, 7168
    square = {f"time_mix_{part}": [width, width] for part in ("receptance", "key", "value", "gate", "output")}
    small = {"time_mix_w1": [160, width], "time_mix_w2": [5, width, 32], "time_mix_lerp_x": [1, 1, width]}
    decay = {"time_mix_decay_w1": [64, width], "time_mix_decay_w2": [width, 64], "time_mix_first": [32, 64]}
    channel = {"channel_mix_key": [inner, width], "channel_mix_value": [width, inner]}
    fused = {"time_mix_lerp_fused": [5, 1, 1, width], "channel_mix_receptance": [width, width], "attn_norm": [width]}
    about = metadata(
        "rwkv6", 24, width, 0, feed_forward_length=inner, wkv__head_size=64, time_mix_extra_dim=32,
        time_decay_extra_dim=64, rescale_every_n_layers=6,
    )  # fmt: skip
    return Model("rwkv6-1b6", about, ends(width, 65536) | each(24, square | small | decay | channel | fused))


def bert() -> Model:
    parts = split_attention(384, 384) | plain(384, 1536) | {"attn_output_norm": [384], "layer_output_norm": [384]}
    about = metadata("bert", 12, 384, 12, feed_forward_length=1536, attention__causal=False)
    extra = {"position_embd.weight": [512, 384], "token_types.weight": [2, 384], "token_embd_norm.weight": [384]}
    return Model("bert-small", about, {"token_embd.weight": [30522, 384]} | extra | each(12, parts))


def t5() -> Model:
    own = split_attention(512, 384, 384) | gated(512, 1024)
    cross = {f"cross_attn_{part}": [384, 512] for part in "qkv"} | {"cross_attn_o": [512, 384]}
    found = ends(512, 32128) | each(8, own, "enc.blk") | each(8, own | cross, "dec.blk")
    found |= {"enc.blk.0.attn_rel_b.weight": [32, 6], "dec.blk.0.attn_rel_b.weight": [32, 6]}
    about = metadata(
        "t5", 8, 512, 6, feed_forward_length=1024, attention__key_length=64, attention__value_length=64,
        attention__relative_buckets_count=32, decoder_block_count=8,
    )  # fmt: skip
    return Model("t5-small", about, found)


def gemma3n() -> Model:
    width = 2048
    altup = {"altup_correct_coef": [4, 4], "altup_predict_coef": [16, 4], "altup_router": [4, width]}
    laurel = {"laurel_l": [64, width], "laurel_r": [width, 64], "laurel_post_norm": [width]}
    per_layer = {"inp_gate": [256, width], "proj": [width, 256], "post_norm": [width]}
    parts = split_attention(width, 512) | gated(width, 8192) | altup | laurel | per_layer
    extra = {
        "per_layer_token_embd.weight": [262144, 30 * 256], "per_layer_model_proj.weight": [30 * 256, width],
        "altup_proj.weight": [3, width, width], "altup_unembd_proj.weight": [3, width, width],
    }  # fmt: skip
    about = metadata("gemma3n", 30, width, 8, 2, feed_forward_length=8192, attention__sliding_window=512)
    return Model("gemma3n-e2b", about, ends(width, 262144, tied=True) | extra | each(30, parts))


def lfm2() -> Model:
    """Only some layers attend, so the first has no head of keys."""
    width, attending = 2048, (2, 5, 8, 10, 12, 14)

    def parts(layer: int) -> Shapes:
        mixer = {"shortconv.in_proj": [3 * width, width], "shortconv.out_proj": [width, width]}
        conv = mixer | {"shortconv.conv": [width, 3], "attn_norm": [width]}
        return (split_attention(width, 512) if layer in attending else conv) | gated(width, 8192)

    heads_kv = [8 if layer in attending else 0 for layer in range(16)]
    about = metadata("lfm2", 16, width, 32, heads_kv, feed_forward_length=8192, shortconv__l_cache=3)
    return Model("lfm2-1b2", about, ends(width, 65536, tied=True) | each(16, parts))


def deci() -> Model:
    """Heads and widths differ from layer to layer."""
    kinds = [(64, 8, 28672), (64, 8, 14336), (0, 0, 7168), (64, 4, 21504)]
    layers = [kinds[layer % 4] for layer in range(80)]

    def parts(layer: int) -> Shapes:
        heads, keys, inner = layers[layer]
        return (split_attention(8192, keys * 128) if heads else {}) | gated(8192, inner)

    about = metadata(
        "deci", 80, 8192, [heads for heads, _, _ in layers], [keys for _, keys, _ in layers],
        feed_forward_length=[inner for *_, inner in layers],
    )  # fmt: skip
    return Model("deci-51b", about, ends(8192, 128256) | each(80, parts))


MODELS: tuple[Model, ...] = (
    llama("llama-7b", 32, 4096, 11008, 32, 32),
    llama("llama-65b", 80, 8192, 22016, 64, 64),
    llama("llama-70b", 80, 8192, 28672, 64, 8, 128256),
    llama("qwen2-72b", 80, 8192, 29568, 64, 8, 152064, arch="qwen2"),
    deci(),
    *mixtral(),
    dbrx(),
    qwen3moe(),
    glm4moe(),
    deepseek2(),
    llama("gemma2-2b", 26, 2304, 9216, 8, 4, 256000, arch="gemma2", tied=True, attention__sliding_window=4096),
    llama("qwen2-0b5", 24, 896, 4864, 14, 2, 151936, arch="qwen2", tied=True),
    llama("smollm-135m", 30, 576, 1536, 9, 3, 49152, tied=True),
    llama("rows-of-288", 6, 288, 768, 6, 6),
    llama("rows-of-300", 9, 512, 300, 8, 4),
    falcon("falcon-7b", 32, 4544, 71, 1),
    falcon("falcon-40b", 60, 8192, 128, 8),
    gpt2(),
    phi3(),
    mamba(),
    rwkv6(),
    bert(),
    t5(),
    gemma3n(),
    lfm2(),
)
