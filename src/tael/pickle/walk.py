# SPDX-License-Identifier: Apache-2.0
"""Walking a result, without recursion: leaves with their paths, the names of a pickled nn.Module, the depth.

A pickle may share a container between many places, or put it inside itself. Shared ones are visited at each place (a
state dict names tied weights twice as well), within `limits.pickle_objects`; one that contains itself gives a
`Cycle` leaf where it would start over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from tael.core.limits import DEFAULT, Limits
from tael.errors import LimitExceededError
from tael.pickle.numpy_types import NumpyArray, NumpyDtype, NumpyScalar
from tael.pickle.stubs import Call, PersistentId, StubDict
from tael.pickle.torch_types import TensorRef

Path = tuple[Any, ...]

_PARTS = ("_parameters", "_buffers", "_modules")
_HIDDEN = object()  # an entry of a module that its state dict leaves out; still counted as a visit
_DEEPER = 16  # steps of a path that cost as much as one visit


@dataclass(frozen=True, slots=True)
class Cycle:
    """Here the container at path `to` would start over."""

    to: Path


def is_module(value: object) -> bool:
    """Whether `value` is a pickled nn.Module: an object with dicts of parameters and of modules."""
    return type(value) is Call and all(
        isinstance(_of_module(value, part), dict) for part in ("_parameters", "_modules")
    )


def _of_module(module: Call, name: str) -> Any:
    """An attribute from the state; a torch.fx.GraphModule is a function's result and has them in its first argument."""
    found = module.attribute(name)
    if found is None and module.args and isinstance(module.args[0], dict):
        return module.args[0].get(name)
    return found


def module_items(module: Call) -> Iterator[tuple[Any, Any]]:
    """What the state dict of `module` has directly: parameters and persistent buffers that are set, and submodules."""
    return ((name, value) for name, value in _module_items(module) if value is not _HIDDEN)


def _module_items(module: Call) -> Iterator[tuple[Any, Any]]:
    transient = _of_module(module, "_non_persistent_buffers_set")
    for part in _PARTS:
        entries = _of_module(module, part)
        for name, value in entries.items() if isinstance(entries, dict) else ():
            hidden = part == "_buffers" and isinstance(transient, (set, frozenset)) and name in transient
            yield name, _HIDDEN if value is None or hidden else value


def stub_items(stub: Call) -> Iterator[tuple[Any, Any]]:
    """What an object holds: its attributes by name, dict items by key, list items by number, then the call itself."""
    yield from stub.attributes()
    if not isinstance(stub.state, dict) and stub.state is not None and not any(True for _ in stub.attributes()):
        yield "state", stub.state
    yield from stub.dictitems or ()
    yield from enumerate(stub.listitems or ())
    yield from ((f"({index})", value) for index, value in enumerate(stub.args))
    yield from ((f"({name})", value) for name, value in (stub.kwargs or {}).items())
    if type(stub.func) is Call:
        yield "()", stub.func


def walk(value: object, *, limits: Limits = DEFAULT, path: object = None) -> Iterator[tuple[Path, Any]]:
    """Every leaf under `value` with the keys that lead to it, in file order. `path` is the file, for messages.

    Containers are dicts, lists, tuples, stubs and object arrays; empty ones are leaves, and so are sets. Of an
    nn.Module come the entries of its state dict, under the same names: ("encoder", "layer", "0", "weight").
    Raises `LimitExceededError` beyond `limits.pickle_objects` visits or `limits.pickle_depth` levels.
    """
    open_at: dict[int, int] = {}  # id of each container on the way here -> its depth
    opened: list[int] = []
    pending: list[Iterator[tuple[Any, Any]]] = [iter((((), value),))]
    steps: list[Any] = []
    visits = 0
    while pending:
        for step, item in pending[-1]:
            visits += 1 + len(steps) // _DEEPER
            if visits > limits.pickle_objects:
                limits.check("the number of values in this pickle", visits, limits.pickle_objects, path=path)
            if item is _HIDDEN:
                continue
            here: Path = () if len(pending) == 1 else (*steps, step)
            inside = _ITEMS.get(type(item))
            children = inside(item) if inside is not None else None
            if children is None:
                yield here, item
            elif id(item) in open_at:
                yield here, Cycle(here[: open_at[id(item)]])
            else:
                limits.check("the nesting of this pickle", len(pending), limits.pickle_depth, path=path)
                open_at[id(item)] = len(here)
                opened.append(id(item))
                if len(pending) > 1:
                    steps.append(step)
                pending.append(children)
                break
        else:
            pending.pop()
            if opened:
                del open_at[opened.pop()]
            if steps:
                steps.pop()


