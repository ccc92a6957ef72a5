# SPDX-License-Identifier: Apache-2.0
"""What a pickle holds besides tensors: modules as state dicts, plain values as metadata, all else as a line of text.

A plain value is what JSON can say, or close to it: a dtype, a device, a numpy scalar, a tuple, a Namespace. The largest
subtree that holds no tensor and is plain all through becomes one metadata entry: `optimizer.param_groups`, `epoch`.
Nothing here recurses into a file's own nesting unasked: hostile files nest deep, share containers and hold themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tael.core.limits import Limits
from tael.errors import LimitExceededError, clip
from tael.formats.torch_tensors import is_tensor
from tael.formats.torch_tree import unique_names
from tael.pickle import (
    Call,
    Cycle,
    Global,
    LazyBytes,
    NumpyArray,
    NumpyScalar,
    StubDict,
    TensorRef,
    TorchConstant,
    TorchDevice,
    TorchDtype,
    is_module,
    module_items,
    stub_items,
)

_TEXT_BYTES = 16 << 20  # a long string is read for the metadata up to here
_PLAIN_DEPTH = 32
_PLAIN_INT_BITS = 64
_NAMESPACES = frozenset({"argparse.Namespace", "types.SimpleNamespace"})
_WRAPPERS = ("_content", "_val")  # attributes in which omegaconf's containers and nodes hold their value
_FX_MODULES = frozenset({f"torch.fx.graph_module.reduce_{kind}" for kind in ("graph_module", "package_graph_module")})
_PATHS = frozenset({f"{package}.{name}" for package in ("pathlib", "pathlib._local") for name in (
    "PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath", "Path"
)})  # fmt: skip


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
        if _children(root) is None:
            return 1
        ways = [(root, _children(root), [1])]
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
                if kind is LazyBytes and child.text and child.nbytes <= _TEXT_BYTES:
                    _replace(parent, key, self._read_text(child))
                if id(child) in open_now:
                    if type(child) is not Call and not _replace(parent, key, Cycle(())):
                        raise LimitExceededError("a tuple in this file holds itself")
                elif id(child) in sizes:
                    # An object is written out once, a container each time.
                    total[0] += sizes[id(child)] if type(child) is not Call or is_module(child) else 0
                    self._holds[id(parent)] |= self._holds[id(child)]
                elif (inside := _children(child)) is not None:
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


def _children(value: Any) -> Iterator[tuple[Any, Any]] | None:
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


class Remainder:
    """All that is no tensor: `metadata`, `objects` (name -> what it is), `modules` (of each nn.Module: path -> class).

    `mixed`: keys of values that stand in one dict with tensors.
    """

    def __init__(self, root: Any, survey: Survey, limits: Limits) -> None:
        self.mixed: list[str] = []
        self.modules: dict[str, dict[str, str]] = {}
        plain: list[tuple[tuple[Any, ...], Any]] = []
        objects: list[tuple[tuple[Any, ...], str]] = []
        pending: list[tuple[tuple[Any, ...], Any]] = [((), root)]
        shown: set[int] = set()
        convert = PlainValues(limits.pickle_objects)
        while pending:
            at, value = pending.pop()
            holds = survey.holds_tensors(value)
            if is_tensor(value):
                continue
            if holds and is_module(value):
                self.modules[".".join(map(str, at))] = modules(value)
                continue
            if not holds and not (at == () and isinstance(value, dict)):
                try:
                    plain.append((at, convert(value)))
                    continue
                except NotPlainError:
                    pass
            inside = _children(value) if holds or type(value) is not Call else None
            if inside is None or type(value) is Call:
                objects.append((at, describe(value)))
            if inside is None or id(value) in shown:
                continue
            shown.add(id(value))
            pending += reversed([((*at, key), item) for key, item in inside if type(item) is not TensorRef])
            if isinstance(value, dict) and any(is_tensor(item) for item in value.values()):
                self.mixed += [str(key) for key, item in value.items() if not survey.holds_tensors(item)]
        self.metadata = dict(zip(_names([at for at, _ in plain]), (value for _, value in plain), strict=True))
        self.objects = dict(zip(_names([at for at, _ in objects]), (text for _, text in objects), strict=True))


def _names(paths: list[tuple[Any, ...]]) -> list[str]:
    """One name each; what is the whole file is "value"."""
    return [name if at else "value" for at, name in zip(paths, unique_names(paths), strict=True)]


class NotPlainError(Exception):
    pass


class PlainValues:
    """Values as JSON can hold them. Raises when one cannot; and when `visits` are used up, for all."""

    def __init__(self, visits: int) -> None:
        self.left = visits

    def __call__(self, value: Any, depth: int = 0) -> Any:
        kind = type(value)
        self.left -= 1
        if value is None or kind is bool or kind is float or kind is str:
            return value
        if kind is int and value.bit_length() <= _PLAIN_INT_BITS:
            return value
        if kind is NumpyScalar:
            return self(value.value if value.value is not None else ...)
        if kind is TorchDtype or kind is TorchConstant:
            return f"torch.{value.name}"
        if kind is TorchDevice:
            return value.type if value.index is None else f"{value.type}:{value.index}"
        if depth >= _PLAIN_DEPTH or self.left < 0:
            raise NotPlainError
        if kind is list or kind is tuple:
            return [self(item, depth + 1) for item in value]
        if kind is set or kind is frozenset:
            return sorted((self(item, depth + 1) for item in value), key=str)
        if isinstance(value, dict):
            made = {_plain_key(key): self(item, depth + 1) for key, item in value.items()}
            if len(made) == len(value):
                return made
        if kind is Call:
            return self._object(value, depth)
        raise NotPlainError

    def _object(self, call: Call, depth: int) -> Any:
        """What objects of a few harmless classes, and of any subclass of dict or list, say."""
        name = call.qualified
        if name in _PATHS and all(type(part) is str for part in call.args):
            return "/".join(call.args).replace("//", "/")
        if name in _NAMESPACES and not call.args:
            return self(dict(call.attributes()), depth + 1)
        if name.startswith("omegaconf."):
            for key in _WRAPPERS:
                if call.attribute(key) is not None:
                    return self(call.attribute(key), depth + 1)
        if call.args or call.kwargs or (call.dictitems and call.listitems):
            raise NotPlainError
        if call.dictitems:
            return self(dict(call.dictitems), depth + 1)
        if call.listitems and not call.has_state:
            return self(call.listitems, depth + 1)
        raise NotPlainError


def _plain_key(key: Any) -> str:
    if type(key) in (str, int, float, bool, type(None)):
        return key if type(key) is str else str(key)
    raise NotPlainError


def describe(value: Any) -> str:
    """One line about a value that is neither tensor nor plain."""
    kind = type(value)
    if kind is Call:
        return f"an object of {clip(value.qualified)}"
    if kind is Global:
        return f"the name {clip(value.qualified)}"
    if kind is bytes or kind is bytearray:
        return f"{len(value):,} bytes"
    if kind is LazyBytes:
        return f"{'a text' if value.text else 'bytes'}, {value.nbytes:,} bytes stored"
    if kind is NumpyArray:
        return f"a numpy array of {clip(value.dtype.descr)} {list(value.shape)}"
    if kind is Cycle:
        return "a container that holds itself"
    if isinstance(value, int):
        return f"an integer of {value.bit_length():,} bits"
    return f"a {kind.__name__}"
