# SPDX-License-Identifier: Apache-2.0
"""What a tensor is for, guessed from its name and rank: weight, bias, norm scale or shift, embedding, position, other.

The names are those of PyTorch and transformers, TensorFlow and Keras, Flax and Haiku, GGUF.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Literal

from tael.core.tensor import TensorInfo

Role = Literal["weight", "bias", "norm scale", "norm shift", "embedding", "position", "other"]

_LONGEST = 100  # characters of a component with a meaning
_DIGITS = re.compile(r"\d+")
_PARTNER = {"weight": "bias", "bias": "weight", "gamma": "beta", "beta": "gamma", "scale": "bias"}

# Of the last component, or the one before it, in small letters.
_STATISTICS = re.compile(r"running_(mean|var)|moving_(mean|variance)|num_batches_tracked")
_POSITION = re.compile(
    r"wpe|pos(ition(al)?)?_?(ids|emb\w*|enc\w*|bias\w*|table\w*)|\w+_pos(ition)?_(emb\w*|enc\w*)|positions?"
    r"|relative_(position|attention_bias)\w*|rel_pos\w*|rotary\w*|rope\w*|inv_freq|freqs?_cis"
)
_NORM = re.compile(r"\w*norm(ali[sz]ation)?(_?\d+)?|\w*norm_\w*|ln(_?\w{1,5})?|\w+_ln|[bgl]n_?\d*|rms\w*")
_EMBEDDING = re.compile(
    r"wte|shared|emb|embed(_tokens|_in|s)?|\w*embeddings?|tok(en)?_?(embd?|types?)\w*|word_emb\w*|(cls|mask|dist|register)_tokens?"
)
_SCALE = re.compile(r"weight|gamma|scale|g")
_SHIFT = re.compile(r"bias|beta|offset|b")
_BIAS = re.compile(r"(\w*_)?bias(_\w*)?|beta|offset|b|b_[ih]h")
_WEIGHT = re.compile(r"(\w*_)?q?weight(_\w*)?|kernel|w")


def roles(tensors: Iterable[TensorInfo]) -> dict[str, Role]:
    """Name -> role. A vector with its partner beside it (`weight` and `bias` of one shape) is a norm by any name."""
    infos = list(tensors)
    shapes = {info.name: info.shape for info in infos}
    seen: dict[tuple[str, str, tuple[int, ...], str, bool], Role] = {}  # layers have the same last components
    found = {}
    for info in infos:
        name, shape = info.name, info.shape
        head, _, leaf = name.rpartition(".")
        parent = head[head.rfind(".") + 1 :]
        paired = len(shape) == 1 and _is_paired(info, shapes)
        key = (parent, leaf, shape, info.dtype.kind, paired)
        role = seen.get(key)
        if role is None:
            wide = len(shape) - shape.count(1)
            role = seen[key] = _role(_ends(f"{parent}.{leaf}"), len(shape), wide, info.dtype.kind, paired)
        found[name] = role
    return found


def _ends(tail: str) -> tuple[str, str]:
    """The component before the last, and the last, in small letters, numbers as 0; "" for what is too long."""
    head, _, leaf = tail.replace("/", ".").rpartition(".")
    parent = head[head.rfind(".") + 1 :]
    stem, colon, output = leaf.rpartition(":")  # TensorFlow has ":0" at the end
    if colon and output.isdecimal():
        leaf = stem
    short = [_DIGITS.sub("0", part.lower()) if len(part) <= _LONGEST else "" for part in (parent, leaf)]
    return short[0], short[1]


def _is_paired(info: TensorInfo, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    stem, dot, leaf = info.name.rpartition(".")
    partner = _PARTNER.get(leaf)
    return partner is not None and shapes.get(f"{stem}{dot}{partner}") == info.shape


@lru_cache(10_000)
def _role(ends: tuple[str, str], rank: int, wide: int, kind: str, paired: bool) -> Role:
    """wide: axes that are longer than 1."""
    parent, leaf = ends
    if _STATISTICS.fullmatch(leaf):
        return "other"
    if _POSITION.fullmatch(leaf) or _POSITION.fullmatch(parent):
        return "position"
    if wide <= 1 and (paired or _NORM.fullmatch(parent)):
        if _SCALE.fullmatch(leaf):
            return "norm scale"
        if _SHIFT.fullmatch(leaf):
            return "norm shift"
    if wide <= 2 and (_EMBEDDING.fullmatch(leaf) or (rank >= 2 and _EMBEDDING.fullmatch(parent))):
        return "embedding"
    if _BIAS.fullmatch(leaf):
        return "bias"
    if _WEIGHT.fullmatch(leaf) or (rank >= 2 and kind in ("float", "quantized", "complex")):
        return "weight"
    return "other"
