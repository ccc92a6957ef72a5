# SPDX-License-Identifier: Apache-2.0
"""What a model needs at run time, from its metadata: the weights, and the KV cache for a length of context."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

F16_BYTES = 2


def kv_cache_bytes(metadata: Mapping[str, Any], context: int) -> int | None:
    """Bytes of keys and values in F16 for `context` tokens, every layer attending to all of them (llama.cpp's default).

    None when the metadata does not tell (no `ARCH.block_count`, `ARCH.embedding_length`, `ARCH.attention.head_count`).
    With multi-head latent attention the values are part of the keys and take nothing of their own.
    """
    arch = metadata.get("general.architecture")

    def of(key: str) -> Any:
        return metadata.get(f"{arch}.{key}")

    layers, width, heads = of("block_count"), of("embedding_length"), of("attention.head_count")
    if not (isinstance(layers, int) and isinstance(width, int)) or heads is None:
        return None
    every = _per_layer(heads, layers)
    heads_kv = of("attention.head_count_kv")
    every_kv = every if heads_kv is None else _per_layer(heads_kv, layers)
    most = max(every, default=0)
    if most <= 0:
        return 0  # no attention at all
    key = of("attention.key_length") or width // most
    value = 0 if of("attention.key_length_mla") else of("attention.value_length") or width // most
    return context * F16_BYTES * sum(every_kv) * (key + value)


def _per_layer(value: Any, layers: int) -> list[int]:
    if isinstance(value, int):
        return [value] * layers
    return [number for number in value if isinstance(number, int)] if isinstance(value, Sequence) else []
