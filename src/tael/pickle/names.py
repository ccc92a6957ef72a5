# SPDX-License-Identifier: Apache-2.0
"""What a name in a pickle stands for, and what a call of it stands for. Names are looked up, never imported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tael.core.limits import Limits
from tael.errors import CorruptFileError
from tael.pickle.budget import Budget
from tael.pickle.stubs import Call, Global, GlobalUse, Rule, StubDict

LONGEST_GLOBAL = 1024  # characters of a module or a name
_UNCALLABLE = frozenset({
    type(None), bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset, StubDict, slice,
    range, type(...),
})  # fmt: skip


class Names(Budget):
    """The globals of one pickle. `rules` is looked up by the exact "module.name", with a name without dots."""

    def __init__(self, rules: Mapping[str, Rule], limits: Limits, path: object = None) -> None:
        super().__init__(limits, path)
        self.rules = rules
        self.named: dict[tuple[str, str], Any] = {}  # what each global put on the stack
        self.uses: list[GlobalUse] = []
        self.use_of_value: dict[int, GlobalUse] = {}  # by id(), for globals that stand for a value
        self.notes: dict[str, int] = {}

    def note(self, text: str) -> None:
        self.notes[text] = self.notes.get(text, 0) + 1

    def find(self, module: str, name: str, opcode: str, offset: int) -> Any:
        """What "module.name" stands for; the same object each time, and reported once."""
        found = self.named.get((module, name))
        if found is not None:
            return found
        for part in (module, name):
            self.limits.check("the length of a global's name", len(part), LONGEST_GLOBAL, path=self.path)
        self.limits.check("the number of globals", len(self.uses) + 1, self.limits.pickle_globals, path=self.path)
        rule = None if "." in name else self.rules.get(f"{module}.{name}")
        use = GlobalUse(module, name, rule is not None, opcode, offset)
        if rule is not None and rule.value is not None:
            found = rule.value
            self.use_of_value[id(found)] = use
        else:
            found = Global(module, name, rule, use)
        self.uses.append(use)
        self.named[module, name] = found
        return found

    def call(self, func: Any, args: Any) -> Any:
        """What `func(*args)` stands for."""
        if type(args) is not tuple:
            raise CorruptFileError(f"the arguments of a call are a {type(args).__name__}, not a tuple")
        if type(func) is Global:
            func.use.called = True
            if func.build is not None:
                return func.build(args, self)
        elif type(func) in _UNCALLABLE:
            raise CorruptFileError(f"a call of a {type(func).__name__}")
        elif id(func) in self.use_of_value:
            self.use_of_value[id(func)].called = True
        return Call(func, args)

    def make(self, cls: Any, args: Any, kwargs: Any = None) -> Any:
        """What `cls.__new__(cls, *args, **kwargs)` stands for."""
        if type(args) is not tuple or not (kwargs is None or type(kwargs) is dict):
            raise CorruptFileError("the arguments of a class are not a tuple and a dict")
        if type(cls) in _UNCALLABLE:
            raise CorruptFileError(f"an instance of a {type(cls).__name__}")
        if type(cls) is Global:
            cls.use.called = True
            if cls.build is not None and not kwargs and (not args or (cls.rule is not None and cls.rule.new)):
                return cls.build(args, self)
        return Call(cls, args, kwargs or None, new=True)
