# SPDX-License-Identifier: Apache-2.0
"""What one pickle may spend: work, memory, processor time.

Work: one unit an opcode. Builders and hashing, whose cost does not follow from the number of opcodes, charge theirs.
Memory is bounded from above instead of measured: no opcode makes more than `_OPCODE_BYTES` besides its payload (an
empty dict, a tuple's share; a memo entry less), a payload byte becomes at most four (a str with one emoji), and what
copies a value that exists already says so by `keep`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from tael.core.limits import Limits
from tael.errors import CorruptFileError, LimitExceededError

_OPCODE_BYTES = 72
_MEMO_BYTES = 18
_TEXT_BYTES = 4
ENTRY_BYTES = 120  # of a dict or a set, at the worst moment of its growth
SET_BYTES = 216  # of an empty set
_KEYS_PER_LOOK = 256  # one crafted lookup takes up to ~10 ms: look at the clock often enough

KEY_ITEMS = 1024  # in a tuple or frozenset that is a key: also bounds how deep the interpreter's own hash() recurses
KEY_CHARS = 1024  # strings up to here are keys without further thought
KEY_BITS = 64

_WIDE = 1 << KEY_BITS
_FLAT = frozenset({bool, float, type(None)})
_UNHASHABLE = frozenset({list, dict, set, bytearray, slice})


class Budget:
    """Counters against `limits`; the machine is one, and hands itself to the rules."""

    def __init__(self, limits: Limits, path: object = None) -> None:
        self.limits = limits
        self.path = path
        self.work = 0
        self.kept = 0
        self.opcodes = 0
        self.payload = 0  # bytes of the pickle that were read, not skipped
        self.stored = 0  # opcodes that only stored in the memo's list
        self._keys = 0
        self._deadline = time.thread_time() + limits.pickle_seconds

    def charge(self, units: int) -> None:
        """Spend `units` of work beyond the opcode itself."""
        self.work += units
        if self.work > self.limits.pickle_opcodes:
            self.check()

    def keep(self, nbytes: int) -> None:
        """Announce a copy of `nbytes` before it is made."""
        self.kept += nbytes
        self.work += nbytes >> 6
        if self.kept > self.limits.pickle_memory:
            self.check()

    def check(self) -> None:
        """Raise `LimitExceededError` when something is spent."""
        limits = self.limits
        limits.check("the work to read this pickle", self.work, limits.pickle_opcodes, path=self.path)
        memory = (self.opcodes - self.stored) * _OPCODE_BYTES + self.stored * _MEMO_BYTES
        memory += self.payload * _TEXT_BYTES + self.kept
        limits.check("the memory to read this pickle", memory, limits.pickle_memory, path=self.path)
        if time.thread_time() > self._deadline:
            raise LimitExceededError(f"reading this pickle takes more than {limits.pickle_seconds:g} s", path=self.path)

    def key(self, key: object) -> None:
        """Raise unless `key` may be hashed: flat, or a small tuple or frozenset of such.

        hash() of a nested tuple recurses in C and is exponential where parts are shared; a long string is compared
        in full at every lookup; big integers collide at will.
        """
        self._keys += 1
        if self._keys % _KEYS_PER_LOOK == 0:
            self.check()
        kind = type(key)
        if kind in _FLAT or (kind is int and -_WIDE < key < _WIDE):  # type: ignore[operator]
            return
        pending: list[Iterable[object]] = [(key,)]
        items = 0
        while pending:
            for item in pending.pop():
                items += 1
                kind = type(item)
                if kind is tuple or kind is frozenset:
                    pending.append(item)  # type: ignore[arg-type]
                elif kind is str or kind is bytes:
                    size = len(item)  # type: ignore[arg-type]
                    self.limits.check("the length of a dict key", size, self.limits.name_bytes, path=self.path)
                    items += size >> 8
                elif kind is int and not -_WIDE < item < _WIDE:  # type: ignore[operator]
                    raise LimitExceededError(f"a dict key is an integer of more than {KEY_BITS} bits", path=self.path)
                elif kind in _UNHASHABLE or isinstance(item, dict):
                    raise CorruptFileError(f"a {kind.__name__} cannot be a dict key or a set member")
                if items > KEY_ITEMS:
                    raise LimitExceededError(f"a dict key has more than {KEY_ITEMS:,} parts", path=self.path)
        self.charge(items)
