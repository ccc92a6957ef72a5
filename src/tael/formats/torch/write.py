# SPDX-License-Identifier: Apache-2.0
"""Writes the zip that `torch.load` takes, with `weights_only=True` and with `mmap=True`.

    archive/data.pkl        the structure (emit.py); each tensor names its storage by key
    archive/byteorder       "little"
    archive/data/0, ...     one storage per tensor that is no alias, its bytes at a multiple of 64
    archive/tael.metadata   what a state dict has no place for, as JSON; torch does not look at records it does not know
    archive/version         "3\\n"

`.format_version` is left out on purpose: with it torch may compute where storages lie by the habits of its own writer
(data descriptors included) instead of reading their headers. Source: torch/serialization.py of 2.13.
"""

from __future__ import annotations

import json
import os
from typing import Any

from tael.convert.plan import FileBuilder, OutputFile, Plan, Target
from tael.core import portable
from tael.core.checkpoint import Checkpoint
from tael.core.problem import Loss
from tael.formats.torch import tree as torch_tree
from tael.formats.torch.emit import TORCH_DTYPES, Emitter, torch_shape
from tael.formats.zip_write import ZipBuilder

ARCHIVE = "archive"
METADATA_RECORD = "tael.metadata"
DTYPES = frozenset(TORCH_DTYPES)


def layout(checkpoint: Checkpoint, target: Target) -> Plan:
    """One torch file. Raises `UnsupportedTensorError` for what torch has no dtype for."""
    file, losses = build(os.path.basename(target.path), checkpoint)
    return Plan("torch", target.path, False, (file,), tuple(losses))


def build(name: str, checkpoint: Checkpoint) -> tuple[OutputFile, list[Loss]]:
    """The file `name` that holds `checkpoint`: in its nested structure where that is known, else as a flat dict."""
    keys = _storage_keys(checkpoint)
    tree, losses = _structure(checkpoint)
    emitter = Emitter(checkpoint.tensors, keys)
    pickled = emitter.emit(tree)
    losses += emitter.losses()
    builder = ZipBuilder(FileBuilder(name))
    builder.add_bytes(f"{ARCHIVE}/data.pkl", pickled)
    builder.add_bytes(f"{ARCHIVE}/byteorder", b"little")
    for tensor in checkpoint.owners:
        builder.add_tensor(f"{ARCHIVE}/data/{keys[tensor.name]}", tensor)
    record = portable.pack(checkpoint.metadata, {})
    if record:
        text = json.dumps(record, ensure_ascii=False, separators=(",", ":"))
        builder.add_bytes(f"{ARCHIVE}/{METADATA_RECORD}", text.encode())
    builder.add_bytes(f"{ARCHIVE}/version", b"3\n")
    return builder.finish(), losses


def _storage_keys(checkpoint: Checkpoint) -> dict[str, str]:
    """Tensor name -> key of its storage; an alias has its owner's."""
    keys: dict[str, str] = {}
    for tensor in checkpoint.owners:
        torch_shape(tensor)  # raises here, before anything is laid out
        keys[tensor.name] = str(len(keys))
    for alias, owner in checkpoint.aliases.items():
        keys[alias] = keys[owner]
    return keys


def _structure(checkpoint: Checkpoint) -> tuple[Any, list[Loss]]:
    """What to write: the structure the tensors came in, if all of them are still in it, else {name: tensor}."""
    flat = {name: torch_tree.TensorLeaf(name) for name in checkpoint.tensors}
    tree = checkpoint.extras.get(torch_tree.KEY)
    if tree is None:
        return flat, []
    if flat.keys() <= set(torch_tree.leaf_names(tree)):
        return tree, []
    return flat, [Loss("extras", "the nested structure of the file, whose tensors have other names now")]
