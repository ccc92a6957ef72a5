# SPDX-License-Identifier: Apache-2.0
"""The opcode loop. It never imports, never calls what a pickle names, never sets an attribute of anything real.

The opcodes that make up nearly all of a checkpoint are handled in the loop, most frequent first (100 000
tensors are four million opcodes); the others, and the unusual cases of these, by the table in handlers.py.

Stack and marks are as in CPython's pickle.py: MARK puts the stack aside and starts an empty one, so that nothing
can reach below a mark. The memo is a list as long as indexes come in order (all picklers of Python 3), else a dict.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any

from tael.core.limits import Limits
from tael.errors import CorruptFileError, LimitExceededError, TaelError
from tael.pickle.budget import KEY_CHARS
from tael.pickle.names import Names
from tael.pickle.reader import ROOM, Reader
from tael.pickle.stubs import Call, Global, PersistentId, Rule

Persistent = Callable[[object], object]
Handler = Callable[["Machine"], None]

_CHUNK = 8192  # opcodes between two looks at the budget

# What broken input makes the loop and the rules raise; each becomes a CorruptFileError.
BROKEN = (IndexError, KeyError, TypeError, ValueError, AttributeError, OverflowError, struct.error)

_U2 = struct.Struct("<H").unpack_from
_U4 = struct.Struct("<I").unpack_from
_I4 = struct.Struct("<i").unpack_from
_F8 = struct.Struct(">d").unpack_from


class Machine(Names):
    """Reads one pickle from `reader`."""

    def __init__(
        self,
        reader: Reader,
        *,
        handlers: Mapping[int, Handler],
        rules: Mapping[str, Rule],
        persistent: Persistent | None,
        limits: Limits,
        path: object = None,
    ) -> None:
        super().__init__(rules, limits, path)
        self.reader = reader
        self.handlers = handlers
        self.persistent: Persistent = persistent or PersistentId
        self.pos = 0  # in reader.buffer
        self.stack: list[Any] = []
        self.marked: list[list[Any]] = []  # the stacks put aside by MARK
        self.memo: list[Any] = []
        self.sparse: dict[int, Any] = {}
        self.start = self.skipped = 0

    def run(self) -> Any:
        """The value below STOP; leaves `reader.position` after it."""
        self.start = self.reader.position
        self.skipped = self.reader.skipped
        try:
            self.reader.fill(self.start, 1)
            self.pos = self.start - self.reader.base
            return self._loop()
        except TaelError as error:
            error.offset = self.offset if error.offset is None else error.offset
            error.path = str(self.path) if error.path is None and self.path is not None else error.path
            raised = error
        except BROKEN as error:
            raised = self._broken(error)
        except (MemoryError, RecursionError):
            raised = LimitExceededError("the pickle is too large to read", path=self.path, offset=self.offset)
        finally:
            self.stack, self.marked, self.memo, self.sparse = [], [], [], {}
        # Without the traceback: its frames would keep alive what was built so far, for as long as the error is kept.
        raise raised.with_traceback(None)

    @property
    def offset(self) -> int:
        return self.reader.base + min(self.pos, len(self.reader.buffer))

    def _loop(self) -> Any:
        reader, handlers, memo, sparse, marked = self.reader, self.handlers, self.memo, self.sparse, self.marked
        persistent, longest = self.persistent, reader.lazy_above
        stack = self.stack
        buf, pos, end, safe = reader.buffer, self.pos, len(reader.buffer), self._safe()
        chunk = range(_CHUNK)
        op = -1
        try:
            while True:
                for _ in chunk:
                    if pos > safe:
                        pos = self._refill(pos)
                        buf, end, safe = reader.buffer, len(reader.buffer), self._safe()
                    op = buf[pos]
                    pos += 1
                    if op == 0x72:  # LONG_BINPUT
                        if _U4(buf, pos)[0] == len(memo) and not sparse:
                            memo.append(stack[-1])
                            pos += 4
                            continue
                    elif op == 0x94:  # MEMOIZE
                        if not sparse:
                            memo.append(stack[-1])
                            continue
                    elif op == 0x4B:  # BININT1
                        stack.append(buf[pos])
                        pos += 1
                        continue
                    elif op == 0x68:  # BINGET
                        index = buf[pos]
                        if index < len(memo):
                            stack.append(memo[index])
                            pos += 1
                            continue
                    elif op == 0x28:  # MARK
                        marked.append(stack)
                        stack = []
                        continue
                    elif op == 0x74:  # TUPLE
                        items = tuple(stack)
                        stack = marked.pop()
                        stack.append(items)
                        continue
                    elif op == 0x86:  # TUPLE2
                        last_item = stack.pop()
                        stack[-1] = (stack[-1], last_item)
                        continue
                    elif op == 0x52:  # REDUCE
                        func = stack[-2]
                        if type(func) is Global and type(stack[-1]) is tuple:
                            args = stack.pop()
                            func.use.called = True
                            build = func.build
                            stack[-1] = Call(func, args) if build is None else build(args, self)
                            continue
                    elif op == 0x58:  # BINUNICODE
                        first = pos + 4
                        last = first + _U4(buf, pos)[0]
                        if last <= end and last - first <= longest:
                            try:
                                stack.append(buf[first:last].decode())
                                pos = last
                                continue
                            except UnicodeDecodeError:
                                pass  # lone surrogates: the handler's
                    elif op == 0x8C:  # SHORT_BINUNICODE
                        last = pos + 1 + buf[pos]
                        if last <= end:
                            try:
                                stack.append(buf[pos + 1 : last].decode())
                                pos = last
                                continue
                            except UnicodeDecodeError:
                                pass
                    elif op == 0x51:  # BINPERSID
                        stack[-1] = persistent(stack[-1])
                        continue
                    elif op == 0x29:  # EMPTY_TUPLE
                        stack.append(())
                        continue
                    elif op == 0x89:  # NEWFALSE
                        stack.append(False)
                        continue
                    elif op == 0x85:  # TUPLE1
                        stack[-1] = (stack[-1],)
                        continue
                    elif op == 0x4A:  # BININT
                        stack.append(_I4(buf, pos)[0])
                        pos += 4
                        continue
                    elif op == 0x4D:  # BININT2
                        stack.append(_U2(buf, pos)[0])
                        pos += 2
                        continue
                    elif op == 0x6A:  # LONG_BINGET
                        index = _U4(buf, pos)[0]
                        if index < len(memo):
                            stack.append(memo[index])
                            pos += 4
                            continue
                    elif op == 0x71:  # BINPUT
                        if buf[pos] == len(memo) and not sparse:
                            memo.append(stack[-1])
                            pos += 1
                            continue
                    elif op == 0x87:  # TUPLE3
                        third = stack.pop()
                        second = stack.pop()
                        stack[-1] = (stack[-1], second, third)
                        continue
                    elif op == 0x47:  # BINFLOAT
                        stack.append(_F8(buf, pos)[0])
                        pos += 8
                        continue
                    elif op == 0x4E:  # NONE
                        stack.append(None)
                        continue
                    elif op == 0x7D:  # EMPTY_DICT
                        stack.append({})
                        continue
                    elif op == 0x5D:  # EMPTY_LIST
                        stack.append([])
                        continue
                    elif op == 0x73 and type(stack[-3]) is dict:  # SETITEM
                        value = stack.pop()
                        key = stack.pop()
                        if type(key) is not str or len(key) > KEY_CHARS:
                            self.key(key)
                        stack[-1][key] = value
                        continue
                    elif op == 0x2E:  # STOP
                        break
                    handler = handlers.get(op)
                    if handler is None:
                        raise CorruptFileError(f"byte {op:#04x} is no pickle opcode")
                    self.stack, self.pos = stack, pos
                    handler(self)
                    if reader.buffer is not buf:
                        buf, end, safe = reader.buffer, len(reader.buffer), self._safe()
                    stack, pos = self.stack, self.pos
                else:
                    self._tick(pos)
                    continue
                break
        finally:
            self.pos = pos
        value = stack.pop()
        if stack or marked:
            self.note("values were left on the stack at the end of the pickle")
        self._tick(pos)
        reader.position = reader.base + pos
        return value

    def _safe(self) -> int:
        """The last position at which an opcode may start without asking for more of the source."""
        reader = self.reader
        ended = reader.base + len(reader.buffer) == reader.size
        return len(reader.buffer) - (1 if ended else ROOM)

    def _refill(self, pos: int) -> int:
        reader = self.reader
        at = reader.base + pos
        if at >= reader.size:
            raise CorruptFileError(
                "the pickle ends before its STOP opcode", offset=at, hint="the file is truncated; fetch it again"
            )
        reader.fill(at, min(ROOM, reader.size - at))
        return at - reader.base

    def _tick(self, pos: int) -> None:
        self.opcodes += _CHUNK
        self.work += _CHUNK
        reader = self.reader
        self.stored = len(self.memo)
        self.payload = reader.base + pos - self.start - (reader.skipped - self.skipped)
        self.check()

    def _broken(self, error: Exception) -> CorruptFileError:
        if self.pos >= len(self.reader.buffer) or isinstance(error, struct.error):
            return CorruptFileError("the pickle ends in the middle of an opcode", path=self.path, offset=self.offset)
        if isinstance(error, IndexError):
            return CorruptFileError("an opcode takes a value that is not there", path=self.path, offset=self.offset)
        return CorruptFileError(
            f"an opcode does not fit what it is applied to ({type(error).__name__})", path=self.path, offset=self.offset
        )