def _mapping(value: Any) -> Iterator[tuple[Any, Any]] | None:
    return iter(value.items()) if value else None


def _sequence(value: Any) -> Iterator[tuple[Any, Any]] | None:
    return enumerate(value) if value else None


def _stub(value: Any) -> Iterator[tuple[Any, Any]] | None:
    return _module_items(value) if is_module(value) else stub_items(value)


def _array(value: Any) -> Iterator[tuple[Any, Any]] | None:
    return enumerate(value.data) if type(value.data) is list else None


_ITEMS: dict[type, Callable[[Any], Iterator[tuple[Any, Any]] | None]] = {
    dict: _mapping, StubDict: _mapping, list: _sequence, tuple: _sequence, Call: _stub,
    NumpyArray: _array,
}  # fmt: skip


def check_depth(value: object, limits: Limits, path: object = None) -> None:
    """Raise `LimitExceededError` when containers are nested deeper than `limits.pickle_depth` on any way down.

    Each container is measured once (its height), however often it is shared; a way back up does not count.
    """
    heights: dict[int, int] = {}
    if type(value) not in _CHILDREN:
        return
    ways: list[tuple[Any, Iterator[Any]]] = [(value, _children(value))]
    heights[id(value)] = 0
    while ways:
        parent, rest = ways[-1]
        for child in rest:
            kind = type(child)
            if kind not in _CHILDREN or (kind is TensorRef and child.is_flat):
                continue
            known = heights.get(id(child))
            if known is None:
                heights[id(child)] = 0
                ways.append((child, _children(child)))
                break
            heights[id(parent)] = max(heights[id(parent)], known + 1)
        else:
            ways.pop()
            if ways:
                above = id(ways[-1][0])
                heights[above] = max(heights[above], heights[id(parent)] + 1)
        if len(ways) > limits.pickle_depth or heights[id(parent)] > limits.pickle_depth:
            raise LimitExceededError(f"containers nested more than {limits.pickle_depth:,} deep", path=path)


def _children(value: Any) -> Iterator[Any]:
    return iter(_CHILDREN[type(value)](value))


def _of_call(call: Call) -> Iterable[Any]:
    yield from (call.func, call.args, call.state)
    yield from (call.kwargs or {}).values()
    yield from call.listitems or ()
    for pair in call.dictitems or ():
        yield pair[1]


def _of_dtype(dtype: NumpyDtype) -> Iterable[Any]:
    yield from (dtype.metadata, dtype.base)
    for field, _ in (dtype.fields or {}).values():
        yield field


_CHILDREN: dict[type, Callable[[Any], Iterable[Any]]] = {
    dict: lambda value: value.values(),
    StubDict: lambda value: [*value.values(), value.state, value.args],
    list: lambda value: value,
    tuple: lambda value: value,
    set: lambda value: value,
    frozenset: lambda value: value,
    Call: _of_call,
    NumpyArray: lambda value: value.data if type(value.data) is list else (),
    NumpyScalar: lambda value: (value.data,),
    NumpyDtype: _of_dtype,
    TensorRef: lambda value: (value.storage, value.state, value.metadata, *(value.extra or {}).values()),
    PersistentId: lambda value: (value.value,),
}
