# SPDX-License-Identifier: Apache-2.0
"""What stands in a result for what a pickle wanted: all of it inert, nothing of it callable.

Besides these, a result holds only None, bool, int, float, complex, str, bytes, bytearray, list, tuple, dict,
set, frozenset, slice, range and Ellipsis, and what numpy_types.py and torch_types.py define.

Every class here has a flat `repr`, and compares by identity or by plain strings and numbers: a hostile result may
be nested a million deep, so nothing may recurse into it unasked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tael.errors import clip

if TYPE_CHECKING:
    from tael.pickle.budget import Budget

# Builds the inert result of calling a known global with these positional arguments. It may raise
# CorruptFileError without path or offset: the machine adds them.
Build = Callable[[tuple[Any, ...], "Budget"], Any]


@dataclass(frozen=True, slots=True)
class Rule:
    """What is known about one "module.name": how a call of it is built, and what it is when not called."""

    build: Build | None = None  # None: a call becomes a `Call` stub
    value: object = None  # None: the name itself becomes a `Global`
    new: bool = False  # the class may also be made by NEWOBJ with arguments


@dataclass(slots=True, eq=False)
class GlobalUse:
    """One name that a pickle imports. `known`: a rule exists for it. `called`: the pickle calls it."""

    module: str
    name: str
    known: bool
    opcode: str  # GLOBAL, STACK_GLOBAL, INST or EXT
    offset: int  # of its first mention
    called: bool = False

    @property
    def qualified(self) -> str:
        return f"{self.module}.{self.name}"


class Global:
    """A class or function named by the pickle, never imported. `module` and `name` as the file spells them.

    Equal when both are equal. A code of the extension registry is `Global("copyreg.extension", "17")`.
    """

    __slots__ = ("build", "module", "name", "rule", "use")

    def __init__(self, module: str, name: str, rule: Rule | None = None, use: GlobalUse | None = None) -> None:
        self.module = module
        self.name = name
        self.rule = rule
        self.build = rule.build if rule is not None else None
        self.use = use or GlobalUse(module, name, rule is not None, "GLOBAL", 0)

    @property
    def qualified(self) -> str:
        return f"{self.module}.{self.name}"

    def __eq__(self, other: object) -> bool:
        return type(other) is Global and self.module == other.module and self.name == other.name

    def __hash__(self) -> int:
        return hash((self.module, self.name))

    def __repr__(self) -> str:
        return f"<{clip(self.qualified)}>"


class Call:
    """The object that calling `func` (REDUCE, NEWOBJ, NEWOBJ_EX, INST, OBJ) would have made; it was not called.

    `new` tells `func.__new__(func, ...)` from `func(...)`. `state` is what BUILD would have set (`has_state`
    tells a None from its absence), `listitems` what APPENDS and ADDITEMS, `dictitems` what SETITEMS would have added.
    """

    __slots__ = ("args", "dictitems", "func", "has_state", "kwargs", "listitems", "new", "state")

    def __init__(
        self,
        func: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[Any, Any] | None = None,
        state: object = None,
        new: bool = False,
    ) -> None:
        self.func = func
        self.args = args
        self.kwargs = kwargs
        self.state = state
        self.has_state = state is not None
        self.new = new
        self.listitems: list[Any] | None = None
        self.dictitems: list[tuple[Any, Any]] | None = None

    @property
    def qualified(self) -> str:
        """ "module.name" of what was called; "?" when that is itself the result of a call."""
        return self.func.qualified if isinstance(self.func, Global) else "?"

    def attribute(self, name: str) -> Any:
        """The instance attribute `name` in `state`, or None."""
        return next((part[name] for part in reversed(self._parts()) if name in part), None)

    def attributes(self) -> Iterator[tuple[Any, Any]]:
        """The instance attributes in `state`: a dict, or a (dict, slots) pair of which both count."""
        for part in self._parts():
            yield from part.items()

    def _parts(self) -> list[dict[Any, Any]]:
        state = self.state
        if type(state) is tuple and len(state) == 2 and all(part is None or isinstance(part, dict) for part in state):
            return [part for part in state if part]
        return [state] if isinstance(state, dict) else []

    def __repr__(self) -> str:
        return f"<object made by {clip(self.qualified)}>"


class StubDict(dict[Any, Any]):
    """A dict with a past: `origin` is the class it had (OrderedDict, defaultdict, Counter), `state` its attributes."""

    __slots__ = ("args", "origin", "state")

    def __init__(self, origin: str, args: tuple[Any, ...] = ()) -> None:
        self.origin = origin
        self.args = args  # a defaultdict's factory
        self.state: object = None


@dataclass(frozen=True, slots=True)
class LazyBytes:
    """A long payload left in the source: `nbytes` bytes at absolute `offset`, read only when asked (see lazy.py).

    `encoding` says how the value is stored: "raw" (the bytes themselves), "utf-8", "string-escape" (Python 2 text
    form) or "raw-unicode-escape". `text`: the value is a str (raw text is latin-1); otherwise it is bytes, and
    characters stand for bytes (latin-1). `length` is the value's length in bytes where that is known without reading.
    """

    offset: int
    nbytes: int
    encoding: str = "raw"
    text: bool = False

    @property
    def length(self) -> int | None:
        return self.nbytes if self.encoding == "raw" else None


@dataclass(frozen=True, slots=True, eq=False)
class PersistentId:
    """A reference to something outside of the pickle, where nobody said what it means."""

    value: object

    def __repr__(self) -> str:
        return "<persistent id>"


@dataclass(slots=True, eq=False)
class Loaded:
    """One pickle, read. `end_offset` is the byte after its STOP."""

    value: Any
    end_offset: int
    notes: list[str] = field(default_factory=list)
    globals: list[GlobalUse] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"<Loaded {type(self.value).__name__}, {len(self.globals)} globals>"
