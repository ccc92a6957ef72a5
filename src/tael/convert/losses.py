# SPDX-License-Identifier: Apache-2.0
"""What a target format cannot hold, from its capabilities alone. Dtypes and names are the format's own business."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tael.convert.damage import EXPANDED, listed
from tael.convert.sharing import overlapping
from tael.core.checkpoint import Checkpoint
from tael.core.problem import Loss
from tael.formats.registry import BUILTIN, Format

# Extras that say how a file was written, or once more what its tensors and metadata say: no loss.
_IMPLIED = frozenset({
    "ggml.header", "ggml.names", "hf.config", "hf.weights", "torch.globals", "torch.layout", "torch.records",
    "torch.tree", EXPANDED,
})  # fmt: skip
# Extras that are kept by a format with this id or capability; its writer tells what it drops of them.
_KEPT_BY = {"hf.side_files": "folder", "torch.objects": "torch"}
# Extras that hold the names of tensors with some attribute.
_ATTRIBUTES = frozenset({"torch.requires_grad"})


def losses(checkpoint: Checkpoint, fmt: Format) -> list[Loss]:
    """What writing `checkpoint` as `fmt` loses, besides what its transforms left behind already."""
    found = []
    if checkpoint.metadata and "metadata" not in fmt.capabilities:
        keys = list(checkpoint.metadata)
        found.append(Loss("metadata", f"{fmt.title} has no metadata: {listed(keys)}", len(keys)))
    found += _extras(checkpoint.extras, fmt)
    aliases = list(checkpoint.aliases)
    if aliases and not {"aliases", "metadata"} & fmt.capabilities:
        found.append(Loss("alias", f"tied to a name that is kept: {listed(aliases)}", len(aliases)))
    shared = overlapping(checkpoint.owners)
    if shared:
        found.append(Loss("shared-storage", f"views that overlap become copies: {listed(shared)}", len(shared)))
    return found


def _extras(extras: Mapping[str, Any], fmt: Format) -> list[Loss]:
    found = []
    for key, value in extras.items():
        if not _is_content(value) or _is_kept(key, fmt):
            continue
        inside = _names(value)
        if key in _ATTRIBUTES:
            what = key.partition(".")[2]
            found.append(Loss("attributes", f"{what} of {listed(inside)}", len(inside)))
        else:
            detail = f"{key}: {listed(inside)}" if inside else key
            found.append(Loss("extras", f"not part of a {fmt.title} file: {detail}", max(1, len(inside))))
    return found


def _is_content(value: Any) -> bool:
    return value is not None and not (isinstance(value, Mapping | Sequence) and not value)


def _is_kept(key: str, fmt: Format) -> bool:
    """A format from elsewhere looks after its own extras."""
    if key in _IMPLIED or _KEPT_BY.get(key) in {fmt.id, *fmt.capabilities}:
        return True
    return fmt.id not in BUILTIN and key.startswith(f"{fmt.id}.")


def _names(value: Any) -> list[str]:
    """What is inside an extra, by name; nothing where it has no names."""
    if isinstance(value, str | bytes) or not isinstance(value, Mapping | Sequence):
        return []
    return [name for name in value if isinstance(name, str)]
