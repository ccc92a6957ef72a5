# SPDX-License-Identifier: Apache-2.0
"""What a pickle holds besides tensors: plain values as metadata, modules by class, all else as a line of text.

A plain value is what JSON can say, or close to it: a dtype, a device, a numpy scalar, a tuple, a Namespace. The largest
subtree that holds no tensor and is plain all through becomes one metadata entry: `optimizer.param_groups`, `epoch`.
"""

from __future__ import annotations

from typing import Any

from tael.core.limits import Limits
from tael.errors import clip
from tael.formats.torch.survey import Survey, children, modules
from tael.formats.torch.tensors import is_tensor
from tael.formats.torch.tree import unique_names
from tael.pickle import (
    Call,
    Cycle,
    Global,
    LazyBytes,
    NumpyArray,
    NumpyScalar,
    TensorRef,
    TorchConstant,
    TorchDevice,
    TorchDtype,
    is_module,
)

_PLAIN_DEPTH = 32
_PLAIN_INT_BITS = 64
_NAMESPACES = frozenset({"argparse.Namespace", "types.SimpleNamespace"})
_WRAPPERS = ("_content", "_val")  # attributes in which omegaconf's containers and nodes hold their value
_PATHS = frozenset({f"{package}.{name}" for package in ("pathlib", "pathlib._local") for name in (
    "PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath", "Path"
)})  # fmt: skip


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
            inside = children(value) if holds or type(value) is not Call else None
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
