# SPDX-License-Identifier: Apache-2.0
"""Ids of tensors and checkpoints: equal where the values are, in every container, order, sharding and byte order.

    tensor   BLAKE3("tael.tensor/1" NUL | dtype name NUL | rank u64 | every length of the shape u64 | canonical bytes)
    whole    BLAKE3("tael.checkpoint/1" NUL | for every name, sorted: its length in UTF-8, u64 | it | its id, 32 bytes)

Numbers are little-endian. Bits count: NaN payloads and -0.0 make a difference, a tie between names makes none.
docs/fingerprint.md has the definition with a worked example.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from blake3 import blake3

from tael.core.checkpoint import Checkpoint, owners
from tael.core.progress import SILENT, Progress, Serialized
from tael.core.tensor import Tensor
from tael.verify.reading import CHUNK, checked_chunks, in_order, threads_for

TENSOR_DOMAIN = b"tael.tensor/1\0"
CHECKPOINT_DOMAIN = b"tael.checkpoint/1\0"


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """`tensors`: name -> id, aliases included, in file order; `whole`: the id of them all. Ids are 64 hex digits."""

    tensors: Mapping[str, str]
    whole: str


def hash_tensor(tensor: Tensor, progress: Progress = SILENT, *, budget: int = CHUNK) -> str:
    """The id of a tensor. Raises `ChecksumError` where a stored checksum does not hold."""
    hasher = blake3(TENSOR_DOMAIN + tensor.dtype.name.encode() + b"\0")
    hasher.update(struct.pack(f"<{len(tensor.shape) + 1}Q", len(tensor.shape), *tensor.shape))
    for piece in checked_chunks(tensor, budget):
        hasher.update(piece)
        progress.advance(piece.nbytes)
    return hasher.hexdigest()


def hash_tensors(tensors: Iterable[Tensor], *, progress: Progress = SILENT, label: str = "hash") -> dict[str, str]:
    """Name -> id of `tensors`, each read once, on two threads."""
    tensors = list(tensors)
    shared = Serialized(progress)
    sizes = [tensor.nbytes for tensor in tensors]
    progress.start(sum(sizes), label)
    try:
        ids = in_order(lambda tensor: hash_tensor(tensor, shared), tensors, sizes, threads_for(tensors))
        return {tensor.name: id for tensor, id in zip(tensors, ids, strict=True)}
    finally:
        progress.finish()


def hash_checkpoint(checkpoint: Checkpoint, progress: Progress = SILENT) -> Fingerprint:
    """The ids of every tensor and of the whole. Tied tensors are read once."""
    owner = owners(checkpoint.tensors)
    read = [checkpoint.tensors[name] for name in dict.fromkeys(owner.values())]
    ids = hash_tensors(read, progress=progress, label=f"hash {checkpoint.path}")
    tensors = {name: ids[owner[name]] for name in checkpoint.tensors}
    return Fingerprint(tensors, combine(tensors))


def combine(tensors: Mapping[str, str]) -> str:
    """The id of a whole from the ids of its tensors by name."""
    hasher = blake3(CHECKPOINT_DOMAIN)
    # surrogatepass: a name out of a hostile header may hold what is no text
    for name, id in sorted((name.encode("utf-8", "surrogatepass"), id) for name, id in tensors.items()):
        hasher.update(struct.pack("<Q", len(name)) + name + bytes.fromhex(id))
    return hasher.hexdigest()
