# SPDX-License-Identifier: Apache-2.0
"""Small files for the cases, made without tael: the safetensors layout by hand, and sets of shards."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tael.convert import convert
from tael.formats import open_checkpoint

Entry = tuple[str, Sequence[int], bytes]

_NAMES = {"float32": "F32", "float64": "F64", "float16": "F16", "uint8": "U8", "int64": "I64"}


def entry(array: np.ndarray) -> Entry:
    return _NAMES[array.dtype.name], array.shape, array.tobytes()


def safetensors(tensors: Mapping[str, Entry | np.ndarray], metadata: Any = None, *, pad: int = 0) -> bytes:
    """A file of `tensors` in order; `metadata` as it is given, `pad` spaces behind the header."""
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    payload = b""
    for name, content in tensors.items():
        kind, shape, data = entry(content) if isinstance(content, np.ndarray) else content
        span = [len(payload), len(payload) + len(data)]
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": span}
        payload += data
    text = json.dumps(header).encode() + b" " * pad
    return struct.pack("<Q", len(text)) + text + payload


def shard_set(folder: Path, shards: Sequence[Mapping[str, np.ndarray]], metadata: Any = None, **index: str) -> Path:
    """model-0000k-of-0000n.safetensors and their index, whose weight map gets `index` on top; returns the index."""
    folder.mkdir(exist_ok=True)
    weight_map = {}
    for k, tensors in enumerate(shards, 1):
        name = f"model-{k:05}-of-{len(shards):05}.safetensors"
        (folder / name).write_bytes(safetensors(tensors))
        weight_map.update(dict.fromkeys(tensors, name))
    if metadata is None:
        metadata = {"total_size": sum(array.nbytes for tensors in shards for array in tensors.values())}
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": metadata, "weight_map": {**weight_map, **index}}))
    return path


def values(path: Path, **options: Any) -> dict[str, np.ndarray]:
    """Every readable tensor of a file, set or folder."""
    with open_checkpoint(path, **options) as checkpoint:
        return {name: t.numpy() for name, t in checkpoint.tensors.items() if not t.damaged}


def converted(source: Path, target: Path, **options: Any) -> dict[str, np.ndarray]:
    """What `tael convert` makes of `source`, compared with it on the way."""
    result = convert(source, target, verify=True, **options)
    assert result.comparison is not None
    assert result.comparison.equal, result.comparison.differences
    return values(target)


def said(path: Path) -> str:
    """All problems of a source, as one text."""
    with open_checkpoint(path) as checkpoint:
        return "\n".join(f"{problem.severity}: {problem}" for problem in checkpoint.problems)
