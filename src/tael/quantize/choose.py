# SPDX-License-Identifier: Apache-2.0
"""Which tensor gets which type: what llama-quantize chooses, and what the user says instead."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from tael.core.dtypes import DTYPES, DType
from tael.core.tensor import TensorInfo
from tael.errors import TransformError, clip
from tael.quantize.options import Options
from tael.quantize.recipes import FALLBACK, RULES, Recipe

_LAYER = re.compile(r"blk\.(\d+)\.")

# What a name has to hold, or be, for a tensor to stay as it is.
_KEPT_PARTS = (
    "_norm.weight", "ffn_gate_inp.weight", "altup", "laurel", "per_layer_model_proj", "ssm_conv1d",
    "shortconv.conv.weight",
    "time_mix_first.weight", "time_mix_w0.weight", "time_mix_w1.weight", "time_mix_w2.weight", "time_mix_v0.weight",
    "time_mix_v1.weight", "time_mix_v2.weight", "time_mix_a0.weight", "time_mix_a1.weight", "time_mix_a2.weight",
    "time_mix_g1.weight", "time_mix_g2.weight", "time_mix_decay_w1.weight", "time_mix_decay_w2.weight",
    "time_mix_lerp_fused.weight", "attn_rel_b.weight", ".position_embd", "sam.pos_embd", "sam.neck.", "sam.net_",
    ".rel_pos", ".patch_embd", ".patch_merger",
)  # fmt: skip
_KEPT_NAMES = frozenset(("position_embd.weight", "token_types.weight"))

# Categories by what the name holds, in this order.
_CATEGORIES = (
    ("attn_qkv.weight", "attn_v"), ("attn_kv_b.weight", "attn_v"), ("attn_v.weight", "attn_v"),
    ("attn_k.weight", "attn_k"), ("attn_q.weight", "attn_q"), ("attn_output.weight", "attn_output"),
    ("ffn_up", "ffn_up"), ("ffn_gate", "ffn_gate"), ("ffn_down", "ffn_down"),
)  # fmt: skip
_EMBEDDINGS = frozenset(("token_embd.weight", "per_layer_token_embd.weight"))
_OUTPUT = "output.weight"
# Architectures that call themselves 70B at so many layers (llama: unless every head has its own keys).
_LAYERS_OF_70B = {"llama": 80, "deci": 80, "olmo": 80, "qwen2": 80, "jais2": 68}


@dataclass(frozen=True, slots=True)
class Choice:
    """The type of one tensor, and why. `fallback`: a row that no block divides made it another than was meant."""

    name: str
    dtype: DType
    why: str
    fallback: bool = False


def choose(
    tensors: Sequence[TensorInfo], recipe: Recipe, *, metadata: Mapping[str, Any], options: Options
) -> list[Choice]:
    """The type of every tensor, in the order in which they will stand in the file: positions count.

    Raises `TransformError` for a pattern that matches nothing, and for a type that a row does not fit.
    """
    model = _Model.of(tensors, metadata, options)
    used: set[int] = set()
    choices = [_choice(tensor, recipe, model, options, used) for tensor in tensors]
    for number, (pattern, _) in enumerate(options.tensors):
        if number not in used:
            raise TransformError(f"no tensor that can be quantized matches {clip(pattern.pattern)!r}")
    for pattern in options.keep:
        if not any(pattern.search(tensor.name) for tensor in tensors):
            raise TransformError(f"no tensor matches {clip(pattern.pattern)!r}")
    return choices


def output_order(names: Iterable[str]) -> list[str]:
    """The order of llama.cpp's files: what belongs to no layer, then layer by layer, by name (as bytes) within."""

    def key(name: str) -> tuple[int, bytes]:
        found = _LAYER.match(name)
        return (int(found[1]) if found else -1, name.encode("utf-8", "surrogateescape"))

    return sorted(names, key=key)


def requires_imatrix(name: str, dtype: DType, recipe: Recipe) -> bool:
    """Does llama.cpp refuse this type for this tensor without an importance matrix?"""
    if name in _EMBEDDINGS or name == _OUTPUT:
        return False
    return dtype.name in _NEED_IMATRIX or (dtype.name == "Q2_K" and recipe.name == "Q2_K_S")


_NEED_IMATRIX = frozenset(("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS"))


