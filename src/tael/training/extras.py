# SPDX-License-Identifier: Apache-2.0
"""The extras of a checkpoint after its tensors got other names: what names tensors follows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tael.formats.torch import tree as torch_tree
from tael.formats.torch.tree import TensorLeaf
from tael.pickle import StubDict

_NAME_LISTS = ("torch.expanded", "torch.requires_grad")
_OF_THE_WHOLE = ("torch.objects", "torch.modules", "torch.attributes")  # say nothing about a part of the file


def without_structure(extras: Mapping[str, Any], kept: Mapping[str, str], tree: Any) -> dict[str, Any]:
    """`extras` for the tensors of `kept` (old name -> new name), whose structure is now `tree` (None: none)."""
    out = {key: value for key, value in extras.items() if key not in (*_OF_THE_WHOLE, torch_tree.KEY)}
    for key in _NAME_LISTS:
        names = tuple(kept[name] for name in out.pop(key, ()) if name in kept)
        if names:
            out[key] = names
    if tree is not None:
        out[torch_tree.KEY] = tree
    return out


def renamed(extras: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """`extras` after a renaming. A flat structure follows; a nested one has no place for other names and goes."""
    out = dict(extras)
    for key in _NAME_LISTS:
        if key in out:
            out[key] = tuple(names.get(name, name) for name in out[key])
    tree = out.pop(torch_tree.KEY, None)
    if isinstance(tree, dict) and all(type(leaf) is TensorLeaf for leaf in tree.values()):
        moved: dict[Any, Any] = StubDict(tree.origin, tree.args) if isinstance(tree, StubDict) else {}
        moved.update({names.get(leaf.name, leaf.name): _moved(leaf, names) for leaf in tree.values()})
        out[torch_tree.KEY] = moved
    return out


def _moved(leaf: TensorLeaf, names: Mapping[str, str]) -> TensorLeaf:
    return TensorLeaf(names.get(leaf.name, leaf.name))
