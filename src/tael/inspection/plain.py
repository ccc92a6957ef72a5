# SPDX-License-Identifier: Apache-2.0
"""Metadata as JSON can hold it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

LONG = 64  # items of a list that are all shown
_FIRST = 8  # of a longer one


def plain(value: Any, *, brief: bool = False) -> Any:
    """`value` of JSON's types only: NaN and infinities as strings, bytes in hex, what is foreign by its `str`.

    brief: long lists (vocabularies) become {"items": how many, "first": the first few}.
    """
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case bytes() | bytearray() | memoryview():
            return bytes(value).hex()
        case Mapping():
            return {str(key): plain(inner, brief=brief) for key, inner in value.items()}
        case Sequence() if not isinstance(value, range):  # a range costs nothing, its items may
            if brief and len(value) > LONG:
                return {"items": len(value), "first": [plain(inner, brief=True) for inner in islice(value, _FIRST)]}
            return [plain(inner, brief=brief) for inner in value]
        case _:
            return str(value)