# --- what the conditions look at --------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Model:
    """Facts of the model, and how many tensors of a category came before."""

    arch: str
    layers: int
    experts: int
    gqa: int
    is_70b: bool
    tied: bool
    has_imatrix: bool
    attn_v_count: int
    seen: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("attn_v", "ffn_down", "ffn_gate", "ffn_up"), 0))

    @classmethod
    def of(cls, tensors: Sequence[TensorInfo], metadata: Mapping[str, Any], options: Options) -> _Model:
        arch = str(metadata.get("general.architecture", ""))

        def number(key: str, default: int) -> int:
            value = metadata.get(f"{arch}.{key}", default)
            if isinstance(value, Sequence) and not isinstance(value, str):
                value = value[0] if len(value) else default
            return value if isinstance(value, int) else default

        numbers = [int(found[1]) for tensor in tensors if (found := _LAYER.match(tensor.name))]
        layers = number("block_count", max(numbers, default=-1) + 1)
        heads = number("attention.head_count", 1)
        heads_kv = number("attention.head_count_kv", heads)
        is_70b = layers == _LAYERS_OF_70B.get(arch) and (arch != "llama" or heads != heads_kv)
        return cls(
            arch,
            layers,
            number("expert_count", 0),
            heads // heads_kv if heads_kv else 0,
            is_70b,
            all(tensor.name != _OUTPUT for tensor in tensors),
            options.has_imatrix,
            sum(category_of(tensor.name) == "attn_v" for tensor in tensors),
        )


@dataclass(frozen=True, slots=True)
class _Place:
    """One tensor within the model. `position`: how many of its kind came before; `layer`: of the model."""

    model: _Model
    position: int
    layer: int
    count: int
    cuts: bool

    def more_bits(self) -> bool:
        n, i = self.count, self.layer
        return i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2


CONDITIONS: dict[str, Callable[[_Place], bool]] = {
    "falcon": lambda p: p.model.arch == "falcon",
    "not falcon": lambda p: p.model.arch != "falcon",
    "70B": lambda p: p.model.is_70b,
    "8 experts": lambda p: p.model.experts == 8,
    "4 or more experts": lambda p: p.model.experts >= 4,
    "gqa 4 or more": lambda p: p.model.gqa >= 4,
    "imatrix": lambda p: p.model.has_imatrix,
    "no imatrix": lambda p: not p.model.has_imatrix,
    "row cuts a block": lambda p: p.cuts,
    "more bits": _Place.more_bits,
    "among the first 2": lambda p: p.position < 2,
    "among the first 4": lambda p: p.position < 4,
    "first eighth": lambda p: p.layer < p.count // 8,
    "first sixteenth": lambda p: p.layer < p.count // 16,
    "in the middle": lambda p: p.count // 8 <= p.layer < 7 * p.count // 8,
    "counted in the first eighth": lambda p: p.position < p.count // 8,
}


# --- one tensor -------------------------------------------------------------------------------------------------------


def category_of(name: str) -> str:
    if name == _OUTPUT:
        return "output"
    if name in _EMBEDDINGS:
        return "embedding"
    return next((category for part, category in _CATEGORIES if part in name), "other")


def _choice(tensor: TensorInfo, recipe: Recipe, model: _Model, options: Options, used: set[int]) -> Choice:
    name, category = tensor.name, category_of(tensor.name)
    reason = _kept(tensor, options)
    if reason:
        return Choice(name, tensor.dtype, reason)
    if options.embedding is not None and category == "embedding":
        return _checked(tensor, options.embedding, "asked for: embedding")
    if options.output is not None and category == "output":
        return _checked(tensor, options.output, "asked for: output")
    manual = next((k for k, (pattern, _) in enumerate(options.tensors) if pattern.search(name)), None)
    if manual is not None:
        used.add(manual)
        pattern, dtype = options.tensors[manual]
        return _fallback(tensor, dtype, f"asked for: {pattern.pattern}")
    found = _LAYER.match(name)
    for asked in options.layers if found else ():
        layer = int(found[1]) if found else 0
        place = (layer + 0.5) / max(1, model.layers) if asked.fractions else layer
        if asked.first <= place <= asked.last:
            return _fallback(tensor, asked.dtype, f"asked for: layer {layer}")
    if options.pure or recipe.dtype.kind != "quantized":
        return _checked(tensor, recipe.dtype, "pure" if options.pure else recipe.name)
    dtype, why = _by_rules(tensor, category, recipe, model, options)
    return _fallback(tensor, dtype, why)


