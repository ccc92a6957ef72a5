# SPDX-License-Identifier: Apache-2.0
"""Plan: every output file, part and offset, known before the first payload byte is read. Pure data.

Parts: `Literal` bytes, `Copy` of a source range, `Compute` of a node, `Deferred` for what depends on
digests of other parts (a zip's CRC-32s). Sizes never depend on data; content may.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tael.core.block_ops import is_quantize
from tael.core.evaluate import working_bytes
from tael.core.node import Contiguous, Node, SourceTable, Span, nbytes, span_to_json, spans, to_json
from tael.core.problem import Loss
from tael.core.tensor import Check, Tensor, chunk_alignment

UNIT_BYTES = 8 << 20  # the working set of one unit of execution
UNIT_ELEMENTS = 1 << 20  # what a unit quantizes
BASE_MEMORY = 60 << 20  # interpreter, numpy and tael themselves, measured


@dataclass(frozen=True, slots=True)
class Literal:
    offset: int
    data: bytes

    @property
    def nbytes(self) -> int:
        return len(self.data)


@dataclass(frozen=True, slots=True)
class Copy:
    """Bytes that do not change. `digest`: a `Deferred` part wants their CRC-32."""

    offset: int
    span: Span
    tensor: str
    digest: bool = False

    @property
    def nbytes(self) -> int:
        return self.span.nbytes


@dataclass(frozen=True, slots=True)
class Compute:
    """The canonical bytes of `node`."""

    offset: int
    node: Node
    tensor: str
    digest: bool = False

    @property
    def nbytes(self) -> int:
        return nbytes(self.node)


@dataclass(frozen=True, slots=True)
class Deferred:
    """`nbytes` that `FINISHERS[finisher]` makes from `params` and the CRC-32s of the file's parts, by part number."""

    offset: int
    nbytes: int
    finisher: str
    params: Mapping[str, Any]


Part = Literal | Copy | Compute | Deferred
Finisher = Callable[[Mapping[str, Any], Mapping[int, int]], bytes]

FINISHERS: dict[str, str] = {  # name -> "module:function", loaded when used
    "zip.local_header": "tael.formats.zip_write:finish_local_header",
    "zip.directory": "tael.formats.zip_write:finish_directory",
}


@dataclass(frozen=True, slots=True)
class OutputFile:
    """`name` relative to the plan's folder. Gaps between parts read as zeros."""

    name: str
    size: int
    parts: tuple[Part, ...]


class FileBuilder:
    """Lays out one file front to back."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.offset = 0
        self.parts: list[Part] = []

    def literal(self, data: bytes) -> int:
        """Append bytes; returns their part number."""
        return self._add(Literal(self.offset, data))

    def tensor(self, tensor: Tensor, *, digest: bool = False) -> int:
        """Append a tensor's canonical bytes: a copy where they lie in a source as they are."""
        data = tensor.data
        if isinstance(data, Contiguous):
            return self._add(Copy(self.offset, data.span, tensor.name, digest))
        return self._add(Compute(self.offset, data, tensor.name, digest))

    def copy(self, span: Span, what: str, *, digest: bool = False) -> int:
        """Append a range of a source (side files)."""
        return self._add(Copy(self.offset, span, what, digest))

    def deferred(self, size: int, finisher: str, params: Mapping[str, Any]) -> int:
        return self._add(Deferred(self.offset, size, finisher, params))

    def pad(self, alignment: int) -> None:
        """Move to the next multiple of `alignment`."""
        self.offset = -(-self.offset // alignment) * alignment

    def _add(self, part: Part) -> int:
        self.parts.append(part)
        self.offset += part.nbytes
        return len(self.parts) - 1

    def finish(self) -> OutputFile:
        return OutputFile(self.name, self.offset, tuple(self.parts))


@dataclass(frozen=True, slots=True)
class Target:
    """Where to, and how to cut it. `shard_size` in bytes of one file; `folder`: `path` is a folder to create."""

    path: str
    shard_size: int | None = None
    folder: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, repr=False)
