# SPDX-License-Identifier: Apache-2.0
"""Reading what a `LazyBytes` stands for, whole or piece by piece.

The stored forms: "raw"; "utf-8" (BINUNICODE: protocol 2 holds the bytes of numpy arrays as latin-1 characters in
UTF-8); "string-escape" (STRING: a Python 2 str literal without its quotes); "raw-unicode-escape" (UNICODE).
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator

from tael.errors import CorruptFileError
from tael.pickle.stubs import LazyBytes

_ESCAPE = re.compile(rb"\\(x[0-9a-fA-F]{2}|[0-7]{1,3}|.|\Z)", re.DOTALL)
_NAMED = {
    b"n": b"\n", b"t": b"\t", b"r": b"\r", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"v": b"\v",
    b"\\": b"\\", b"'": b"'", b'"': b'"', b"\n": b"",
}  # fmt: skip
_LONGEST_ESCAPE = 4  # \xhh
_REGULAR = re.compile(  # only what codecs.escape_decode takes without a warning; it is a hundred times faster
    rb"""(?:[^\\]|\\(?:x[0-9a-fA-F]{2}|[0-3][0-7]{2}|[0-7]{1,2}(?![0-7])|[ntrabfv\\'"\n]))*+""", re.DOTALL
)


def decode(lazy: LazyBytes, stored: bytes) -> bytes | str:
    """The value of `lazy` from all of its stored bytes."""
    if lazy.encoding == "string-escape":
        stored = unescape(stored)
    elif lazy.encoding != "raw":
        text = decode_text(stored, lazy.encoding)
        return text if lazy.text else encode_latin1(text)
    return stored.decode("latin-1") if lazy.text else stored


def decode_chunks(lazy: LazyBytes, chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The value's bytes (a str as latin-1), from its stored bytes in consecutive `chunks`; memory: one chunk."""
    if lazy.encoding == "raw":
        yield from chunks
    elif lazy.encoding == "string-escape":
        yield from _unescape_chunks(chunks)
    else:
        decoder = codecs.getincrementaldecoder(lazy.encoding)("strict")
        for chunk in chunks:
            yield encode_latin1(_step(decoder, chunk, final=False))
        yield encode_latin1(_step(decoder, b"", final=True))


def decode_text(stored: bytes, encoding: str) -> str:
    """`stored` as text; lone surrogates are let through, as pickle does."""
    try:
        return stored.decode(encoding, "surrogatepass" if encoding == "utf-8" else "strict")
    except UnicodeDecodeError as error:
        raise CorruptFileError(f"a string is not {encoding}: {error.reason}") from None


def encode_latin1(text: str) -> bytes:
    """The bytes that `text` stands for, one a character."""
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        raise CorruptFileError("a string that should hold bytes has characters above 255") from None


def unescape(stored: bytes) -> bytes:
    r"""The bytes of a Python 2 str literal: \n, \xhh, \ooo and so on; an unknown escape keeps its backslash."""
    if b"\\" not in stored:
        return stored
    if _REGULAR.fullmatch(stored):
        return codecs.escape_decode(stored)[0]
    return _ESCAPE.sub(_unescape_one, stored)


def _unescape_one(match: re.Match[bytes]) -> bytes:
    code = match[1]
    if code in _NAMED:
        return _NAMED[code]
    if code in (b"x", b""):
        raise CorruptFileError("a string has an incomplete escape")
    if code[:1] == b"x":
        return bytes([int(code[1:], 16)])
    if code[0] in b"01234567":
        return bytes([int(code, 8) & 0xFF])
    return match[0]


def _unescape_chunks(chunks: Iterable[bytes]) -> Iterator[bytes]:
    held = b""
    for chunk in chunks:
        stored = held + chunk
        cut = _safe_cut(stored)
        held = stored[cut:]
        yield unescape(stored[:cut])
    yield unescape(held)


def _safe_cut(stored: bytes) -> int:
    """Where no escape is split. Only the last backslash can start one that is not complete yet."""
    last = stored.rfind(b"\\", max(0, len(stored) - _LONGEST_ESCAPE + 1))
    if last < 0:
        return len(stored)
    run = last + 1 - len(stored[: last + 1].rstrip(b"\\"))
    return last if run % 2 else len(stored)


def _step(decoder: codecs.IncrementalDecoder, chunk: bytes, final: bool) -> str:
    try:
        return decoder.decode(chunk, final)
    except UnicodeDecodeError as error:
        raise CorruptFileError(f"a string is not text as stored: {error.reason}") from None
