# SPDX-License-Identifier: Apache-2.0
"""The opcodes that the loop in machine.py does not take itself, and the unusual cases of those it does."""

from __future__ import annotations

from typing import Any

from tael.errors import CorruptFileError, UnsupportedFormatError
from tael.pickle.budget import ENTRY_BYTES, KEY_CHARS, SET_BYTES
from tael.pickle.literals import LITERALS, line, number, take, word
from tael.pickle.machine import Handler, Machine
from tael.pickle.numpy_types import NumpyArray, NumpyDtype
from tael.pickle.stubs import Call, Global, StubDict
from tael.pickle.torch_types import TensorRef

HIGHEST_PROTOCOL = 5

# Stack, memo, framing.


def _items(m: Machine) -> list[Any]:
    """Everything above the last mark, and the mark is gone."""
    if not m.marked:
        raise CorruptFileError("an opcode asks for a mark that is not there")
    items = m.stack
    m.stack = m.marked.pop()
    return items


def _pop(m: Machine) -> None:
    if m.stack:
        m.stack.pop()
    else:
        _items(m)


def _dup(m: Machine) -> None:
    m.stack.append(m.stack[-1])


def _get(m: Machine, index: int) -> None:
    if index < len(m.memo):
        m.stack.append(m.memo[index])
    elif index in m.sparse:
        m.stack.append(m.sparse[index])
    else:
        raise CorruptFileError(f"memo entry {index:,} is used but was never stored")


def _put(m: Machine, index: int) -> None:
    value = m.stack[-1]
    if index < len(m.memo):
        m.memo[index] = value
    elif index == len(m.memo) and not m.sparse:
        m.memo.append(value)
    else:
        m.keep(0 if index in m.sparse else ENTRY_BYTES)
        m.sparse[index] = value


def _memo(handle: Any, size: int) -> Handler:
    def memo(m: Machine) -> None:
        if size:
            index = number(m, size)
        else:
            index = int(line(m, 32))
            if index < 0:
                raise CorruptFileError(f"memo entry {index}")
        handle(m, index)

    return memo


def _memoize(m: Machine) -> None:
    _put(m, len(m.memo) + len(m.sparse))


def _protocol(m: Machine) -> None:
    version = number(m, 1)
    if version > HIGHEST_PROTOCOL:
        raise UnsupportedFormatError(f"pickle protocol {version}; protocols 0 to {HIGHEST_PROTOCOL} are known")


def _frame(m: Machine) -> None:
    size = number(m, 8)
    at = m.reader.base + m.pos
    if size > m.reader.size - at:
        raise m.reader.truncated(at, size)


def _buffer(m: Machine) -> None:
    raise UnsupportedFormatError(
        "the pickle refers to buffers that were stored outside of it",
        hint="it was written with buffer_callback=; its data is not in this file",
    )


# Names and calls.


def _global(m: Machine) -> None:
    module = word(m)
    m.stack.append(m.find(module, word(m), "GLOBAL", m.offset))


def _stack_global(m: Machine) -> None:
    name = m.stack.pop()
    module = m.stack.pop()
    if type(name) is not str or type(module) is not str:
        raise CorruptFileError("STACK_GLOBAL needs two strings")
    m.stack.append(m.find(module, name, "STACK_GLOBAL", m.offset))


def _extension(size: int) -> Handler:
    def extension(m: Machine) -> None:
        code = int.from_bytes(take(m, size), "little", signed=size == 4)
        if code <= 0:
            raise CorruptFileError(f"extension code {code}")
        m.stack.append(m.find("copyreg.extension", str(code), "EXT", m.offset))

    return extension


def _persid(m: Machine) -> None:
    m.stack.append(m.persistent(word(m)))


def _reduce(m: Machine) -> None:
    args = m.stack.pop()
    m.stack[-1] = m.call(m.stack[-1], args)


def _new(m: Machine) -> None:
    args = m.stack.pop()
    m.stack[-1] = m.make(m.stack[-1], args)


def _new_ex(m: Machine) -> None:
    kwargs = m.stack.pop()
    args = m.stack.pop()
    m.stack[-1] = m.make(m.stack[-1], args, kwargs)


def _inst(m: Machine) -> None:
    module = word(m)
    cls = m.find(module, word(m), "INST", m.offset)
    args = tuple(_items(m))
    m.stack.append(m.call(cls, args))


