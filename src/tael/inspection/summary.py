# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint holds, from its header alone: sums by dtype, role and module, sizes elsewhere, problems."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tael.core.checkpoint import Checkpoint, MetaValue
from tael.core.dtypes import DTYPES, DType, dtype
from tael.core.problem import Problem
from tael.core.tensor import Tensor, TensorInfo
from tael.inspection.modules import Module, module_tree
from tael.inspection.plain import plain
from tael.inspection.roles import roles

SCHEMA = "tael.inspect/1"
PREDICTED = ("F32", "BF16", "F8_E4M3")  # precisions whose size a summary tells
LARGEST = 10


@dataclass(frozen=True, slots=True)
class Share:
    """The tensors of one dtype or role; tied ones count once in parameters and bytes."""

    name: str
    tensors: int
    parameters: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Summary:
    """What `tael inspect` shows. `dtypes` and `roles` largest first; `predicted`: dtype -> bytes of the whole in it."""

    format: str
    path: str
    tensors: int
    aliases: Mapping[str, str]
    parameters: int
    nbytes: int
    dtypes: tuple[Share, ...]
    roles: tuple[Share, ...]
    modules: Module
    largest: tuple[TensorInfo, ...]
    predicted: Mapping[str, int]
    metadata: Mapping[str, MetaValue]
    problems: tuple[Problem, ...]
    training: Any = None


def summarize(checkpoint: Checkpoint) -> Summary:
    """Count, group and predict. Reads no tensor bytes."""
    infos = [tensor.info for tensor in checkpoint.tensors.values()]
    owned = [info for info in infos if info.alias_of is None]
    role_of = roles(infos)
    kinds = Counter((info.dtype, info.shape, role_of[info.name], info.alias_of is None) for info in infos)
    sizes = {(kind, shape): (math.prod(shape), kind.nbytes(shape)) for kind, shape, _, _ in kinds}
    dtypes = _shares((kind.name, owns, count, *sizes[kind, shape]) for (kind, shape, _, owns), count in kinds.items())
    return Summary(
        format=checkpoint.format,
        path=checkpoint.path,
        tensors=len(infos),
        aliases=checkpoint.aliases,
        parameters=sum(share.parameters for share in dtypes),
        nbytes=sum(share.nbytes for share in dtypes),
        dtypes=dtypes,
        roles=_shares((role, owns, count, *sizes[kind, shape]) for (kind, shape, role, owns), count in kinds.items()),
        modules=module_tree(infos),
        largest=tuple(heapq.nlargest(LARGEST, owned, key=lambda info: sizes[info.dtype, info.shape][1])),
        predicted=predict(owned),
        metadata=checkpoint.metadata,
        problems=tuple(checkpoint.problems),
        training=_training(checkpoint),
    )


def _shares(members: Iterable[tuple[str, bool, int, int, int]]) -> tuple[Share, ...]:
    """Sums of (share, no alias?, tensors, parameters and bytes of one)."""
    sums: dict[str, list[int]] = {}
    for name, owns, count, parameters, nbytes in members:
        share = sums.setdefault(name, [0, 0, 0])
        share[0] += count
        share[1] += count * parameters * owns
        share[2] += count * nbytes * owns
    return tuple(Share(name, *share) for name, share in sorted(sums.items(), key=lambda item: (-item[1][2], item[0])))


def predict(tensors: Iterable[TensorInfo], precisions: Sequence[str] = PREDICTED) -> dict[str, int]:
    """Bytes of `tensors` if their floats were of each of `precisions`.

    Quantized types need rows of whole blocks: what has none, or is a vector, is counted as F32, as GGUF keeps it.
    """
    kinds = Counter((info.dtype, info.shape) for info in tensors)
    return {
        name: sum(count * _nbytes(kind, shape, DTYPES[name]) for (kind, shape), count in kinds.items())
        for name in precisions
    }


def _nbytes(kind: DType, shape: tuple[int, ...], to: DType) -> int:
    if kind.kind not in ("float", "quantized"):
        return kind.nbytes(shape)
    if to.kind == "quantized" and (len(shape) < 2 or shape[-1] % to.block):
        to = DTYPES["F32"]
    return -(-math.prod(shape) // to.block) * to.block_bytes


def predict_parameters(parameters: int, precision: str | DType) -> int:
    """Bytes of a model of which only the number of parameters is known (7e9, 13e9, ...), in `precision`."""
    kind = dtype(precision)
    return -(-parameters // kind.block) * kind.block_bytes


def _training(checkpoint: Checkpoint) -> Any:
    """What the training part of tael finds: epoch, optimizer, parts. None where there is nothing of it."""
    from tael.training.summary import summarize as summarize_training

    return summarize_training(checkpoint)


def to_json(checkpoint: Checkpoint, summary: Summary | None = None) -> dict[str, Any]:
    """The document that `tael inspect --json` prints: every tensor, and the sums. Keys are only ever added to it."""
    summary = summary or summarize(checkpoint)
    return {
        "schema": SCHEMA,
        "path": checkpoint.path,
        "format": checkpoint.format,
        "tensors": [_tensor(tensor) for tensor in checkpoint.tensors.values()],
        "metadata": plain(checkpoint.metadata, brief=True),
        "parameters": summary.parameters,
        "nbytes": summary.nbytes,
        "problems": [
            {"severity": problem.severity, "what": problem.what, "where": problem.where, "tensor": problem.tensor}
            for problem in summary.problems
        ],
        "dtypes": [_share(share) for share in summary.dtypes],
        "roles": [_share(share) for share in summary.roles],
        "predicted": dict(summary.predicted),
        "training": plain(summary.training),
    }


def _tensor(tensor: Tensor) -> dict[str, Any]:
    info = tensor.info
    entry: dict[str, Any] = {
        "name": info.name,
        "dtype": info.dtype.name,
        "shape": list(info.shape),
        "nbytes": info.nbytes,
    }
    if info.alias_of is not None:
        entry["alias_of"] = info.alias_of
    if tensor.access != "random":
        entry["access"] = tensor.access
    if tensor.damaged:
        entry["damaged"] = tensor.damaged
    return entry


def _share(share: Share) -> dict[str, Any]:
    return {"name": share.name, "tensors": share.tensors, "parameters": share.parameters, "nbytes": share.nbytes}
