# SPDX-License-Identifier: Apache-2.0
"""A child that loads the whole corpus with tael.pickle, watched: one JSON line an item on stdout, a summary last.

Run as `python prison.py`, with a memory limit over the whole process. Any audit event while an item is loaded (an
import, an open, a compile, a call of os.system, a socket, ...) is reported with the item.

`python prison.py control NAME...` instead hands the named items to the real unpickler. That executes them.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from typing import Any

MEMORY = 1 << 30  # bytes of address space, interpreter and corpus included


def main() -> None:
    if sys.argv[1:2] == ["control"]:
        control(sys.argv[2:])
        return
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    from malicious import CORPUS

    from tael.core.limits import DEFAULT, Limits
    from tael.errors import TaelError
    from tael.pickle import Reader, load, walk

    tight = Limits(pickle_memory=DEFAULT.pickle_memory // 10, pickle_opcodes=DEFAULT.pickle_opcodes // 10)
    for encoding in ("utf-8", "latin-1", "raw-unicode-escape"):  # codecs are imported at their first use
        b"x".decode(encoding).encode(encoding)

    events: list[str] = []
    watching = False

    def hook(event: str, args: Any) -> None:
        if watching and event != "builtins.id":
            events.append(event)

    sys.addaudithook(hook)
    for item in CORPUS:
        events.clear()
        value: object = None
        outcome = "value"
        start = time.process_time()
        watching = True
        try:
            value = load(Reader(item.data), limits=tight if item.tight else DEFAULT).value
        except TaelError as error:
            outcome = type(error).__name__
        except BaseException as error:
            outcome = f"{type(error).__name__}: {error}"
        watching = False
        seconds = time.process_time() - start
        strangers = sorted(foreign(value))
        try:
            leaves = sum(1 for _ in walk(value, limits=Limits(pickle_objects=10_000)))
        except TaelError:
            leaves = -1
        report = {"name": item.name, "outcome": outcome, "seconds": seconds, "events": events, "foreign": strangers}
        sys.stdout.write(json.dumps({**report, "leaves": leaves}) + "\n")
    sys.stdout.write(json.dumps({"peak_kib": peak_kib(), "numpy": "numpy" in sys.modules}) + "\n")


def peak_kib() -> int:
    """Of this process alone: ru_maxrss, all there is elsewhere, starts from the parent's."""
    try:
        with open("/proc/self/status", encoding="ascii") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
    except FileNotFoundError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def foreign(value: object) -> set[str]:
    """Types in `value`, to any depth, that are neither plain data nor stand-ins of tael.pickle."""
    plain = {type(None), bool, int, float, complex, str, bytes, bytearray, slice, range, type(...)}
    found: set[str] = set()
    met = {id(value)}
    pending = [value]
    while pending:
        item = pending.pop()
        kind = type(item)
        inside: list[object] = []
        if kind in (list, tuple, set, frozenset):
            inside = list(item)  # type: ignore[call-overload]
        elif isinstance(item, dict):
            inside = [*item, *item.values()]
        if kind.__module__.startswith("tael.pickle."):
            inside += [getattr(item, slot) for slot in kind.__slots__ if hasattr(item, slot)]  # type: ignore[attr-defined]
        elif kind not in (*plain, list, tuple, set, frozenset, dict) and not is_builder(item):
            found.add(f"{kind.__module__}.{kind.__name__}")
        for part in inside:
            if id(part) not in met:
                met.add(id(part))
                pending.append(part)
    return found


def is_builder(value: object) -> bool:
    """One of ours, as it hangs on a Global."""
    return type(value) is type(is_builder) and str(value.__module__).startswith("tael.pickle.")


def control(names: list[str]) -> None:
    import contextlib
    import pickle

    from malicious import CORPUS

    for item in CORPUS:
        if item.name in names:
            with contextlib.suppress(Exception):
                pickle.loads(item.data)


if __name__ == "__main__":
    main()
