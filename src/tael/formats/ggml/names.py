# SPDX-License-Identifier: Apache-2.0
"""Names in GGML files -> names in GGUF files, per layout. Tables; the number of a block is {}.

Sources: the loaders of the ggml examples (gpt-2, gpt-j, gpt-neox, mpt, replit, starcoder, bloom), of llama.cpp before
GGUF and of bloomz.cpp; gguf-py's tensor names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

_BOTH = ("weight", "bias")


def _pairs(table: Mapping[str, str]) -> dict[str, str]:
    """Rows for weight and bias of each."""
    return {f"{old}.{part}": f"{new}.{part}" for old, new in table.items() for part in _BOTH}


def _slashes(table: Mapping[str, str], parts: tuple[str, str]) -> dict[str, str]:
    named = zip(parts, _BOTH, strict=True)
    return {f"{old}/{short}": f"{new}.{part}" for short, part in named for old, new in table.items()}


_LLAMA = {
    "tok_embeddings.weight": "token_embd.weight",
    "norm.weight": "output_norm.weight",
    "output.weight": "output.weight",
    "layers.{}.attention_norm.weight": "blk.{}.attn_norm.weight",
    "layers.{}.attention.wq.weight": "blk.{}.attn_q.weight",
    "layers.{}.attention.wk.weight": "blk.{}.attn_k.weight",
    "layers.{}.attention.wv.weight": "blk.{}.attn_v.weight",
    "layers.{}.attention.wo.weight": "blk.{}.attn_output.weight",
    "layers.{}.ffn_norm.weight": "blk.{}.ffn_norm.weight",
    "layers.{}.feed_forward.w1.weight": "blk.{}.ffn_gate.weight",
    "layers.{}.feed_forward.w2.weight": "blk.{}.ffn_down.weight",
    "layers.{}.feed_forward.w3.weight": "blk.{}.ffn_up.weight",
}

_GPT2 = (
    {"model/wte": "token_embd.weight", "model/wpe": "position_embd.weight", "model/lm_head": "output.weight"}
    | _slashes({"model/ln_f": "output_norm", "model/ln_wte": "token_embd_norm"}, ("g", "b"))
    | _slashes({"model/h{}/ln_1": "blk.{}.attn_norm", "model/h{}/ln_2": "blk.{}.ffn_norm"}, ("g", "b"))
    | _slashes(
        {
            "model/h{}/attn/c_attn": "blk.{}.attn_qkv",
            "model/h{}/attn/c_proj": "blk.{}.attn_output",
            "model/h{}/mlp/c_fc": "blk.{}.ffn_up",
            "model/h{}/mlp/c_proj": "blk.{}.ffn_down",
        },
        ("w", "b"),
    )
)

_GPTJ = _pairs(
    {
        "transformer.wte": "token_embd",
        "transformer.ln_f": "output_norm",
        "lm_head": "output",
        "transformer.h.{}.ln_1": "blk.{}.attn_norm",
        "transformer.h.{}.attn.q_proj": "blk.{}.attn_q",
        "transformer.h.{}.attn.k_proj": "blk.{}.attn_k",
        "transformer.h.{}.attn.v_proj": "blk.{}.attn_v",
        "transformer.h.{}.attn.out_proj": "blk.{}.attn_output",
        "transformer.h.{}.mlp.fc_in": "blk.{}.ffn_up",
        "transformer.h.{}.mlp.fc_out": "blk.{}.ffn_down",
    }
)

_NEOX = _pairs(
    {
        "gpt_neox.embed_in": "token_embd",
        "gpt_neox.final_layer_norm": "output_norm",
        "embed_out": "output",
        "gpt_neox.layers.{}.input_layernorm": "blk.{}.attn_norm",
        "gpt_neox.layers.{}.attention.query_key_value": "blk.{}.attn_qkv",
        "gpt_neox.layers.{}.attention.dense": "blk.{}.attn_output",
        "gpt_neox.layers.{}.post_attention_layernorm": "blk.{}.ffn_norm",
        "gpt_neox.layers.{}.mlp.dense_h_to_4h": "blk.{}.ffn_up",
        "gpt_neox.layers.{}.mlp.dense_4h_to_h": "blk.{}.ffn_down",
    }
)

_MPT = _pairs(
    {
        "transformer.wte": "token_embd",
        "transformer.wpe": "position_embd",
        "transformer.norm_f": "output_norm",
        "lm_head": "output",
        "transformer.blocks.{}.norm_1": "blk.{}.attn_norm",
        "transformer.blocks.{}.attn.Wqkv": "blk.{}.attn_qkv",
        "transformer.blocks.{}.attn.q_ln": "blk.{}.attn_q_norm",
        "transformer.blocks.{}.attn.k_ln": "blk.{}.attn_k_norm",
        "transformer.blocks.{}.attn.out_proj": "blk.{}.attn_output",
        "transformer.blocks.{}.norm_2": "blk.{}.ffn_norm",
        "transformer.blocks.{}.ffn.up_proj": "blk.{}.ffn_up",
        "transformer.blocks.{}.ffn.down_proj": "blk.{}.ffn_down",
    }
)

_BLOOM = _pairs(
    {
        "tok_embeddings": "token_embd",
        "norm": "token_embd_norm",
        "output_norm": "output_norm",
        "output": "output",
        "layers.{}.attention_norm": "blk.{}.attn_norm",
        "layers.{}.attention.query_key_value": "blk.{}.attn_qkv",
        "layers.{}.attention.wo": "blk.{}.attn_output",
        "layers.{}.ffn_norm": "blk.{}.ffn_norm",
        "layers.{}.feed_forward.w1": "blk.{}.ffn_up",
        "layers.{}.feed_forward.w2": "blk.{}.ffn_down",
    }
)

NAMES: dict[str, Mapping[str, str]] = {
    "llama": _LLAMA,
    "gpt2": _GPT2,
    "gptj": _GPTJ,
    "gptneox": _NEOX,
    "mpt": _MPT,
    "replit": _MPT,
    "bloom": _BLOOM,
}

_BLOCK = re.compile(
    r"(model/h|layers\.|transformer\.h\.|transformer\.blocks\.|gpt_neox\.layers\.)(0|[1-9]\d{0,5})([./].+)"
)


def gguf_name(layout: str, name: str) -> str | None:
    """What GGUF calls the tensor, or None when the layout has no such name."""
    table = NAMES[layout]
    found = _BLOCK.fullmatch(name)
    if not found:
        return table.get(name) if "{}" not in name else None
    new = table.get(f"{found[1]}{{}}{found[3]}")
    return new.format(found[2]) if new else None


def fitting(layout: str, names: Iterable[str]) -> int:
    """How many of `names` belong to the layout."""
    return sum(gguf_name(layout, name) is not None for name in names)
