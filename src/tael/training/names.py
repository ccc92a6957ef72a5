# SPDX-License-Identifier: Apache-2.0
"""Names that changed with the libraries: LayerNorm's gamma and beta, weight norm's two spellings. Only when asked for.

LayerNorm.gamma, LayerNorm.beta                  ->  weight, bias     (BERT of TensorFlow, and its first ports)
NAME_g, NAME_v                                  <->  parametrizations.NAME.original0, .original1
"""

from __future__ import annotations

import math
import re
from typing import Literal, NamedTuple

from tael.core import ops
from tael.core.checkpoint import Checkpoint, Transform
from tael.core.node import Node
from tael.core.tensor import Tensor
from tael.errors import TransformError, UnsupportedTensorError
from tael.training.extras import renamed
from tael.training.prefixes import apply_names

# The component is exactly LayerNorm: `ls1.gamma` and `gamma_proj.weight` are names of their own.
_LAYER_NORM = re.compile(r"((?:^|\.)LayerNorm\.)(gamma|beta)$")
_MODERN = {"gamma": "weight", "beta": "bias"}

_OLD_G = re.compile(r"(?P<head>.*?)(?P<name>[^.]+)_g")
_NEW_G = re.compile(r"(?P<head>.*?)parametrizations\.(?P<name>[^.]+)\.original0")

Spelling = Literal["parametrizations", "weight_g"]


class Pair(NamedTuple):
    """A weight-normed pair: the names of magnitude and direction, and of the weight they stand for."""

    g: str
    v: str
    weight: str


def fix_layernorm_names(checkpoint: Checkpoint) -> Checkpoint:
    """`LayerNorm.gamma` and `LayerNorm.beta` to `weight` and `bias`; no other gamma, no other beta."""
    names = {name: _LAYER_NORM.sub(lambda found: found[1] + _MODERN[found[2]], name) for name in checkpoint.tensors}
    return apply_names(checkpoint, names, "renamed LayerNorm's gamma and beta in")


def rename_weight_norm(to: Spelling = "parametrizations") -> Transform:
    """Pairs in the spelling of torch.nn.utils.weight_norm ("weight_g") or of parametrizations.weight_norm."""

    def apply(checkpoint: Checkpoint) -> Checkpoint:
        names = {name: name for name in checkpoint.tensors}
        for pair in weight_norm_pairs(checkpoint):
            head, _, name = pair.weight.rpartition(".")
            head = f"{head}." if head else ""
            if to == "parametrizations":
                new = (f"{head}parametrizations.{name}.original0", f"{head}parametrizations.{name}.original1")
            else:
                new = (f"{head}{name}_g", f"{head}{name}_v")
            names[pair.g], names[pair.v] = new
        return apply_names(checkpoint, names, "renamed weight norm's pairs in")

    return apply


def fold_weight_norm(checkpoint: Checkpoint) -> Checkpoint:
    """Every pair becomes the weight it stands for, w = g * v / ||v||, in the dtype of v and at the place of v."""
    pairs = {pair.v: pair for pair in weight_norm_pairs(checkpoint)}
    if not pairs:
        raise TransformError("there is no weight-normed pair", path=checkpoint.path)
    gone = {pair.g for pair in pairs.values()}
    names = {name: pairs[name].weight if name in pairs else name for name in checkpoint.tensors if name not in gone}
    folded: dict[tuple[str, str], str] = {}
    tensors: list[Tensor] = []
    for name, tensor in checkpoint.tensors.items():
        if name in gone:
            continue
        pair = pairs.get(name)
        if pair is None:
            alias_of = tensor.info.alias_of
            tensors.append(tensor if alias_of is None else tensor.renamed(name, alias_of=names.get(alias_of, alias_of)))
            continue
        g = checkpoint.tensors[pair.g]
        made = tensor.with_data(_folded(g, tensor), name=pair.weight)
        made = Tensor(made.info, made.data, made.access, (*tensor.checks, *g.checks), tensor.damaged or g.damaged)
        owner = folded.setdefault((g.info.alias_of or g.name, tensor.info.alias_of or name), pair.weight)
        tensors.append(made if owner == pair.weight else made.renamed(pair.weight, alias_of=owner))
    return checkpoint.with_tensors(tensors, extras=renamed(checkpoint.extras, names))


def weight_norm_pairs(checkpoint: Checkpoint) -> list[Pair]:
    """Both halves are there, and g has the shape of a norm of v: other names that end in _g and _v are no pair."""
    found = []
    for name, tensor in checkpoint.tensors.items():
        if old := _OLD_G.fullmatch(name):
            pair = Pair(name, f"{old['head']}{old['name']}_v", old["head"] + old["name"])
        elif new := _NEW_G.fullmatch(name):
            stem = new["head"] + new["name"]
            pair = Pair(name, f"{new['head']}parametrizations.{new['name']}.original1", stem)
        else:
            continue
        v = checkpoint.tensors.get(pair.v)
        if v is not None and v.dtype.is_float and _axis(tensor.shape, v.shape) is not None:
            found.append(pair)
    return found


def _axis(g: tuple[int, ...], v: tuple[int, ...]) -> int | None:
    """The axis that g has in full; -1 when it is one number for the whole of v; None when it is no norm of v."""
    if not v:
        return None
    if g == () or (len(g) == len(v) and math.prod(g) == 1 and 1 not in v):
        return -1
    if len(g) != len(v):
        return None
    return next((k for k in range(len(v)) if g == tuple(n if axis == k else 1 for axis, n in enumerate(v))), None)


def _folded(g: Tensor, v: Tensor) -> Node:
    axis = _axis(g.shape, v.shape)
    if axis is None:
        raise UnsupportedTensorError(f"{list(g.shape)} is no norm of {list(v.shape)}", tensor=v.name)
    if axis >= 0:
        return ops.cast(ops.weight_norm(g.data, v.data, axis), v.dtype)
    whole = ops.weight_norm(ops.reshape(g.data, (1, 1)), ops.reshape(v.data, (1, math.prod(v.shape))), 0)
    return ops.cast(ops.reshape(whole, v.shape), v.dtype)
