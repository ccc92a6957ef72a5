# SPDX-License-Identifier: Apache-2.0
"""Reading pickles without running them.

    loaded = load(Reader(data), persistent=None, limits=DEFAULT, path="weights.pkl")
    for path, leaf in walk(loaded.value): ...

`load(reader, *, persistent, limits, path, rules)` reads one pickle, all protocols, and gives `Loaded`:
    value       inert: plain Python values and the stand-ins below; nothing was imported, called or set
    end_offset  the byte after STOP; `reader.position` stands there too, for the next pickle or the raw bytes after it
    notes       what was odd but harmless (Python 2 strings read as latin-1, ...)
    globals     every "module.name" the pickle mentions: `GlobalUse(module, name, known, opcode, offset, called)`
  To have the globals of a pickle that fails half-way too, pass a list as `seen`: they are added to it.

`Reader(data, base=0)` reads memory; `Reader.over(read_at, size, start=0)` reads a source by `read_at(offset, n)`, and
steps over payloads above 64 KiB, which become `LazyBytes`. `reader.position` may be moved; `reader.value(lazy)` reads
one whole, `decode_chunks(lazy, chunks)` piece by piece. Offsets are absolute.

`persistent(pid)` gives what a persistent id stands for; None makes it `PersistentId(pid)`. For torch,
`storage_ref(pid)` checks ("storage", ...) ids and gives `StorageRef(key, dtype, location, numel, view)`.

Stand-ins (stubs.py, numpy_types.py, torch_types.py):
    Global(module, name)                                       a class or function
    Call(func, args, kwargs, state, listitems, dictitems)      an object of an unknown class, or an unknown function's
    StubDict                                                   a dict: OrderedDict, defaultdict, Counter; with `.state`
    NumpyArray(dtype, shape, strides, data), NumpyDtype, NumpyScalar
    TensorRef(storage, offset, size, stride, requires_grad, dtype, kind, parameter, extra, state, ...)
    TorchDtype, TorchConstant, TorchDevice, StorageType, EmbeddedStorage; torch.Size is a plain tuple
    LazyBytes(offset, nbytes, encoding, text), PersistentId(value)
  Equality and hash are flat everywhere; `repr` never descends.

`walk(value)` yields (path, leaf) without recursion; of a pickled nn.Module the entries of its state dict.
`looks_like_pickle(head)` decides by content.

Errors: `CorruptFileError` (broken or truncated, with the offset), `LimitExceededError` (asks for more than
`Limits.pickle_*` allow), `UnsupportedFormatError` (protocol above 5, out-of-band buffers).
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator, Mapping

from tael.core.limits import DEFAULT, Limits
from tael.pickle.builders import TABLE
from tael.pickle.detect import looks_like_pickle
from tael.pickle.handlers import HANDLERS
from tael.pickle.lazy import decode, decode_chunks
from tael.pickle.machine import Machine, Persistent
from tael.pickle.numpy_types import NumpyArray, NumpyDtype, NumpyScalar
from tael.pickle.reader import Reader
from tael.pickle.stubs import Call, Global, GlobalUse, LazyBytes, Loaded, PersistentId, Rule, StubDict
from tael.pickle.torch_types import (
    EmbeddedStorage,
    StorageRef,
    StorageType,
    TensorRef,
    TorchConstant,
    TorchDevice,
    TorchDtype,
    storage_ref,
)
from tael.pickle.walk import Cycle, check_depth, is_module, module_items, stub_items, walk

__all__ = [
    "TABLE",
    "Call",
    "Cycle",
    "EmbeddedStorage",
    "Global",
    "GlobalUse",
    "LazyBytes",
    "Loaded",
    "NumpyArray",
    "NumpyDtype",
    "NumpyScalar",
    "PersistentId",
    "Reader",
    "Rule",
    "StorageRef",
    "StorageType",
    "StubDict",
    "TensorRef",
    "TorchConstant",
    "TorchDevice",
    "TorchDtype",
    "decode",
    "decode_chunks",
    "is_module",
    "load",
    "looks_like_pickle",
    "module_items",
    "storage_ref",
    "stub_items",
    "walk",
]


def load(
    reader: Reader,
    *,
    persistent: Persistent | None = None,
    limits: Limits = DEFAULT,
    path: object = None,
    rules: Mapping[str, Rule] = TABLE,
    seen: list[GlobalUse] | None = None,
) -> Loaded:
    """The pickle at `reader.position`, as inert values. See the module docstring for what they are."""
    machine = Machine(reader, handlers=HANDLERS, rules=rules, persistent=persistent, limits=limits, path=path)
    try:
        with _collector_paused():
            value = machine.run()
            check_depth(value, limits, path)
    finally:
        if seen is not None:
            seen.extend(machine.uses)
    notes = [text if count == 1 else f"{text} ({count:,} times)" for text, count in machine.notes.items()]
    return Loaded(value, reader.position, notes, machine.uses)


@contextlib.contextmanager
def _collector_paused() -> Iterator[None]:
    """The cycle collector would walk the growing result again and again, for a third of the time, and free nothing.

    Threads that overlap here are harmless: the last one that had found it running starts it again.
    """
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()
