# SPDX-License-Identifier: Apache-2.0
"""TorchScript archives: the zip layout with `constants.pkl` and a folder `code/`, which is never looked into.

`data.pkl` holds the module as an object of a class named `__torch__...`, its attributes as the object's state; a
submodule is such an object too. Tensors are named by the attributes that lead to them, as in a state dict. (Which of
them are parameters and which are plain attributes only the code says, so all are listed.) Constants of the code keep
apart: `extras["torch.constants"]`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tael.core.limits import Limits
from tael.core.problem import Problem
from tael.errors import CorruptFileError
from tael.formats.torch.assembly import Parsed
from tael.formats.torch.objects import NotPlainError, PlainValues
from tael.formats.torch.tensors import TensorMaker, is_tensor
from tael.pickle import TABLE, Call, Rule, StubDict, stub_items
from tael.pickle.budget import Budget

if TYPE_CHECKING:
    from tael.formats.torch.zip import Members

CODE, CONSTANTS, CONSTANTS_PICKLE = "code/", "constants/", "constants.pkl"
_CLASSES = "__torch__."


def _first(args: tuple[Any, ...], budget: Budget) -> Any:
    if not args:
        raise CorruptFileError("a TorchScript value without its content")
    return args[0]


# Typed lists and values with a type beside them: the content is the first argument.
RULES: dict[str, Rule] = {
    **TABLE,
    **{
        f"torch.jit._pickle.{name}": Rule(_first)
        for name in ("build_intlist", "build_tensorlist", "build_doublelist", "build_boollist", "restore_type_tag")
    },
}


def take(members: Members, parsed: Parsed, limits: Limits) -> None:
    """Turn `parsed`, the module object, into its state dict; constants, code and attributes go to the extras."""
    state, attributes = _flatten(parsed.value, limits, parsed.path)
    parsed.value, parsed.layout, parsed.quiet = state, "torchscript", (_CLASSES,)
    code = [name for name in members.names() if name.startswith(CODE) and not name.endswith(".debug_pkl")]
    constants = _constants(members, parsed, limits)
    for key, value in (("code", tuple(code)), ("constants", constants), ("attributes", attributes)):
        if value:
            parsed.extras[f"torch.{key}"] = value
    what = f"a TorchScript archive: {len(code):,} files of code are listed, not run"
    if constants:
        nbytes = sum(tensor.nbytes for tensor in constants.values())
        what += f"; {len(constants):,} constants ({nbytes:,} bytes) are kept apart from the weights"
    parsed.problems.append(Problem("note", what, parsed.path))


def _flatten(root: Any, limits: Limits, path: str) -> tuple[StubDict, dict[str, Any]]:
    """The tensors below `root` by dotted name, and the plain attributes likewise."""
    state, attributes = StubDict("collections.OrderedDict"), {}
    convert = PlainValues(limits.pickle_objects)
    ways: list[tuple[Any, str, Iterator[tuple[Any, Any]]]] = [(root, "", _items(root))]
    visits = 0
    while ways:
        _, prefix, items = ways[-1]
        for key, value in items:
            visits += 1
            limits.check("the number of values in this file", visits, limits.pickle_objects, path=path)
            name = f"{prefix}{key}"
            if is_tensor(value):
                state[name] = value
                continue
            try:
                attributes[name] = convert(value)
                continue
            except NotPlainError:
                pass
            if all(value is not above for above, _, _ in ways):
                ways.append((value, f"{name}.", _items(value)))
                break
        else:
            ways.pop()
    return state, attributes


def _items(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, dict):
        return iter(value.items())
    if type(value) is list or type(value) is tuple:
        return enumerate(value)
    return stub_items(value) if type(value) is Call else iter(())


def _constants(members: Members, parsed: Parsed, limits: Limits) -> dict[str, Any]:
    inner = members.in_folder(CONSTANTS)
    loaded, home = inner.unpickle(CONSTANTS_PICKLE, RULES)
    maker = TensorMaker(inner.find, home, limits, parsed.path)
    values = loaded.value if type(loaded.value) in (list, tuple) else ()
    tensors = {str(n): maker.make(f"constants.{n}", value) for n, value in enumerate(values) if is_tensor(value)}
    parsed.problems += maker.problems
    return tensors
