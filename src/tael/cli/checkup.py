# SPDX-License-Identifier: Apache-2.0
"""What `tael doctor` looks at. Nothing optional is imported: only its metadata is read."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass

import tael
from tael.cli.text import plural, size
from tael.errors import TaelError

_CHECK_TEXT = b"123456789"  # whose checksums every catalogue of CRCs gives
_CRC32, _CRC32C = 0xCBF43926, 0xE3069283


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. `ok` is None for plain facts; False is something broken, and `hint` the way out."""

    topic: str
    name: str
    value: str
    ok: bool | None = None
    hint: str | None = None


def examine() -> list[Finding]:
    """Everything, in the order in which it is printed."""
    return [*_installation(), *_native_core(), *_machine(), *_packages(), *_extras()]


def _installation() -> list[Finding]:
    python = f"{platform.python_version()} ({platform.python_implementation()})"
    return [
        Finding("tael", "version", tael.__version__),
        Finding("tael", "python", python),
        Finding("tael", "platform", f"{platform.system()} {platform.release()} {platform.machine()}"),
    ]


def _native_core() -> list[Finding]:
    topic = "native core"
    try:
        from tael import kernels
    except Exception as error:  # whatever it is that keeps it from loading is what we are asked for
        hint = "install tael again with a C++20 compiler at hand, or from a wheel for this platform"
        if isinstance(error, TaelError):
            return [Finding(topic, "loaded", error.cause, False, error.hint or hint)]
        return [Finding(topic, "loaded", f"{type(error).__name__}: {error}", False, hint)]
    return [
        Finding(topic, "loaded", f"version {kernels.VERSION}", True),
        Finding(topic, "instructions", f"{kernels.SIMD}, the best of {', '.join(kernels.levels())}"),
        _self_test("CRC-32", lambda: kernels.crc32(_CHECK_TEXT) == _CRC32),
        _self_test("CRC-32C", lambda: kernels.crc32c(_CHECK_TEXT) == _CRC32C),
        _self_test("bf16 cast", _cast_rounds_to_even),
    ]


def _self_test(name: str, passes: Callable[[], bool]) -> Finding:
    hint = "the native core is miscompiled for this processor: do not trust its output; try TAEL_SIMD=baseline"
    try:
        ok = passes()
    except Exception as error:
        return Finding("native core", name, f"{type(error).__name__}: {error}", False, hint)
    return Finding("native core", name, "right" if ok else "wrong", ok, None if ok else hint)


def _cast_rounds_to_even() -> bool:
    """Two ties: 1 + 2**-8 goes down to 1, 1 + 3 * 2**-8 goes up to 1 + 2**-6."""
    import numpy as np

    from tael.core import ops
    from tael.core.dtypes import DTYPES
    from tael.core.node import Contiguous, Span
    from tael.core.source import BytesSource
    from tael.core.tensor import Tensor, TensorInfo

    values = np.array([1 + 2**-8, 1 + 3 * 2**-8], np.float32)
    node = ops.cast(Contiguous(DTYPES["F32"], (2,), Span(BytesSource(values.tobytes()), 0, 8)), DTYPES["BF16"])
    tensor = Tensor(TensorInfo("x", DTYPES["BF16"], (2,)), node)
    return b"".join(bytes(chunk) for chunk in tensor.chunks()) == b"\x80\x3f\x82\x3f"


def _machine() -> list[Finding]:
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    found = [Finding("machine", "processors", f"{available} ({plural(min(4, available), 'thread')} by default)")]
    memory = _free_memory()
    if memory is not None:
        found.append(Finding("machine", "free memory", size(memory)))
    return [*found, Finding("machine", "free disk", f"{size(shutil.disk_usage('.').free)} in this folder")]


def _free_memory() -> int | None:
    """Bytes that can be had without swapping; None where the system does not say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            found = re.search(r"^MemAvailable:\s+(\d+) kB", file.read(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None


def _packages() -> list[Finding]:
    return [_package("packages", one.name, required=True) for one in _requirements() if not one.extra]


def _extras() -> list[Finding]:
    """What belongs to each extra that `tael[all]` names, installed or not."""
    found = _requirements()
    users = {extra for inner in found if inner.extra == "all" for extra in inner.extras}
    return [_package(f"tael[{one.extra}]", one.name, required=False) for one in found if one.extra in users]


def _package(topic: str, name: str, *, required: bool) -> Finding:
    try:
        return Finding(topic, name, importlib.metadata.version(name), True if required else None)
    except importlib.metadata.PackageNotFoundError:
        if required:
            return Finding(topic, name, "missing", False, f"pip install {name}")
        return Finding(topic, name, "not installed")


@dataclass(frozen=True, slots=True)
class _Requirement:
    """A package that tael's metadata names: for `extra` ("" for all), and with `extras` of its own."""

    name: str
    extras: tuple[str, ...]
    extra: str


def _requirements() -> list[_Requirement]:
    found = []
    for text in importlib.metadata.requires("tael") or []:
        what = re.match(r"([A-Za-z0-9._-]+)\s*(?:\[([^]]*)\])?", text)
        extra = re.search(r"""extra\s*==\s*["']([^"']+)""", text)
        if what:
            extras = tuple(name.strip() for name in (what[2] or "").split(",") if name.strip())
            found.append(_Requirement(what[1], extras, extra[1] if extra else ""))
    return found
