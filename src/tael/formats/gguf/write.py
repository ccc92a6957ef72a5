# SPDX-License-Identifier: Apache-2.0
"""The writing half of GGUF: one file of version 3, or a split set. Byte layout: __init__.py.

Everything here is known before a payload byte is read. Tensors keep the checkpoint's order; each is padded to the
alignment, the last one too, as loaders expect. Cutting follows gguf-split: greedy, in order, counting padded bytes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from tael.convert.plan import FileBuilder, OutputFile, Target
from tael.core.checkpoint import Checkpoint
from tael.core.limits import DEFAULT
from tael.core.tensor import Tensor
from tael.errors import TaelError, TransformError, UnsupportedFormatError, UnsupportedTensorError
from tael.formats.gguf.header import ALIGNMENT, ALIGNMENT_KEY, Info, encode_header, is_alignment
from tael.formats.gguf.metadata import RESERVED, SPLIT, SPLIT_COUNT, to_values
from tael.formats.gguf.splits import name_of, split_values
from tael.formats.gguf.tensors import folded, number_of
from tael.formats.gguf.values import Value, fits, raw_text

_MOST_FILES = 65535  # their numbers have 16 bits
_SPLIT_PADDING = 32  # gguf-split counts with this, whatever the alignment


def files(checkpoint: Checkpoint, target: Target) -> tuple[OutputFile, ...]:
    """One file, or with `target.shard_size` or the option `shard_tensors` a set: NAME-00001-of-00002.gguf, ...

    Option `reserve`: so many bytes of metadata are kept free, for edits in place.
    Raises `UnsupportedTensorError`, `UnsupportedFormatError`, `TransformError`.
    """
    tensors = checkpoint.owners
    infos = [_info(tensor) for tensor in tensors]
    shapes = {t.name: t.shape for t, info in zip(tensors, infos, strict=True) if t.shape != info.shape}
    values = to_values(checkpoint.metadata, checkpoint.aliases, shapes)
    alignment = _alignment(values)
    reserve = _option(target, "reserve", 0)
    groups = _split([tensor.nbytes for tensor in tensors], target)
    if len(groups) > _MOST_FILES:
        raise TransformError(f"{len(groups):,} files: a split set has at most {_MOST_FILES:,}")
    whole = len(groups) == 1
    if whole and _is_part(values):
        values = {key: value for key, value in values.items() if key not in SPLIT}
    base = os.path.basename(target.path)
    made: list[OutputFile] = []
    for number, group in enumerate(groups):
        entries = dict(values) if number == 0 else {}
        if not whole:
            entries = {key: value for key, value in entries.items() if key not in SPLIT}
            entries.update(split_values(number, len(groups), len(tensors)))
        if alignment != ALIGNMENT and number:
            entries[ALIGNMENT_KEY] = Value("u32", alignment)
        if reserve and number == 0:
            entries[RESERVED] = Value("str", " " * reserve)
        name = base if whole else name_of(base.removesuffix(".gguf"), number + 1, len(groups))
        made.append(_file(name, entries, [tensors[k] for k in group], [infos[k] for k in group], alignment))
    return tuple(made)


def _info(tensor: Tensor) -> Info:
    """The info of a tensor, its offset still to come. Raises `UnsupportedTensorError`."""
    number = number_of(tensor.dtype)
    if number is None:
        raise UnsupportedTensorError(
            f"GGUF has no dtype {tensor.dtype}",
            tensor=tensor.name,
            hint="convert it on the way, for instance with --dtype F32, or leave it out with --drop",
        )
    if not fits("str", tensor.name) or len(raw_text(tensor.name)) > DEFAULT.name_bytes:
        raise UnsupportedTensorError(
            "GGUF cannot have a tensor of this name",
            tensor=ascii(tensor.name)[1:-1],
            hint="give it another with --rename",
        )
    try:
        tensor.dtype.grid(tensor.shape)
    except TaelError as error:
        error.tensor = tensor.name
        raise
    return Info(tensor.name, folded(tensor.shape), number, 0)


def _alignment(values: Mapping[str, Value]) -> int:
    if ALIGNMENT_KEY not in values:
        return ALIGNMENT
    kind, value = values[ALIGNMENT_KEY]
    if kind != "u32" or not is_alignment(value):
        raise UnsupportedFormatError(f"{ALIGNMENT_KEY} {str(value)[:40]!r} is not a power of two, as u32")
    return int(value)


def _option(target: Target, name: str, without: int) -> int:
    value = target.options.get(name)
    if value is None:
        return without
    if not isinstance(value, int) or value < 0:
        raise TransformError(f"{name} {value!r} is not a number")
    return value


def _is_part(values: Mapping[str, Value]) -> bool:
    count = values[SPLIT_COUNT].value if SPLIT_COUNT in values else 0
    return isinstance(count, int) and count > 1


def _split(sizes: Sequence[int], target: Target) -> list[list[int]]:
    """The tensors of each file, by number: in order, as many as fit; one above the limit gets a file of its own."""
    most_tensors = _option(target, "shard_tensors", len(sizes) or 1)
    if most_tensors == 0 or (target.shard_size is not None and target.shard_size <= 0):
        raise TransformError("a file of the set cannot have 0 tensors")
    groups: list[list[int]] = [[]]
    filled = 0
    for k, size in enumerate(sizes):
        padded = -(-size // _SPLIT_PADDING) * _SPLIT_PADDING
        full = target.shard_size is not None and filled + padded > target.shard_size
        if groups[-1] and (full or len(groups[-1]) == most_tensors):
            groups.append([])
            filled = 0
        groups[-1].append(k)
        filled += padded
    return groups


def _file(
    name: str, values: Mapping[str, Value], tensors: Sequence[Tensor], infos: Sequence[Info], alignment: int
) -> OutputFile:
    placed = []
    offset = 0
    for tensor, info in zip(tensors, infos, strict=True):
        placed.append(info._replace(offset=offset))
        offset += -(-tensor.nbytes // alignment) * alignment
    builder = FileBuilder(name)
    builder.literal(encode_header(values, placed))
    builder.pad(alignment)
    for tensor in tensors:
        builder.tensor(tensor)
        builder.pad(alignment)
    return builder.finish()
