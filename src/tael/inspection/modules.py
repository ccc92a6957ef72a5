# SPDX-License-Identifier: Apache-2.0
"""The tree of modules that tensor names speak of, with equal layers as one: `model` > `layers.*` (32 x) > `mlp` ..."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise

from tael.core.dtypes import DType
from tael.core.tensor import TensorInfo

# A component that is a number, or a layer with one: "0", "layer_0".
_NUMBERED = re.compile(r"(?<![^./])((?:layers?|blocks?|encoderblock|experts?|h)_)?(\d+)(?![^./])", re.IGNORECASE)
_SEPARATOR = re.compile(r"[./]")
_DEEPEST = 16  # components; what comes after is one
_MOST = 200_000  # modules, about: names of strangers, all different, get fewer components
_MOST_NUMBERS, _LOOKED_AT = 8, 1000  # numbers and characters of a name; what comes after is text
_DIGITS = re.compile(r"\d+")
_ALL_ZEROS = bytes.maketrans(b"123456789", b"0" * 9)


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
    parameters: int = 0  # without aliases
    nbytes: int = 0
    numbers: list[set[str]] = field(default_factory=list)
    kinds: Counter[tuple[DType, tuple[int, ...], bool]] = field(default_factory=Counter)  # dtype, shape, no alias?


@dataclass(slots=True)
class _Pattern:
    """Names that are one with all digits zero: where they have numbers, where other digits, groups by the latter."""

    numbers: list[slice]
    fixed: list[slice]
    groups: dict[tuple[str, ...], _Alike] = field(default_factory=dict)


def module_tree(tensors: Iterable[TensorInfo]) -> Module:
    """The tree over `tensors`, children in file order. Its root has no name, but all sums; aliases weigh nothing."""
    root = Module("", "")
    numbers_of: dict[str, set[str]] = {}
    groups = _grouped(tensors)
    deepest = min(_DEEPEST, max(1, _MOST // max(1, len(groups))) - 1)
    for alike in groups:
        node, numbers = root, iter(alike.numbers)
        _add(node, alike)
        for part in _parts(alike.name, deepest):
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
    """Layers differ in numbers only, so a name is looked at closely when its like has not been seen."""
    groups: dict[tuple[str | None, ...], _Alike] = {}
    patterns: dict[bytes, _Pattern] = {}
    for info in tensors:
        name = info.name
        zeros = name.encode(errors="surrogatepass").translate(_ALL_ZEROS)  # of bytes it is ten times as fast
        pattern = patterns.get(zeros)
        if pattern is None:
            pattern = patterns[zeros] = _pattern(name)
        fixed = tuple([name[place] for place in pattern.fixed]) if pattern.fixed else ()
        alike = pattern.groups.get(fixed)
        if alike is None:
            alike = pattern.groups[fixed] = _group(name, groups)
        for found, place in zip(alike.numbers, pattern.numbers, strict=True):
            found.add(name[place])
        alike.kinds[info.dtype, info.shape, info.alias_of is None] += 1
    for alike in groups.values():
        for (kind, shape, owns), count in alike.kinds.items():
            alike.dtypes.add(kind.name)
            alike.shapes.add(shape)
            alike.tensors += count
            alike.parameters += count * math.prod(shape) * owns
            alike.nbytes += count * kind.nbytes(shape) * owns
        alike.kinds.clear()
    return list(groups.values())


def _pattern(name: str) -> _Pattern:
    numbers = [slice(*found.span(2)) for found in islice(_NUMBERED.finditer(name[:_LOOKED_AT]), _MOST_NUMBERS)]
    ends = [0, *(end for place in numbers for end in (place.start, place.stop)), len(name)]
    fixed = []
    for start, stop in list(pairwise(ends))[::2]:
        digits = _DIGITS.search(name, start, stop)
        if digits:
            fixed.append(slice(digits.start(), stop))
    return _Pattern(numbers, fixed)


def _group(name: str, groups: dict[tuple[str | None, ...], _Alike]) -> _Alike:
    """The group of `name`, a new one if there is none: equal layers have numbers of one digit, and of two."""
    # text, then for every number: what stands before it, it, text
    pieces: list[str | None] = _NUMBERED.split(name[:_LOOKED_AT], maxsplit=_MOST_NUMBERS)
    pieces[-1] = (pieces[-1] or "") + name[_LOOKED_AT:]
    key = (*pieces[::3], *pieces[1::3])
    alike = groups.get(key)
    if alike is None:
        alike = groups[key] = _Alike(_collapsed(pieces), numbers=[set() for _ in pieces[2::3]])
    return alike


def _collapsed(pieces: Sequence[str | None]) -> str:
    """The name with a star for every number."""
    rest = zip(pieces[1::3], pieces[3::3], strict=True)
    return (pieces[0] or "") + "".join(f"{before or ''}*{text}" for before, text in rest)


def _parts(collapsed: str, deepest: int) -> list[str]:
    """The components, a number joined to what it numbers: `layers.*`."""
    parts: list[str] = []
    for piece in _SEPARATOR.split(collapsed, maxsplit=deepest) if deepest else [collapsed]:
        if piece == "*" and parts and not parts[-1].endswith("*"):
            parts[-1] += ".*"
        else:
            parts.append(piece)
    return parts


def _add(node: Module, alike: _Alike) -> None:
    node.tensors += alike.tensors
    node.parameters += alike.parameters
    node.nbytes += alike.nbytes
