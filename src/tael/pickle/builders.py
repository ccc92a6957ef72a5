# SPDX-License-Identifier: Apache-2.0
"""The rules: exact "module.name" -> how a call of it is built from inert parts. What is not here becomes a stub.

Nothing here calls what the pickle names: a rule makes a plain Python value of the same content, or a description.
A rule that copies announces it (`budget.keep`, `budget.charge`), because a pickle may ask for the copy a million times.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tael.errors import CorruptFileError
from tael.pickle import numpy_types, torch_rules
from tael.pickle.budget import ENTRY_BYTES, SET_BYTES, Budget
from tael.pickle.lazy import encode_latin1
from tael.pickle.stubs import Call, Global, LazyBytes, Rule, StubDict

_LATIN1 = ("latin1", "latin-1", "iso-8859-1")
_WIDEST = 1 << 64  # of a range's bounds


def _ordered_dict(args: tuple[Any, ...], budget: Budget) -> Any:
    made = StubDict("collections.OrderedDict")
    if args:
        _fill(made, args, budget)
    return made


def _counter(args: tuple[Any, ...], budget: Budget) -> Any:
    made = StubDict("collections.Counter")
    if args:
        _fill(made, args, budget)
    return made


def _default_dict(args: tuple[Any, ...], budget: Budget) -> Any:
    made = StubDict("collections.defaultdict", args[:1])
    if len(args) > 1:
        _fill(made, args[1:], budget)
    return made


def _fill(made: StubDict, args: tuple[Any, ...], budget: Budget) -> None:
    """From a dict, or from a list of pairs (Python 2)."""
    if len(args) != 1 or not isinstance(args[0], (dict, list, tuple)):
        raise CorruptFileError(f"a {made.origin} made from something else than a dict or a list of pairs")
    content = args[0]
    budget.keep(len(content) * ENTRY_BYTES)
    budget.charge(len(content))
    for pair in content.items() if isinstance(content, dict) else content:
        if type(pair) not in (tuple, list) or len(pair) != 2:
            raise CorruptFileError(f"a {made.origin} made from a list of something else than pairs")
        budget.key(pair[0])
        made[pair[0]] = pair[1]


def _members(args: tuple[Any, ...], budget: Budget) -> list[Any]:
    if not args:
        return []
    if len(args) != 1 or not isinstance(args[0], (list, tuple, set, frozenset)):
        raise CorruptFileError("a set made from something else than a list")
    budget.keep(len(args[0]) * ENTRY_BYTES + SET_BYTES)
    for member in args[0]:
        budget.key(member)
    return list(args[0])


def _set(args: tuple[Any, ...], budget: Budget) -> Any:
    return set(_members(args, budget))


def _frozenset(args: tuple[Any, ...], budget: Budget) -> Any:
    return frozenset(_members(args, budget))


def _encode(args: tuple[Any, ...], budget: Budget) -> Any:
    """_codecs.encode(text, "latin1"): how Python 3 writes bytes at protocols 0 to 2."""
    if len(args) != 2 or args[1] not in _LATIN1 or type(args[0]) not in (str, LazyBytes):
        return Call(Global("_codecs", "encode"), args)
    return _bytes_of(args[0], budget)


def _bytes_of(text: str | bytes | LazyBytes, budget: Budget) -> bytes | LazyBytes:
    if isinstance(text, LazyBytes):
        return LazyBytes(text.offset, text.nbytes, text.encoding)
    budget.keep(len(text))
    return encode_latin1(text) if isinstance(text, str) else text


def _bytes(args: tuple[Any, ...], budget: Budget) -> Any:
    return b"" if not args else Call(Global("builtins", "bytes"), args)


def _bytearray(args: tuple[Any, ...], budget: Budget) -> Any:
    """(), (bytes,) or (text, "latin-1"). Never a number: that would be an allocation of the file's choice."""
    if not args:
        return bytearray()
    if type(args[0]) not in (bytes, str, LazyBytes) or not (len(args) == 1 or args[1:] in [(x,) for x in _LATIN1]):
        raise CorruptFileError("a bytearray made from something else than bytes")
    content = _bytes_of(args[0], budget)
    budget.keep(0 if isinstance(content, LazyBytes) else len(content))
    return content if isinstance(content, LazyBytes) else bytearray(content)


def _complex(args: tuple[Any, ...], budget: Budget) -> Any:
    if len(args) != 2 or set(map(type, args)) - {float, int}:
        raise CorruptFileError("a complex number made from something else than two numbers")
    return complex(*args)


def _slice(args: tuple[Any, ...], budget: Budget) -> Any:
    """Of numbers only: a real slice holds anything, but a long chain of them overflows the C stack when it is freed."""
    if not 1 <= len(args) <= 3 or set(map(type, args)) - {int, type(None)}:
        raise CorruptFileError("a slice with impossible bounds")
    return slice(*args)


def _range(args: tuple[Any, ...], budget: Budget) -> Any:
    if not 1 <= len(args) <= 3 or any(type(bound) is not int or abs(bound) >= _WIDEST for bound in args):
        raise CorruptFileError("a range with impossible bounds")
    return range(*args)


def _reconstructor(args: tuple[Any, ...], budget: Budget) -> Any:
    """copyreg._reconstructor(cls, base, base_value): an object at protocols 0 and 1."""
    if len(args) != 3:
        raise CorruptFileError("an object with malformed arguments")
    return Call(args[0], () if args[2] is None else args[2:], new=True)


def _new_object(args: tuple[Any, ...], budget: Budget) -> Any:
    """copyreg.__newobj__(cls, *args)."""
    if not args:
        raise CorruptFileError("an object without a class")
    return Call(args[0], args[1:], new=True)


def _new_object_ex(args: tuple[Any, ...], budget: Budget) -> Any:
    """copyreg.__newobj_ex__(cls, args, kwargs)."""
    if len(args) != 3 or type(args[1]) is not tuple or type(args[2]) is not dict:
        raise CorruptFileError("an object with malformed arguments")
    return Call(args[0], args[1], args[2], new=True)


_BUILTINS = {
    "set": Rule(_set),
    "frozenset": Rule(_frozenset),
    "bytes": Rule(_bytes),
    "bytearray": Rule(_bytearray),
    "complex": Rule(_complex),
    "slice": Rule(_slice),
    "range": Rule(_range),
    "xrange": Rule(_range),
    "Ellipsis": Rule(value=...),
}
# Named as a value (a defaultdict's factory, a dtype): harmless, and a call of them stays a stub.
_NAMED_TYPES = ("object", "int", "long", "float", "str", "unicode", "bool", "list", "dict", "tuple")
_COPYREG = {
    "_reconstructor": Rule(_reconstructor),
    "__newobj__": Rule(_new_object),
    "__newobj_ex__": Rule(_new_object_ex),
}

TABLE: Mapping[str, Rule] = {
    "collections.OrderedDict": Rule(_ordered_dict),
    "collections.defaultdict": Rule(_default_dict),
    "collections.Counter": Rule(_counter),
    "_codecs.encode": Rule(_encode),
    **{f"{module}.{name}": rule for module in ("builtins", "__builtin__") for name, rule in _BUILTINS.items()},
    **{f"{module}.{name}": Rule() for module in ("builtins", "__builtin__") for name in _NAMED_TYPES},
    **{f"{module}.{name}": rule for module in ("copyreg", "copy_reg") for name, rule in _COPYREG.items()},
    **numpy_types.RULES,
    **torch_rules.RULES,
}
