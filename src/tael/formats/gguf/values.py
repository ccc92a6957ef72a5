# SPDX-License-Identifier: Apache-2.0
"""The values of GGUF metadata: their types, arrays that stay bytes until they are looked at, and their encoding.

A type is written "u32", "str", "[f32]" (an array), "[[u8]]" (an array of arrays), "[[u8],[str]]" (of
arrays that differ).

    numbers, bool   little-endian; a bool is a byte, 0 or 1
    str             length in bytes (u64), then the bytes: UTF-8 by rule, anything in the field
    array           type of the elements (u32), their count (u64), the elements

Version 1 has u32 where lengths and counts are u64; big-endian files have their numbers the other way round.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, overload

import numpy as np

IDS: dict[str, int] = {
    "u8": 0, "i8": 1, "u16": 2, "i16": 3, "u32": 4, "i32": 5, "f32": 6, "bool": 7, "str": 8, "u64": 10, "i64": 11,
    "f64": 12,
}  # fmt: skip
ARRAY = 9
NAMES = {number: name for name, number in IDS.items()}
CODES = {  # of struct and numpy
    "u8": "B", "i8": "b", "u16": "H", "i16": "h", "u32": "I", "i32": "i", "f32": "f", "bool": "?", "u64": "Q",
    "i64": "q", "f64": "d",
}  # fmt: skip
SIZES = {kind: struct.calcsize("<" + code) for kind, code in CODES.items()}
DEEPEST = 8  # arrays in arrays

_INTEGERS = {
    kind: (-(1 << 8 * SIZES[kind] - 1) if kind[0] == "i" else 0, (1 << 8 * SIZES[kind] - (kind[0] == "i")) - 1)
    for kind in ("u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64")
}
_BY_SIZE = ("u32", "i32", "u64", "i64")  # the first that holds an integer is its type

# What loaders expect, where the value alone would give another type.
STANDARD = {
    "tokenizer.ggml.token_type": "[i32]",
    "tokenizer.ggml.scores": "[f32]",
    "split.no": "u16",
    "split.count": "u16",
    "split.tensors.count": "i32",
}
_FLOATS = (  # behind the name of the architecture
    "rope.freq_base", "rope.freq_base_swa", "rope.scale_linear", "rope.scaling.factor", "rope.scaling.attn_factor",
    "attention.layer_norm_epsilon", "attention.layer_norm_rms_epsilon", "attention.group_norm_epsilon",
    "attention.clamp_kqv", "attention.max_alibi_bias", "attention.scale", "logit_scale", "residual_scale",
    "embedding_scale", "attn_logit_softcapping", "final_logit_softcapping", "expert_weights_scale",
)  # fmt: skip


class Value(NamedTuple):
    """A value and the type it has, or is to have, in the file."""

    kind: str
    value: Any


class Array(Sequence[Any]):
    """An array of numbers, bools or strings as its bytes. Compares as the list of its items; slices are lists."""

    __hash__ = None  # type: ignore[assignment]
    __slots__ = ("_count", "_starts", "item", "order", "raw", "width")

    def __init__(self, item: str, count: int, raw: bytes, order: str = "<", width: int = 8) -> None:
        """`raw`: `count` elements of type `item` in byte order `order`, lengths of strings `width` bytes long."""
        self.item, self._count, self.raw, self.order, self.width = item, count, raw, order, width
        self._starts: array[int] | None = None

    @property
    def kind(self) -> str:
        return f"[{self.item}]"

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Any]:
        if self.item != "str":
            return iter(self.numpy().tolist())
        return (_text(self.raw[start:end]) for start, end in self._ranges())

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if self.item != "str":
            return self.numpy()[index].tolist()
        if self._starts is None:
            self._starts = array("Q", (start for start, _ in self._ranges()))
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._count))]
        if not -self._count <= index < self._count:
            raise IndexError(index)
        start = self._starts[index]
        return _text(self.raw[start : start + self._length(start - self.width)])

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Array) and self.item == other.item and self.raw == other.raw and self._layout(other):
            return True
        if not isinstance(other, list | tuple | Array):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    def __repr__(self) -> str:
        return f"<{self._count:,} x {self.item}>"

    def numpy(self) -> Any:
        """The numbers (or bools) as an array."""
        if self.item == "bool":
            return np.frombuffer(self.raw, np.uint8) != 0
        return np.frombuffer(self.raw, self.order + CODES[self.item])

    def encoded(self) -> bytes:
        """The elements as version 3 has them, little-endian: the stored bytes themselves if they are that already."""
        if self.item == "str":
            if self.order == "<" and self.width == 8:
                return self.raw
            return b"".join(_sized(self.raw[start:end]) for start, end in self._ranges())
        return self.raw if self.order == "<" else self.numpy().astype("<" + CODES[self.item]).tobytes()

    def _layout(self, other: Array) -> bool:
        return (self.order, self.width) == (other.order, other.width)

    def _length(self, at: int) -> int:
        return int.from_bytes(self.raw[at : at + self.width], "little" if self.order == "<" else "big")

    def _ranges(self) -> Iterator[tuple[int, int]]:
        at = 0
        for _ in range(self._count):
            start = at + self.width
            at = start + self._length(at)
            yield start, at


def encode(kind: str, value: Any) -> bytes:
    """`value`, which fits, as `kind`; without the type in front of a metadata value."""
    if kind == "str":
        return _sized(raw_text(value))
    if not kind.startswith("["):
        return struct.pack("<" + CODES[kind], value)
    kinds = _items(kind)
    count = len(value)
    if kinds[0].startswith("["):
        each = kinds if len(kinds) > 1 else kinds * count
        return struct.pack("<IQ", ARRAY, count) + b"".join(map(encode, each, value))
    (item,) = kinds
    head = struct.pack("<IQ", IDS[item], count)
    if isinstance(value, Array) and value.item == item:
        return head + value.encoded()
    if item == "str":
        return head + b"".join(_sized(raw_text(text)) for text in value)
    return head + struct.pack(f"<{count}{CODES[item]}", *value)


def type_id(kind: str) -> int:
    return ARRAY if kind.startswith("[") else IDS[kind]


def raw_text(text: str) -> bytes:
    """The bytes that were decoded to `text`; raises `UnicodeEncodeError` where there are none."""
    return text.encode("utf-8", "surrogateescape")


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def _sized(raw: bytes) -> bytes:
    return len(raw).to_bytes(8, "little") + raw


# --- which type a value has -------------------------------------------------------------------------------------------


def infer(key: str, value: Any) -> str | None:
    """The type that `value` is given when nothing says which it had; None: GGUF has none for it.

    Floats under GGUF's own names (with a dot) are f32, as all of them are; others only if that changes nothing.
    """
    standard = STANDARD.get(key) or ("f32" if key.partition(".")[2] in _FLOATS else None)
    if standard and fits(standard, value):
        return standard
    loose = "." in key
    if isinstance(value, Array):
        if not len(value) or value.item == "str":
            return "[str]"
        return "[bool]" if value.item == "bool" else _of_numbers(value.numpy(), loose)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return _of_list(value, loose)
    return _of_scalar(value, loose)


def _of_scalar(value: Any, loose: bool) -> str | None:
    match value:
        case bool():
            return "bool"
        case int():
            return _of_range(value, value)
        case float():
            return "f32" if fits("f32", value) and (loose or _is_single(value)) else "f64"
        case str():
            return "str" if fits("str", value) else None
    return None


def _of_list(value: Sequence[Any], loose: bool) -> str | None:
    if not value:
        return "[str]"
    if {type(item) for item in value} == {int}:
        kind = _of_range(min(value), max(value))
        return kind and f"[{kind}]"
    kinds = {_of_scalar(item, loose) for item in value}
    if kinds == {"f32", "f64"}:
        kinds = {"f64"}
    (kind, *others) = kinds
    return None if others or kind is None else f"[{kind}]"


def _of_numbers(numbers: Any, loose: bool) -> str | None:
    if numbers.dtype.kind != "f":
        return f"[{_of_range(int(numbers.min()), int(numbers.max()))}]"
    if numbers.dtype.itemsize == 4:
        return "[f32]"
    with np.errstate(all="ignore"):
        narrow = numbers.astype(np.float32)
    same = np.isfinite(narrow) == np.isfinite(numbers) if loose else (narrow == numbers) | np.isnan(numbers)
    return "[f32]" if same.all() else "[f64]"


def _of_range(least: int, most: int) -> str | None:
    return next((kind for kind in _BY_SIZE if _INTEGERS[kind][0] <= least and most <= _INTEGERS[kind][1]), None)


def _is_single(value: float) -> bool:
    return value != value or struct.unpack("<f", struct.pack("<f", value))[0] == value


def fits(kind: str, value: Any) -> bool:
    """Can `value` be written as `kind`?"""
    if kind.startswith("["):
        if isinstance(value, Array) and value.kind == kind:
            return True
        if not isinstance(value, Sequence) or isinstance(value, str | bytes):
            return False
        kinds = _items(kind)
        if len(kinds) > 1:
            return len(kinds) == len(value) and all(map(fits, kinds, value))
        return all(fits(kinds[0], item) for item in value)
    match kind:
        case "str":
            return isinstance(value, str) and _survives(value)
        case "bool":
            return isinstance(value, bool)
        case "f32" | "f64":
            if not isinstance(value, int | float) or isinstance(value, bool):
                return False
            try:
                struct.pack("<" + CODES[kind], value)
            except OverflowError:
                return False
            return True
    low, high = _INTEGERS[kind]
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _survives(text: str) -> bool:
    if text.isascii():
        return True
    try:
        return _text(raw_text(text)) == text
    except UnicodeEncodeError:
        return False


def is_kind(kind: object, depth: int = 0) -> bool:
    """Is this the name of a type?"""
    if not isinstance(kind, str) or kind in IDS:
        return isinstance(kind, str)
    if depth > DEEPEST or len(kind) < 3 or kind[0] != "[" or kind[-1] != "]":
        return False
    kinds = _items(kind)
    return all(is_kind(each, depth + 1) for each in kinds) and (len(kinds) == 1 or all(k[:1] == "[" for k in kinds))


def _items(kind: str) -> list[str]:
    """The types inside of an array's: one for all of its elements, or one for each."""
    found, depth, start = [], 0, 1
    for at in range(1, len(kind) - 1):
        depth += {"[": 1, "]": -1}.get(kind[at], 0)
        if kind[at] == "," and depth == 0:
            found.append(kind[start:at])
            start = at + 1
    return [*found, kind[start:-1]]
