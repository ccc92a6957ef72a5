# SPDX-License-Identifier: Apache-2.0
"""The nested Python structure of a torch file, with its tensors taken out and named.

`extras["torch.tree"]` is that structure: dict (`StubDict` for an OrderedDict), list and tuple, in which a `TensorLeaf`
stands for each tensor of the checkpoint. Other leaves stay: plain scalars, or inert stubs of `tael.pickle`.

A tensor's name is its path with "." between the components: `["model"]["layers"][0]` is "model.layers.0". Where two
paths would give one name, those paths are escaped: "." and "\\" inside a component get a "\\" before them, and a
component that is no string is written "\\[...]". Nothing recurses: a file may nest as deep as the limits allow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tael.core.limits import DEFAULT, Limits
from tael.pickle.stubs import StubDict

KEY = "torch.tree"  # in Checkpoint.extras
ROOT = "tensor"  # the name of a tensor that is the whole file

Path = tuple[Hashable, ...]


@dataclass(frozen=True, slots=True)
class TensorLeaf:
    """Stands in a tree where the tensor `name` of the checkpoint was."""

    name: str


def flatten(
    root: Any,
    is_tensor: Callable[[Any], bool],
    *,
    view: Callable[[Any], Mapping[Any, Any] | None] = lambda value: None,
    limits: Limits = DEFAULT,
    path: object = None,
) -> tuple[list[tuple[str, Any]], Any]:
    """The tensors of `root` with their names, in file order, and a copy of it with a `TensorLeaf` for each.

    view: what is inside of a value that is neither tensor nor container (a module's attributes); it is then that dict
    in the copy. Raises `LimitExceededError` for too much of it; a structure that holds itself is too much.
    """
    holder: list[Any] = [None]
    pending: list[tuple[Any, Any, Any, Path]] = [(root, holder, 0, ())]
    found: list[tuple[Path, Any, Any, Any]] = []
    tuples: list[tuple[Any, Any, list[Any]]] = []
    count = 0
    while pending:
        value, parent, key, at = pending.pop()
        count += 1
        if count > limits.pickle_objects or len(at) > limits.pickle_depth:
            limits.check("the number of values in this file", count, limits.pickle_objects, path=path)
            limits.check("the nesting of this file", len(at), limits.pickle_depth, path=path)
        if is_tensor(value):
            found.append((at, value, parent, key))
            continue
        inside = value if isinstance(value, dict | list | tuple) else view(value)
        if isinstance(inside, Mapping):
            copy: Any = _like(inside)
            copy.update(dict.fromkeys(inside))
            pending += [(inside[k], copy, k, (*at, k)) for k in reversed(inside)]
        elif isinstance(inside, list | tuple):
            copy = [None] * len(inside)
            pending += [(inside[n], copy, n, (*at, n)) for n in range(len(inside) - 1, -1, -1)]
            if isinstance(inside, tuple):
                tuples.append((parent, key, copy))
        else:
            copy = value
        parent[key] = copy
    names = unique_names([at for at, _, _, _ in found])
    for name, (_, _, parent, key) in zip(names, found, strict=True):
        parent[key] = TensorLeaf(name)
    for parent, key, items in reversed(tuples):  # inner ones first
        parent[key] = tuple(items)
    return [(name, value) for name, (_, value, _, _) in zip(names, found, strict=True)], holder[0]


def _like(mapping: Mapping[Any, Any]) -> dict[Any, Any]:
    if not isinstance(mapping, StubDict):
        return {}
    copy = StubDict(mapping.origin, mapping.args)
    copy.state = mapping.state
    return copy


def unique_names(paths: Sequence[Path]) -> list[str]:
    """One name for each of these different paths."""
    names = [".".join([key if type(key) is str else str(key) for key in at]) if at else ROOT for at in paths]
    escaped: set[int] = set()
    while True:
        counts = Counter(names)
        again = [n for n, name in enumerate(names) if counts[name] > 1]
        if not again:
            return names
        for n in again:
            # escaped already and still not alone: keys of one spelling that Python tells apart
            names[n] = f"{names[n]}\\{n}" if n in escaped else ".".join(map(_escape, paths[n])) or ROOT
        escaped.update(again)


def _escape(key: Hashable) -> str:
    text = str(key).replace("\\", "\\\\").replace(".", "\\.")
    return text if type(key) is str else f"\\[{text}]"


def leaf_names(tree: Any) -> Iterator[str]:
    """The names of all `TensorLeaf`s, in order; containers that are shared are entered once."""
    pending = [tree]
    seen: set[int] = set()
    while pending:
        value = pending.pop()
        if type(value) is TensorLeaf:
            yield value.name
        elif isinstance(value, dict | list | tuple) and id(value) not in seen:
            seen.add(id(value))
            pending += reversed(value.values() if isinstance(value, dict) else value)
