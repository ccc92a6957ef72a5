# SPDX-License-Identifier: Apache-2.0
"""The tree of modules that tensor names speak of, with equal layers as one: `model` > `layers.*` (32 x) > `mlp` ..."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tael.core.dtypes import DType
from tael.core.tensor import TensorInfo

# A component that is a number, or a layer with one: "0", "layer_0".
_NUMBERED = re.compile(r"(?<![^./])((?:layers?|blocks?|encoderblock|experts?|h)_)?(\d+)(?![^./])", re.IGNORECASE)
_SEPARATOR = re.compile(r"[./]")
_DEEPEST = 16  # components; what comes after is one


@dataclass(slots=True)
class Module:
    """`name` within its parent, where `*` stands for `repeats` numbers. Sums are over all tensors below.

    A module without children is a tensor, or the tensor of every layer; `dtype` and `shape` are set where all of them
    have the same.
    """

    name: str
    path: str
    repeats: int = 1
    tensors: int = 0
    parameters: int = 0
    nbytes: int = 0
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    children: dict[str, Module] = field(default_factory=dict)


@dataclass(slots=True)
class _Alike:
    """Tensors whose names differ in numbers only, and the numbers, by place. `name` has stars for them."""

    name: str
    dtypes: set[str] = field(default_factory=set)
    shapes: set[tuple[int, ...]] = field(default_factory=set)
    tensors: int = 0
    owned: Counter[tuple[DType, tuple[int, ...]]] = field(default_factory=Counter)  # without aliases
    parameters: int = 0
    nbytes: int = 0
    numbers: list[set[str]] = field(default_factory=list)


def module_tree(tensors: Iterable[TensorInfo]) -> Module:
    """The tree over `tensors`, children in file order. Its root has no name, but all sums; aliases weigh nothing."""
    root = Module("", "")
    numbers_of: dict[str, set[str]] = {}
    for alike in _grouped(tensors):
        node, numbers = root, iter(alike.numbers)
        _add(node, alike)
        for part in _parts(alike.name):
            path = f"{node.path}.{part}" if node.path else part
            node = node.children.setdefault(part, Module(part, path))
            _add(node, alike)
            if part.endswith("*"):
                found = numbers_of.setdefault(path, set())
                found |= next(numbers, set())
                node.repeats = max(1, len(found))
        node.dtype = next(iter(alike.dtypes)) if len(alike.dtypes) == 1 else None
        node.shape = next(iter(alike.shapes)) if len(alike.shapes) == 1 else None
    return root


def _grouped(tensors: Iterable[TensorInfo]) -> list[_Alike]:
    groups: dict[tuple[str | None, ...], _Alike] = {}
    for info in tensors:
        # text, then for every number: what stands before it, it, text
        pieces: list[str | None] = _NUMBERED.split(info.name)
        key = (*pieces[::3], *pieces[1::3])
        alike = groups.get(key)
        if alike is None:
            alike = groups[key] = _Alike(_collapsed(pieces), numbers=[set() for _ in pieces[2::3]])
        for found, number in zip(alike.numbers, pieces[2::3], strict=True):
            found.add(number or "")
        alike.dtypes.add(info.dtype.name)
        alike.shapes.add(info.shape)
        alike.tensors += 1
        if info.alias_of is None:
            alike.owned[info.dtype, info.shape] += 1
    for alike in groups.values():
        alike.parameters = sum(count * math.prod(shape) for (_, shape), count in alike.owned.items())
        alike.nbytes = sum(count * kind.nbytes(shape) for (kind, shape), count in alike.owned.items())
    return list(groups.values())


def _collapsed(pieces: Sequence[str | None]) -> str:
    """The name with a star for every number."""
    rest = zip(pieces[1::3], pieces[3::3], strict=True)
    return (pieces[0] or "") + "".join(f"{before or ''}*{text}" for before, text in rest)


def _parts(collapsed: str) -> list[str]:
    """The components, a number joined to what it numbers: `layers.*`."""
    parts: list[str] = []
    for piece in _SEPARATOR.split(collapsed, maxsplit=_DEEPEST):
        if piece == "*" and parts and not parts[-1].endswith("*"):
            parts[-1] += ".*"
        else:
            parts.append(piece)
    return parts


def _add(node: Module, alike: _Alike) -> None:
    node.tensors += alike.tensors
    node.parameters += alike.parameters
    node.nbytes += alike.nbytes
