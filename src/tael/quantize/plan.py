# SPDX-License-Identifier: Apache-2.0
"""The plan of a quantization: what each tensor becomes, the metadata that says so, one file or set per level.

All levels are one plan, whose files read each source tensor once. Nothing is read here but an importance matrix.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tael.convert.plan import Plan, Target
from tael.core import ops
from tael.core.checkpoint import Checkpoint
from tael.core.dtypes import DType
from tael.core.node import Node
from tael.core.tensor import Tensor, TensorInfo
from tael.errors import TargetError, TransformError, UnsupportedTensorError, clip
from tael.formats.gguf import layout
from tael.quantize.choose import Choice, choose, output_order, requires_imatrix
from tael.quantize.imatrix import Match
from tael.quantize.options import Options
from tael.quantize.recipes import Recipe

QUANTIZATION_VERSION = 2  # of ggml's block layouts
_LAYER = re.compile(r"blk\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class Level:
    """One output. `choices` are in the order of the file; `files` are numbers into the plan's files."""

    recipe: Recipe
    path: str
    choices: Sequence[Choice]
    checkpoint: Checkpoint
    files: range
    source_dtypes: Mapping[str, str]

    @property
    def nbytes(self) -> int:
        """Of the tensors."""
        return self.checkpoint.nbytes

    @property
    def bits_per_weight(self) -> float:
        return self.nbytes * 8 / max(1, self.checkpoint.parameters)


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked for, the same for every level."""

    options: Options = field(default_factory=Options)
    match: Match | None = None
    allow_requantize: bool = False
    prune_layers: Sequence[int] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)  # keys to set; None deletes
    shard_size: int | None = None
    layout: Mapping[str, Any] = field(default_factory=dict)


def plan_levels(
    checkpoint: Checkpoint, recipes: Sequence[Recipe], dst: str, request: Request
) -> tuple[Plan, list[Level]]:
    """The plan that writes `checkpoint` at every level. `dst` holds `{type}` when there are several.

    Raises before anything is read: `UnsupportedTensorError` for a type that needs an importance matrix, for what is
    quantized already, for a row that no type fits; `TargetError` for names that make no sense.
    """
    paths = level_paths(dst, recipes)
    checkpoint = pruned(checkpoint, request.prune_layers)
    order = output_order(checkpoint.tensors)
    checkpoint = checkpoint.with_tensors(checkpoint.tensors[name] for name in order)
    values: dict[str, Node] = {}
    before = {name: tensor.dtype.name for name, tensor in checkpoint.tensors.items()}
    levels, plans, first = [], list[Plan](), 0
    for recipe, path in zip(recipes, paths, strict=True):
        choices = choose(
            [tensor.info for tensor in checkpoint.owners], recipe, metadata=checkpoint.metadata, options=request.options
        )
        _refuse(checkpoint, recipe, choices, request)
        tensors = list(_tensors(checkpoint, choices, request, values))
        metadata = file_metadata(checkpoint.metadata, recipe, request)
        level = replace(checkpoint.with_tensors(tensors), metadata=metadata)
        plan = layout(level, Target(path, request.shard_size, options=request.layout))
        levels.append(Level(recipe, path, choices, level, range(first, first + len(plan.files)), before))
        plans.append(plan)
        first += len(plan.files)
    return joined(plans), levels


def level_paths(dst: str, recipes: Sequence[Recipe]) -> list[str]:
    """`dst` with `{type}` filled in; several levels need it, in the name of the file."""
    folder, name = os.path.split(dst)
    if "{type}" in folder or re.search(r"\{(?!type\})\w*\}", name):
        raise TargetError("only {type}, and only in the name of the file, is filled in", path=dst)
    if len(recipes) > 1 and "{type}" not in name:
        raise TargetError(
            f"{len(recipes)} types need as many names", path=dst, hint="write {type} where the type's name shall stand"
        )
    if not name.removesuffix(".gguf"):
        raise TargetError("names no file", path=dst, hint="end it in a name such as model-{type}.gguf")
    if not name.lower().endswith(".gguf"):
        raise TargetError("quantized models are written as GGUF", path=dst, hint="let the name end in .gguf")
    return [os.path.join(folder, name.replace("{type}", recipe.name)) for recipe in recipes]


def joined(plans: Sequence[Plan]) -> Plan:
    """Several plans for one folder as one."""
    names = [file.name for plan in plans for file in plan.files]
    if len(set(names)) < len(names):
        raise TargetError("two types would be written to one name", path=plans[0].path)
    losses = {(loss.kind, loss.detail): loss for plan in plans for loss in plan.losses}
    checks = {id(check): check for plan in plans for check in plan.checks}
    return replace(
        plans[0],
        files=tuple(file for plan in plans for file in plan.files),
        losses=tuple(losses.values()),
        checks=tuple(checks.values()),
    )


# --- tensors ----------------------------------------------------------------------------------------------------------


def pruned(checkpoint: Checkpoint, layers: Iterable[int]) -> Checkpoint:
    """Without these layers, the rest numbered anew and `ARCH.block_count` with it. An unknown layer raises."""
    gone = sorted(set(layers))
    if not gone:
        return checkpoint
    present = {int(found[1]) for name in checkpoint.tensors if (found := _LAYER.match(name))}
    missing = [layer for layer in gone if layer not in present]
    if missing:
        raise TransformError(
            f"there is no layer {missing[0]} to prune: layers are {_range(present)}", path=checkpoint.path
        )
    left = {old: new for new, old in enumerate(sorted(present - set(gone)))}
    if not left:
        raise TransformError("every layer would be pruned", path=checkpoint.path)
    kept = []
    for name, tensor in checkpoint.tensors.items():
        found = _LAYER.match(name)
        if not found:
            kept.append(tensor)
        elif (layer := int(found[1])) in left:
            kept.append(tensor.renamed(f"blk.{left[layer]}.{name[found.end() :]}", tensor.info.alias_of))
    metadata = dict(checkpoint.metadata)
    key = f"{metadata.get('general.architecture')}.block_count"
    if key in metadata:
        metadata[key] = len(left)
    return replace(checkpoint.with_tensors(kept), metadata=metadata)


def original_names(names: Iterable[str], layers: Iterable[int]) -> dict[str, str]:
    """What `pruned` names a tensor -> what it was named before, for looking it up in an importance matrix."""
    gone = set(layers)
    present = sorted({int(found[1]) for name in names if (found := _LAYER.match(name))} - gone)
    new = {old: number for number, old in enumerate(present)}
    table = {}
    for name in names:
        found = _LAYER.match(name)
        if found is None:
            table[name] = name
        elif (layer := int(found[1])) in new:
            table[f"blk.{new[layer]}.{name[found.end() :]}"] = name
    return table


def _range(layers: Iterable[int]) -> str:
    found = sorted(layers)
    return f"{found[0]} to {found[-1]}" if found else "none"


def _refuse(checkpoint: Checkpoint, recipe: Recipe, choices: Sequence[Choice], request: Request) -> None:
    """Raise for what cannot be done, before anything is written."""
    weighted = request.match.nodes if request.match else {}
    changed = [choice for choice in choices if _changes(checkpoint, choice)]
    lacking = [c for c in changed if c.name not in weighted and requires_imatrix(c.name, c.dtype, recipe)]
    if lacking:
        more = f" (and {len(lacking) - 1:,} more)" if len(lacking) > 1 else ""
        raise UnsupportedTensorError(
            f"{lacking[0].dtype} in {recipe.name} needs an importance matrix{more}",
            path=checkpoint.path,
            tensor=lacking[0].name,
            hint="make one with llama-imatrix and give it with --imatrix FILE"
            if request.match is None
            else "the matrix that was given has no entry for it: `--dry-run` lists what is unmatched",
        )
    again = [c for c in changed if checkpoint.tensors[c.name].dtype.kind == "quantized"]
    if again and not request.allow_requantize:
        raise UnsupportedTensorError(
            f"is {checkpoint.tensors[again[0].name].dtype} already"
            + (f", as are {len(again) - 1:,} more" if len(again) > 1 else "")
            + ": quantizing it again loses more than quantizing the original does",
            path=checkpoint.path,
            tensor=again[0].name,
            hint="start from the F16, BF16 or F32 model, or accept that with --allow-requantize",
        )


def _changes(checkpoint: Checkpoint, choice: Choice) -> bool:
    return checkpoint.tensors[choice.name].dtype != choice.dtype


def _tensors(
    checkpoint: Checkpoint, choices: Sequence[Choice], request: Request, values: dict[str, Node]
) -> Iterable[Tensor]:
    """The tensors of one level. `values`: the F32 node of each source tensor, one object for all levels."""
    chosen = {choice.name: choice.dtype for choice in choices}
    weights = request.match.nodes if request.match else {}
    for name, tensor in checkpoint.tensors.items():
        owner = tensor.info.alias_of or name
        kind = chosen.get(owner, tensor.dtype)
        if kind == tensor.dtype:
            yield tensor
            continue
        if owner not in values:
            values[owner] = float_values(tensor)
        data = converted(values[owner], kind, weights.get(owner), name)
        info = TensorInfo(name, data.dtype, data.shape, tensor.info.alias_of)
        yield replace(tensor, info=info, data=data)


def float_values(tensor: Tensor) -> Node:
    """A tensor's values as F32, whatever it is stored as."""
    try:
        return ops.dequantize(tensor.data)
    except UnsupportedTensorError as error:
        error.tensor = tensor.name
        raise