def _kept(tensor: TensorInfo, options: Options) -> str | None:
    """Why a tensor stays as it is, or None."""
    name = tensor.name
    if not (tensor.dtype.is_float or tensor.dtype.kind == "quantized"):
        return f"kept: {tensor.dtype} is no float"
    if _axes(tensor.shape) < 2:
        return "kept: one axis"
    if not name.endswith("weight"):
        return "kept: no weight"
    part = next((part for part in _KEPT_PARTS if part in name), None)
    if part is not None or name in _KEPT_NAMES:
        return "kept: norm" if part == "_norm.weight" else "kept: small and sensitive"
    if options.leave_output and name == _OUTPUT:
        return "kept: output, as asked for"
    if any(pattern.search(name) for pattern in options.keep):
        return "kept: as asked for"
    return None


def _axes(shape: Sequence[int]) -> int:
    """As ggml counts them: leading axes of length 1 are none."""
    lengths = list(shape)
    while len(lengths) > 1 and lengths[0] == 1:
        lengths.pop(0)
    return len(lengths)


def _by_rules(tensor: TensorInfo, category: str, recipe: Recipe, model: _Model, options: Options) -> tuple[DType, str]:
    default = recipe.dtype
    as_output = category == "output" or (category == "embedding" and model.tied)
    if as_output:
        if options.output is not None:
            return options.output, "asked for: output"
        label = "output" if category == "output" else "tied embedding, as the output"
    else:
        label = category
    if recipe.name == "MXFP4_MOE" and not as_output:
        experts = len(tensor.shape) >= 3 and tensor.shape[-3] > 1
        return (DTYPES["MXFP4"], "experts") if experts else (DTYPES["Q8_0"], "no expert")
    position = model.seen.get(category, 0)
    if category in model.seen and not as_output:
        model.seen[category] += 1
    place = _place(tensor, category, model, position, default)
    for words, result in _rules("output" if as_output else category, recipe.name):
        if all(CONDITIONS[word](place) for word in words):
            plain, _, large = result.partition(" | 70B: ")
            kind = large if large and model.is_70b else plain
            shown = ", ".join(word for word in words if word != "not falcon")
            why = f"{label}: {shown}" if shown else label
            return (default, label) if kind == "default" else (DTYPES[kind], why)
    return default, recipe.name if label == "other" else label


@cache
def _rules(category: str, recipe: str) -> list[tuple[list[str], str]]:
    """What RULES say of this category under this recipe: the condition's words, the type."""
    return [
        (condition.split(", ") if condition else [], result)
        for of, recipes, condition, result in RULES
        if of == category and (not recipes or recipe in recipes.split())
    ]


def _place(tensor: TensorInfo, category: str, model: _Model, position: int, default: DType) -> _Place:
    """Experts are not numbered in the order of their layers, so with experts the layer is that of the name."""
    count = model.attn_v_count if category == "attn_v" else model.layers
    layer = position
    if model.experts > 1 and category.startswith("ffn_"):
        found = _LAYER.match(tensor.name)
        layer = int(found[1]) if found else position
    row = tensor.shape[-1] if tensor.shape else 1
    return _Place(model, position, layer, count, row % default.block != 0)


def _fallback(tensor: TensorInfo, dtype: DType, why: str) -> Choice:
    row = tensor.shape[-1]
    if row % dtype.block == 0:
        return Choice(tensor.name, dtype, why)
    other = DTYPES[FALLBACK[dtype.name]] if dtype.name in FALLBACK else DTYPES["F16"]
    if row % other.block:
        other = DTYPES["F16"]
    more = (other.bits / dtype.bits - 1) * 100
    words = f"rows of {row:,} are no multiple of {dtype.block}, the block of {dtype}: {other} instead ({more:+.0f} %)"
    return Choice(tensor.name, other, words, True)


def _checked(tensor: TensorInfo, dtype: DType, why: str) -> Choice:
    """A type that is not to be exchanged: a row that does not fit falls back all the same, and says so."""
    return _fallback(tensor, dtype, why)
