# SPDX-License-Identifier: Apache-2.0
"""The shape of a loaded value: where its tensors are, and the state dicts of the modules in it.

Nothing here recurses into a file's own nesting: hostile files nest deep, share containers and hold themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tael.core.limits import Limits
from tael.errors import LimitExceededError
from tael.formats.torch.tensors import is_tensor
from tael.pickle import Call, Cycle, LazyBytes, StubDict, TensorRef, is_module, module_items, stub_items

TEXT_BYTES = 16 << 20  # a long string is read up to here
_FX_MODULES = frozenset({f"torch.fx.graph_module.reduce_{kind}" for kind in ("graph_module", "package_graph_module")})


class Survey:
    """One look at everything in a loaded value: which containers hold tensors, how much there is of it.

    A dict or list that holds itself is cut there (a `Cycle` in its place). Long texts are read by `read_text` and put
    in place. Raises `LimitExceededError` when writing out what is shared would give more than `limits.pickle_objects`.
    """

    def __init__(self, root: Any, limits: Limits, path: str, read_text: Callable[[LazyBytes], str]) -> None:
        self._holds: dict[int, bool] = {}
        self._shown: set[int] = set()
        self._read_text = read_text
        size = self._measure(root)
        limits.check("the number of values in this file", size, limits.pickle_objects, path=path)

    def holds_tensors(self, value: Any) -> bool:
        return is_tensor(value) or self._holds.get(id(value), False)

    def view(self, value: Any) -> Mapping[Any, Any] | None:
        """What is inside of an object with tensors: of a module its state dict, else what holds tensors, shown once."""
        if type(value) is not Call or not self.holds_tensors(value):
            return None
        if is_module(value):
            return state_dict(value)
        if id(value) in self._shown:
            return None
        self._shown.add(id(value))
        return {key: item for key, item in stub_items(value) if self.holds_tensors(item)}

    def _measure(self, root: Any) -> int:
        """Fills `_holds`; the number of values when each container is written out wherever it occurs."""
        sizes: dict[int, int] = {}
        open_now: set[int] = set()
        if children(root) is None:
            return 1
        ways = [(root, children(root), [1])]
        open_now.add(id(root))
        self._holds[id(root)] = False
        while ways:
            parent, rest, total = ways[-1]
            for key, child in rest or ():
                total[0] += 1
                kind = type(child)
                if kind is TensorRef or is_tensor(child):
                    self._holds[id(parent)] = True
                    continue
                if kind is LazyBytes and child.text and child.nbytes <= TEXT_BYTES:
                    _replace(parent, key, self._read_text(child))
                if id(child) in open_now:
                    if type(child) is not Call and not _replace(parent, key, Cycle(())):
                        raise LimitExceededError("a tuple in this file holds itself")
                elif id(child) in sizes:
                    # An object is written out once, a container each time.
                    total[0] += sizes[id(child)] if type(child) is not Call or is_module(child) else 0
                    self._holds[id(parent)] |= self._holds[id(child)]
                elif (inside := children(child)) is not None:
                    ways.append((child, inside, [0]))
                    open_now.add(id(child))
                    self._holds[id(child)] = False
                    break
            else:
                ways.pop()
                open_now.discard(id(parent))
                sizes[id(parent)] = total[0]
                if ways:
                    above, _, sum_above = ways[-1]
                    sum_above[0] += total[0]
                    self._holds[id(above)] |= self._holds[id(parent)]
        return sizes[id(root)]


def children(value: Any) -> Iterator[tuple[Any, Any]] | None:
    if isinstance(value, dict):
        return iter(list(value.items()))
    if type(value) is list or type(value) is tuple:
        return enumerate(value)
    if type(value) is Call:
        _settle(value)
        return module_items(value) if is_module(value) else stub_items(value)
    return None


def _settle(call: Call) -> None:
    """An FX graph module is pickled as a function of its attributes: let it look like any other module."""
    if call.qualified in _FX_MODULES and call.args and isinstance(call.args[0], dict) and not call.has_state:
        call.state, call.has_state, call.args = call.args[0], True, call.args[1:]


def _replace(parent: Any, key: Any, value: Any) -> bool:
    if isinstance(parent, dict | list):
        parent[key] = value
        return True
    return False


def state_dict(module: Call) -> StubDict:
    """What `module.state_dict()` would give: dotted names, each module's own tensors before its children's."""
    found = StubDict("collections.OrderedDict")
    ways: list[tuple[Call, str, Iterator[tuple[Any, Any]]]] = [(module, "", module_items(module))]
    while ways:
        _, prefix, items = ways[-1]
        for name, value in items:
            if is_module(value):
                if all(value is not above for above, _, _ in ways):
                    ways.append((value, f"{prefix}{name}.", module_items(value)))
                    break
            elif is_tensor(value):
                found[f"{prefix}{name}"] = value
        else:
            ways.pop()
    return found


def modules(module: Call) -> dict[str, str]:
    """Path -> class of `module` ("") and of every module inside."""
    found = {"": module.qualified}
    ways: list[tuple[Call, str]] = [(module, "")]
    seen = {id(module)}
    while ways:
        parent, prefix = ways.pop()
        for name, value in module_items(parent):
            if is_module(value) and id(value) not in seen:
                seen.add(id(value))
                found[f"{prefix}{name}"] = value.qualified
                ways.append((value, f"{prefix}{name}."))
    return found
