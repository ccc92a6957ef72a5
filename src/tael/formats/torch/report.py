# SPDX-License-Identifier: Apache-2.0
"""What a reader of torch files has to say about one: the problems, in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tael.core.problem import Problem
from tael.errors import clip
from tael.formats.torch.tensors import QUANTIZATION, TensorMaker
from tael.pickle import GlobalUse, TensorRef

_LISTED = 5  # names in one message
_UNGATHERED = 2  # empty tensors from which on a file of nothing else is no file of weights

# Calling these does something, whatever the arguments. A first warning: `tael scan` looks closer.
_DANGEROUS_MODULES = frozenset({
    "IPython", "_pickle", "asyncio", "bdb", "cPickle", "cProfile", "cloudpickle", "code", "codeop", "commands",
    "ctypes", "dill", "distutils", "ftplib", "http", "importlib", "joblib", "marshal", "multiprocessing", "nt",
    "nturl2path", "os", "pdb", "pickle", "pip", "platform", "posix", "profile", "pty", "pydoc", "requests",
    "runpy", "setuptools", "shutil", "signal", "smtplib", "socket", "subprocess", "sys", "tempfile", "threading",
    "timeit", "trace", "urllib", "venv", "webbrowser",
})  # fmt: skip
_DANGEROUS_BUILTINS = (
    "__import__", "apply", "breakpoint", "compile", "delattr", "eval", "exec", "execfile", "globals",
    "input", "open", "setattr",
)  # fmt: skip
_DANGEROUS_NAMES = frozenset({
    *(f"{module}.{name}" for module in ("builtins", "__builtin__") for name in _DANGEROUS_BUILTINS),
    "torch.load", "torch.jit.load", "torch.hub.load", "torch.package.PackageImporter", "numpy.load", "io.open",
    "io.FileIO", "_io.FileIO", "types.FunctionType", "types.CodeType", "operator.methodcaller", "operator.attrgetter",
    "functools.reduce", "copyreg.extension", "builtins.getattr", "__builtin__.getattr", "torch.serialization.load",
    "torch.fx.graph_module.reduce_graph_module", "torch.fx.graph_module.reduce_package_graph_module",
})  # fmt: skip


_PYTHON_2 = {"__builtin__": "builtins", "commands": "subprocess", "copy_reg": "copyreg", "cPickle": "pickle"}


def about_globals(unknown: Sequence[GlobalUse], path: str) -> list[Problem]:
    """Classes and functions that the file names and nothing here knows; first those that only attacks name."""
    problems = []
    bad = [use for use in unknown if is_dangerous(use)]
    if bad:
        verb = "run" if any(use.called for use in bad) else "import"
        what = f"unpickling this would {verb} {_listed(_today(use) for use in bad)}; tael did not"
        problems.append(Problem("warning", what, path))
    if unknown:
        what = "unknown class or function" if len(unknown) == 1 else "unknown classes or functions"
        names = _listed(map(_today, unknown))
        problems.append(Problem("note", f"{len(unknown):,} {what}, listed, not run: {names}", path))
    return problems


def _today(use: GlobalUse) -> str:
    """The name as Python 3 has it: up to protocol 2, pickle writes those of Python 2."""
    return f"{_PYTHON_2.get(use.module, use.module)}.{use.name}"


def is_dangerous(use: GlobalUse) -> bool:
    return use.module.split(".")[0] in _DANGEROUS_MODULES or use.qualified in _DANGEROUS_NAMES


def about_rest(mixed: Sequence[str], maker: TensorMaker, path: str) -> list[Problem]:
    """`mixed`: keys of values that stood in one dict with tensors."""
    notes = []
    if mixed:
        notes.append(f"{_count(mixed, 'value')} between the tensors, kept as metadata or object: {_listed(mixed)}")
    for name, count in maker.subclasses.items():
        notes.append(f"{count:,} x the tensor subclass {clip(name)}, read as plain tensors")
    if maker.quantization:
        quantized = _count(maker.quantization, "quantized tensor")
        notes.append(f"{quantized}: the stored integers are listed, the scales are in the metadata: {QUANTIZATION}")
    return [Problem("note", note, path) for note in notes]


def about_tensors(found: Sequence[tuple[str, Any]], path: str) -> list[Problem]:
    """Placeholders where weights should be: ZeRO stage 3 leaves `torch.empty(0)` in the model of every rank."""
    if not found:
        return [Problem("warning", "there is no tensor in this file", path)]
    refs = [(name, value) for name, value in found if isinstance(value, TensorRef)]
    weights = [(name, value) for name, value in refs if name.endswith(("weight", "bias"))] or refs
    empty = [name for name, value in weights if value.size == (0,)]
    if len(empty) >= _UNGATHERED and len(empty) == len(weights):
        what = f"the weights were not gathered: all {len(empty):,} are placeholders of 0 elements ({_listed(empty)})"
        way_out = "save after gathering, or convert the sharded checkpoint beside this file"
        return [Problem("fatal", f"{what}; {way_out}", path)]
    if 2 * len(empty) > len(weights):
        what = f"{len(empty):,} of {len(weights):,} weights have 0 elements: {_listed(empty)}"
        return [Problem("warning", what, path)]
    return []


def _count(things: Sequence[Any] | dict[Any, Any], what: str) -> str:
    return f"{len(things):,} {what}" + ("" if len(things) == 1 else "s")


def _listed(names: Iterable[str]) -> str:
    unique = list(dict.fromkeys(names))
    return ", ".join(map(clip, unique[:_LISTED])) + (", ..." if len(unique) > _LISTED else "")
