# SPDX-License-Identifier: Apache-2.0
"""The writing half of SafeTensors: one file, or shards and their index. Byte layout: safetensors.py.

Everything here is known before a payload byte is read. The header is padded with spaces to a multiple of 8.
Cutting into shards follows huggingface_hub: greedy, in order, counting tensor bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from tael.convert.plan import FileBuilder, OutputFile
from tael.core import portable
from tael.core.checkpoint import Checkpoint
from tael.core.limits import DEFAULT
from tael.core.tensor import Tensor
from tael.errors import TransformError, UnsupportedFormatError, UnsupportedTensorError
from tael.formats.safetensors import DTYPES, METADATA

LARGEST_HEADER = 100_000_000  # readers refuse longer ones
FROM_TORCH = frozenset({"torch", "shards", "hf"})  # formats of sources whose files are for transformers
_NAMES = {dtype.name: name for name, dtype in DTYPES.items()}
_RANKS = {dtype.name: rank for rank, dtype in enumerate(DTYPES.values())}


def weight_files(checkpoint: Checkpoint, base: str, shard_size: int | None, *, pytorch: bool) -> list[OutputFile]:
    """The files of a checkpoint: BASE.safetensors, or shards and, last, their index.

    pytorch: the metadata say for which framework the file is, unless they do already; transformers refuses it else.
    """
    for tensor in checkpoint.tensors.values():
        _check_holdable(tensor)
    metadata = {"format": "pt", **checkpoint.metadata} if pytorch else checkpoint.metadata
    shards = _split(checkpoint.owners, shard_size)
    if len(shards) == 1:
        return [_file(f"{base}.safetensors", shards[0], checkpoint.aliases, metadata)]
    names = [f"{base}-{number:05d}-of-{len(shards):05d}.safetensors" for number in range(1, len(shards) + 1)]
    aliases = checkpoint.aliases
    files = [_file(name, shard, aliases, metadata) for name, shard in zip(names, shards, strict=True)]
    index = {
        "metadata": {"total_size": checkpoint.nbytes},
        "weight_map": {tensor.name: name for name, shard in zip(names, shards, strict=True) for tensor in shard},
    }
    builder = FileBuilder(f"{base}.safetensors.index.json")
    builder.literal(json.dumps(index, ensure_ascii=False, indent=2).encode() + b"\n")
    return [*files, builder.finish()]


def _check_holdable(tensor: Tensor) -> None:
    if tensor.dtype.name not in _NAMES:
        raise UnsupportedTensorError(
            f"SafeTensors has no dtype {tensor.dtype}",
            tensor=tensor.name,
            hint="convert it on the way, for instance with --dtype F32, or leave it out with --drop",
        )
    if tensor.name == METADATA or not _is_text(tensor.name):
        raise UnsupportedTensorError(
            "SafeTensors cannot have a tensor of this name",
            tensor=ascii(tensor.name)[1:-1],
            hint="give it another with --rename",
        )
    if len(tensor.name) > DEFAULT.name_bytes:  # the reader's limit: what is written is to be read again
        raise UnsupportedTensorError(
            f"its name has {len(tensor.name):,} characters, the limit is {DEFAULT.name_bytes:,}",
            tensor=tensor.name,
            hint="give it another with --rename",
        )


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _split(tensors: list[Tensor], shard_size: int | None) -> list[list[Tensor]]:
    """In order, as many into each shard as fit; a tensor above the limit gets a shard of its own."""
    if shard_size is None:
        return [tensors]
    if shard_size <= 0:
        raise TransformError(f"a shard cannot have {shard_size} bytes")
    shards: list[list[Tensor]] = []
    current: list[Tensor] = []
    filled = 0
    for tensor in tensors:
        size = tensor.nbytes
        if size > shard_size:
            shards.append([tensor])
            continue
        if filled + size > shard_size:
            shards.append(current)
            current, filled = [], 0
        current.append(tensor)
        filled += size
    return [*shards, current] if current or not shards else shards


def _file(name: str, tensors: Iterable[Tensor], aliases: Mapping[str, str], metadata: Mapping[str, Any]) -> OutputFile:
    # Largest alignment first, as the reference does: every tensor lies at a multiple of its element's size.
    ordered = sorted(tensors, key=lambda tensor: (-_RANKS[tensor.dtype.name], tensor.name))
    here = {tensor.name for tensor in ordered}
    header: dict[str, Any] = {}
    if packed := portable.pack(metadata, {alias: owner for alias, owner in aliases.items() if owner in here}):
        header[METADATA] = packed
    position = 0
    for tensor in ordered:
        end = position + tensor.nbytes
        header[tensor.name] = {
            "dtype": _NAMES[tensor.dtype.name],
            "shape": tensor.shape,
            "data_offsets": (position, end),
        }
        position = end
    try:
        raw = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        raise UnsupportedFormatError("the metadata is not all Unicode text, which SafeTensors demands") from None
    raw += b" " * (-len(raw) % 8)
    if len(raw) > LARGEST_HEADER:
        raise UnsupportedFormatError(
            f"{name} would have a header of {len(raw):,} bytes; readers take {LARGEST_HEADER:,} at most",
            hint="split it with --shard-size, or drop metadata",
        )
    builder = FileBuilder(name)
    builder.literal(len(raw).to_bytes(8, "little") + raw)
    for tensor in ordered:
        builder.tensor(tensor)
    return builder.finish()