def converted(values: Node, kind: DType, weights: Node | None, name: str) -> Node:
    try:
        if kind.is_float:
            return ops.cast(values, kind)
        return ops.quantize(values, kind, weights)
    except (UnsupportedTensorError, TransformError) as error:
        error.tensor = name
        raise


# --- metadata ---------------------------------------------------------------------------------------------------------


def file_metadata(metadata: Mapping[str, Any], recipe: Recipe, request: Request) -> dict[str, Any]:
    """What the file says of itself, keys in the order in which llama-quantize writes them."""
    found = {key: value for key, value in metadata.items() if not key.startswith("split.")}
    added: dict[str, Any] = {"general.quantization_version": QUANTIZATION_VERSION}
    if recipe.ftype is not None:
        added["general.file_type"] = recipe.ftype
    if request.match is not None:
        added |= request.match.metadata
    blocks = f"{metadata.get('general.architecture')}.block_count"
    last = {blocks: metadata[blocks]} if request.prune_layers and blocks in metadata else {}
    for key, value in (*added.items(), *request.metadata.items(), *last.items()):
        found.pop(key, None)
        if value is not None:
            found[key] = value
    return found


def parse_setting(text: str) -> tuple[str, Any]:
    """`KEY=VALUE` of the command line: true and false, whole numbers, numbers, else text."""
    key, sign, value = text.partition("=")
    if not sign or not key:
        raise TransformError(f"{clip(text)!r} is no KEY=VALUE", hint="such as --set general.name='My model'")
    return key, parse_value(value)


def parse_value(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
