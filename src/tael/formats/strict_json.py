# SPDX-License-Identifier: Apache-2.0
"""JSON out of a file from a stranger: what Python's parser lets pass, or dies of, is a `CorruptFileError` here.

Refused: invalid UTF-8, lone surrogates, NaN and Infinity, nesting bombs, numbers of thousands of digits.
An object that names a key twice comes back as `Repeated`, so that the caller can say where it stood.
"""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from tael.errors import CorruptFileError

_SURROGATE = re.compile(r"\\u[dD][89abAB]")


class Repeated(dict[str, Any]):
    """An object in which `key` stood more than once. JSON does not say which one counts."""

    key: str


def parse(raw: bytes, what: str, path: object, offset: int = 0, *, constants: bool = False) -> Any:
    """The value of `raw`, which begins at byte `offset` of the file `path`; `what` names it in messages.

    constants: take NaN and Infinity, which Python programs write though they are no JSON.
    """
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise CorruptFileError(f"{what} is not UTF-8", path=path, offset=offset + error.start) from None
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_constant=None if constants else _constant)
        if _SURROGATE.search(text):
            # Pairs have become one character by now; a lone half is no text and could never be written again.
            json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        at = offset + len(text[: error.pos].encode())
        raise CorruptFileError(f"{what} is not JSON: {error.msg}", path=path, offset=at) from None
    except RecursionError:
        raise CorruptFileError(f"{what} is nested far too deeply", path=path, offset=offset) from None
    except UnicodeEncodeError:
        raise CorruptFileError(f"{what} holds half of a surrogate pair", path=path, offset=offset) from None
    except ValueError as error:
        cause = str(error) if isinstance(error, _NotJson) else "a number with thousands of digits"
        raise CorruptFileError(f"{what} is not JSON: {cause}", path=path, offset=offset) from None
    return value


def is_deep(value: Any, limit: int = 64) -> bool:
    """Whether `value` is nested more than `limit` deep: what walks it by recursion would not survive that."""
    layer = [value]
    for _ in range(limit):
        layer = [
            inner
            for outer in layer
            if isinstance(outer, (dict, list))
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not layer:
            return False
    return True


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    repeated = Repeated(found)
    seen: set[str] = set()
    repeated.key = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
    return repeated


class _NotJson(ValueError): ...


def _constant(word: str) -> NoReturn:
    raise _NotJson(f"{word} is no number")
