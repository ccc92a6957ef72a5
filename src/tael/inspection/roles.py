# SPDX-License-Identifier: Apache-2.0
"""What a tensor is for, guessed from its name and rank: weight, bias, norm scale or shift, embedding, position, other.

The names are those of PyTorch and transformers, TensorFlow and Keras, Flax and Haiku, GGUF.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal, get_args

from tael.core.tensor import TensorInfo

Role = Literal["weight", "bias", "norm scale", "norm shift", "embedding", "position", "other"]
ROLES: tuple[Role, ...] = get_args(Role)

_COMPONENTS = re.compile(r"(?:(?P<parent>[^./]*)[./])?(?P<leaf>[^./]*?)(?::\d+)?$")  # TensorFlow has ":0" at the end
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
    known: dict[tuple[str, int, int, str, bool], Role] = {}  # layers differ in a number only
    found = {}
    for info in infos:
        paired = len(info.shape) == 1 and _is_paired(info, shapes)
        wide = sum(length != 1 for length in info.shape)
        key = (_DIGITS.sub("0", info.name), len(info.shape), wide, info.dtype.kind, paired)
        if key not in known:
            known[key] = _role(info, wide, paired)
        found[info.name] = known[key]
    return found


def _is_paired(info: TensorInfo, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    stem, dot, leaf = info.name.rpartition(".")
    partner = _PARTNER.get(leaf)
    return partner is not None and shapes.get(f"{stem}{dot}{partner}") == info.shape


def _role(info: TensorInfo, wide: int, paired: bool) -> Role:
    """wide: axes that are longer than 1."""
    name = _COMPONENTS.search(info.name.lower())
    leaf, parent = (name["leaf"], name["parent"] or "") if name else (info.name.lower(), "")
    rank = len(info.shape)
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
    if _WEIGHT.fullmatch(leaf) or (rank >= 2 and info.dtype.kind in ("float", "quantized", "complex")):
        return "weight"
    return "other"