def _obj(m: Machine) -> None:
    items = _items(m)
    m.stack.append(m.call(items[0], tuple(items[1:])))


def _build(m: Machine) -> None:
    """Keep the state aside: nothing is set on anything."""
    state = m.stack.pop()
    target = m.stack[-1]
    kind = type(target)
    if kind is Call:
        if target.has_state:
            raise CorruptFileError("an object is given its state twice")
        target.state, target.has_state = state, True
    elif kind is NumpyArray or kind is NumpyDtype:
        target.set_state(state, m)
    elif kind is StubDict or kind is TensorRef:
        if target.state is not None:
            raise CorruptFileError("an object is given its state twice")
        target.state = state
    elif kind is Global:
        raise CorruptFileError(f"the pickle sets attributes of {target!r} itself")
    else:
        raise CorruptFileError(f"a {kind.__name__} has no state to set")


# Containers.


def _list(m: Machine) -> None:
    items = _items(m)
    m.stack.append(items)


def _dict(m: Machine) -> None:
    items = _items(m)
    made: dict[Any, Any] = {}
    _set_items(m, made, items)
    m.stack.append(made)


def _set_items(m: Machine, target: Any, items: list[Any]) -> None:
    if len(items) % 2:
        raise CorruptFileError("a dict with a key that has no value")
    if isinstance(target, dict):
        for index in range(0, len(items), 2):
            key = items[index]
            if type(key) is not str or len(key) > KEY_CHARS:
                m.key(key)
            target[key] = items[index + 1]
    elif type(target) is Call:
        target.dictitems = target.dictitems or []
        target.dictitems += zip(items[::2], items[1::2], strict=True)
    else:
        raise CorruptFileError(f"a {type(target).__name__} takes no key")


def _setitem(m: Machine) -> None:
    value = m.stack.pop()
    key = m.stack.pop()
    _set_items(m, m.stack[-1], [key, value])


def _setitems(m: Machine) -> None:
    items = _items(m)
    _set_items(m, m.stack[-1], items)


def _extend(target: Any, items: list[Any]) -> None:
    if type(target) is list:
        target += items
    elif type(target) is Call:
        target.listitems = target.listitems or []
        target.listitems += items
    else:
        raise CorruptFileError(f"a {type(target).__name__} takes no items")


def _append(m: Machine) -> None:
    item = m.stack.pop()
    _extend(m.stack[-1], [item])


def _appends(m: Machine) -> None:
    items = _items(m)
    _extend(m.stack[-1], items)


def _additems(m: Machine) -> None:
    items = _items(m)
    target = m.stack[-1]
    if type(target) is set:
        for item in items:
            m.key(item)
        target.update(items)
    elif type(target) is Call:
        _extend(target, items)
    else:
        raise CorruptFileError(f"a {type(target).__name__} takes no members")


def _frozenset(m: Machine) -> None:
    items = _items(m)
    for item in items:
        m.key(item)
    m.stack.append(frozenset(items))


def _pop_mark(m: Machine) -> None:
    _items(m)


def _true(m: Machine) -> None:
    m.stack.append(True)


def _empty_set(m: Machine) -> None:
    m.keep(SET_BYTES)
    m.stack.append(set())


HANDLERS: dict[int, Handler] = LITERALS | {
    ord(code): handler
    for code, handler in {
        "0": _pop, "1": _pop_mark, "2": _dup, "\x88": _true, "\x97": _buffer, "\x98": _buffer,
        "g": _memo(_get, 0), "h": _memo(_get, 1), "j": _memo(_get, 4),
        "p": _memo(_put, 0), "q": _memo(_put, 1), "r": _memo(_put, 4), "\x94": _memoize,
        "\x80": _protocol, "\x95": _frame,
        "c": _global, "\x93": _stack_global, "\x82": _extension(1), "\x83": _extension(2), "\x84": _extension(4),
        "P": _persid, "R": _reduce, "\x81": _new, "\x92": _new_ex, "i": _inst, "o": _obj, "b": _build,
        "l": _list, "d": _dict, "s": _setitem, "u": _setitems, "a": _append, "e": _appends,
        "\x8f": _empty_set, "\x90": _additems, "\x91": _frozenset,
    }.items()
}  # fmt: skip