class Plan:
    """`files` in the order in which they get their final names: an index comes last.

    folder: the files go into the folder `path`, made whole at once; else each lies beside `path`.
    """

    format: str
    path: str
    folder: bool
    files: tuple[OutputFile, ...]
    losses: tuple[Loss, ...] = ()
    checks: tuple[Check, ...] = ()

    def __repr__(self) -> str:
        return f"<Plan {self.path!r}: {self.format}, {len(self.files):,} files, {self.nbytes:,} bytes>"

    @property
    def nbytes(self) -> int:
        return sum(file.size for file in self.files)

    def peak_memory(self, threads: int) -> int:
        """Bytes: every thread's largest unit, and the constants."""
        units = [unit_memory(part.node) for file in self.files for part in file.parts if isinstance(part, Compute)]
        return BASE_MEMORY + threads * max([1 << 20, *units])

    def with_losses(self, losses: Iterable[Loss]) -> Plan:
        return replace(self, losses=(*self.losses, *losses))

    def with_checks(self, checks: Iterable[Check]) -> Plan:
        return replace(self, checks=tuple(checks))


def unit_blocks(node: Node) -> int:
    """Blocks of one unit of `node`: whole rows where they fit, never cutting a block of an input."""
    size = node.dtype.block_bytes
    each = chunk_alignment(node)
    grid = node.dtype.grid(node.shape)
    total = nbytes(node) // size
    # Ops declare their scratch; a unit's output and scratch together stay within UNIT_BYTES.
    sample = max(each, (1 << 16) // each * each)
    scratch = working_bytes(node, 2 * sample) - working_bytes(node, sample)
    fit = max(1, UNIT_BYTES // (size + -(-scratch // sample)))
    row = grid[-1] if grid else 1
    if is_quantize(node):  # by elements, so that one source is cut alike for every type
        fit = UNIT_ELEMENTS // node.dtype.block
    step = math.lcm(row, each) if row > 0 else each
    step = step if step <= fit else each
    return max(step, min(fit, total) // step * step)


def unit_memory(node: Node) -> int:
    """Bytes one unit of `node` holds at once."""
    blocks = min(unit_blocks(node), max(1, nbytes(node) // node.dtype.block_bytes))
    return blocks * node.dtype.block_bytes + working_bytes(node, blocks)


def to_dict(plan: Plan) -> dict[str, Any]:
    """The plan as JSON: what `--dry-run --json` prints, a journal hashes and a worker elsewhere runs."""
    table = SourceTable()

    def part_to_json(part: Part) -> dict[str, Any]:
        match part:
            case Literal(offset, data):
                return {"at": offset, "literal": base64.b64encode(data).decode()}
            case Copy(offset, span, tensor, digest):
                return {"at": offset, "copy": span_to_json(span, table), "tensor": tensor, "digest": digest}
            case Compute(offset, node, tensor, digest):
                return {"at": offset, "compute": to_json(node, table), "tensor": tensor, "digest": digest}
            case Deferred(offset, size, finisher, params):
                return {"at": offset, "nbytes": size, "finisher": finisher, "params": dict(params)}

    files = [
        {"name": file.name, "size": file.size, "parts": [part_to_json(part) for part in file.parts]}
        for file in plan.files
    ]
    losses = [{"kind": loss.kind, "detail": loss.detail, "count": loss.count} for loss in plan.losses]
    sources = zip(table.refs, table.sources(), strict=True)
    return {
        "schema": "tael.plan/1",
        "format": plan.format,
        "folder": plan.folder,
        "files": files,
        "losses": losses,
        "sources": [{**ref, "identity": list(source.identity)} for ref, source in sources],
    }


def plan_hash(plan: Plan) -> str:
    """BLAKE3 of the plan with the identities of its sources and the version of the kernels."""
    from blake3 import blake3

    from tael import kernels

    text = json.dumps([to_dict(plan), kernels.VERSION], sort_keys=True, separators=(",", ":"))
    return blake3(text.encode()).hexdigest()


def spans_of(parts: Sequence[Part]) -> list[Span]:
    found: list[Span] = []
    for part in parts:
        if isinstance(part, Copy):
            found.append(part.span)
        elif isinstance(part, Compute):
            found += spans(part.node)
    return found
