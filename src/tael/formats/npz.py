# SPDX-License-Identifier: Apache-2.0
"""NPZ: a zip archive (zip_archive.py) of NAME.npy members (npy.py), stored by numpy.savez, or deflated.

What arrays cannot say (metadata, ties, the true type of bits that numpy has no type for) goes into the archive's
comment, as one JSON object of strings in ASCII: numpy never looks there, and every member stays an array. A comment
has at most 65535 bytes; what does not fit is a stated loss.

Deflated members are read front to back (`access="sequential"`). Source: numpy/lib/_npyio_impl.py of numpy 2.4.
"""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from tael.convert.plan import FileBuilder, Plan, Target
from tael.core import portable
from tael.core.checkpoint import Checkpoint
from tael.core.dtypes import DTYPES, DType
from tael.core.limits import Limits
from tael.core.location import Location
from tael.core.node import Contiguous, Span, Strided
from tael.core.problem import Loss, Problem
from tael.core.tensor import Check, Tensor
from tael.errors import SourceError, TaelError
from tael.formats.detect import Probe
from tael.formats.npy import DESCRS, descr_of, listed_only, read_array
from tael.formats.npy_header import FIRST_READ, header_bytes
from tael.formats.registry import Confidence, Format
from tael.formats.zip_archive import ZipArchive, ZipEntry, open_zip
from tael.formats.zip_write import COMMENT_BYTES, ZipBuilder

SUFFIX = ".npy"
_NAMELESS = frozenset(name for name, descr in DESCRS.items() if descr == "<V1")  # of a byte, and numpy has no type
_FEW = 3  # notes of one text that are shown one by one


def match(probe: Probe) -> Confidence:
    if probe.zip is None:
        damaged = probe.suffix == ".npz" and probe.head.startswith(b"PK\3\4")
        return Confidence.POSSIBLE if damaged else Confidence.NONE
    arrays = sum(name.endswith(SUFFIX) for name in probe.zip.entries)
    if arrays == 0:
        return Confidence.NONE
    return Confidence.CERTAIN if arrays == len(probe.zip.entries) else Confidence.LIKELY


def open(location: Location, limits: Limits) -> Checkpoint:
    """The headers of all arrays. One that cannot be read is listed as damaged; members that are no arrays are noted."""
    source = location.source()
    archive = open_zip(source, limits)
    metadata, sections, extras, noted = _record(archive)
    dtypes = _dtypes(sections.get("dtypes"))
    tensors: list[Tensor] = []
    problems: list[Problem] = []
    others: list[str] = []
    for entry in archive.entries.values():
        if not entry.name.endswith(SUFFIX):
            others.append(entry.name)
            continue
        tensor, found = _member(archive, entry, dtypes, limits)
        tensors.append(tensor)
        problems += found
    if others:
        extras["npz.members"] = others
        noted.append(Problem("note", f"{len(others):,} members are no arrays: {', '.join(others[:3])}", source.name))
    tensors = portable.restore_aliases(tensors, sections.get("aliases", {}))
    return Checkpoint(
        "npz",
        location.path,
        {tensor.name: tensor for tensor in tensors},
        metadata,
        extras,
        [*archive.problems, *noted, *_gathered(problems)],
        sources=[source],
    )


def layout(checkpoint: Checkpoint, target: Target) -> Plan:
    """One archive of stored arrays, each aligned to 64 bytes. Raises `UnsupportedTensorError`, `TransformError`."""
    comment, losses, owners_only = _comment(checkpoint)
    builder = ZipBuilder(FileBuilder(os.path.basename(target.path)))
    for tensor in checkpoint.owners if owners_only else checkpoint.tensors.values():
        builder.add_tensor(tensor.name + SUFFIX, tensor, header_bytes(descr_of(tensor), tensor.shape))
    return Plan("npz", target.path, False, (builder.finish(comment),), tuple(losses))


def _member(
    archive: ZipArchive, entry: ZipEntry, dtypes: Mapping[str, DType], limits: Limits
) -> tuple[Tensor, list[Problem]]:
    """One array; `dtypes` by name, "*" for those not named, where the archive says more than the header."""
    name, where = entry.name.removesuffix(SUFFIX), archive.source.name
    try:
        span = archive.entry_span(entry)
        head = archive.head(entry, 0, min(entry.size, FIRST_READ))

        def fetch(offset: int, nbytes: int) -> bytes:
            inside = offset + nbytes <= len(head)
            return head[offset : offset + nbytes] if inside else archive.head(entry, offset, nbytes)

        array = read_array(name, span, fetch, where, limits, entry.access)
    except SourceError:
        raise
    except TaelError as error:
        nothing = Span(archive.source, entry.header_offset, entry.size)
        return listed_only(name, nothing, error.cause), [Problem("fatal", error.cause, where, name)]
    tensor, problems = array.tensor, array.problems
    dtype = dtypes.get(name, dtypes.get("*"))
    if dtype is not None and array.header.descr == DESCRS[dtype.name] and isinstance(tensor.data, Contiguous | Strided):
        tensor = tensor.with_data(replace(tensor.data, dtype=dtype))
        problems = [problem for problem in problems if problem.severity != "note"]
    check = archive.check(entry)
    if check is not None and not tensor.damaged:
        if tensor.nbytes == array.data.nbytes:
            check = _payload_check(check, fetch(0, array.header.data_offset), array.data)
        tensor = replace(tensor, checks=(check,))
    return tensor, problems


def _payload_check(whole: Check, header: bytes, data: Span) -> Check:
    """A check of `data` alone that is as good as `whole` over `header` and it: so the data is read once."""
    from tael import kernels

    before = kernels.crc32_combine(kernels.crc32(header), 0, data.nbytes)
    return Check(data, whole.crc32 ^ before, whole.what)


def _gathered(problems: Iterable[Problem]) -> list[Problem]:
    """`problems`, with notes that many arrays share told once."""
    notes: dict[str, list[Problem]] = defaultdict(list)
    rest = []
    for problem in problems:
        if problem.severity == "note":
            notes[problem.what].append(problem)
        else:
            rest.append(problem)
    for what, same in notes.items():
        rest += same if len(same) <= _FEW else [Problem("note", f"{len(same):,} arrays: {what}", same[0].where)]
    return rest


# --- the record in the comment ----------------------------------------------------------------------------------------


def _record(archive: ZipArchive) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any], list[Problem]]:
    """Metadata, sections, extras (somebody else's comment) and notes."""
    if not archive.comment:
        return {}, {}, {}, []
    try:
        stored = json.loads(archive.comment)
    except (ValueError, RecursionError):
        stored = None
    if isinstance(stored, dict) and all(isinstance(value, str) for value in stored.values()):
        metadata, sections, problems = portable.unpack(stored, archive.source.name)
        return metadata, sections, {}, problems
    return {}, {}, {"npz.comment": archive.comment.decode("utf-8", "replace")}, []


def _dtypes(section: object) -> dict[str, DType]:
    """Name -> dtype from {"*": dtype, other dtype: [names]}, as far as those are dtypes that headers cannot name."""
    if not isinstance(section, dict):
        return {}
    found: dict[str, DType] = {}
    for key, value in section.items():
        names = value if isinstance(value, list) else ["*"]
        dtype = key if isinstance(value, list) else value
        if dtype in _NAMELESS:
            found |= {name: DTYPES[dtype] for name in names if isinstance(name, str)}
    return found


def _dtypes_section(tensors: Iterable[Tensor]) -> dict[str, Any]:
    """The inverse; the commonest dtype takes no names."""
    names: dict[str, list[str]] = defaultdict(list)
    for tensor in tensors:
        if tensor.dtype.name in _NAMELESS:
            names[tensor.dtype.name].append(tensor.name)
    if not names:
        return {}
    (common, _), *_ = Counter({dtype: len(some) for dtype, some in names.items()}).most_common()
    return {"*": common, **{dtype: some for dtype, some in names.items() if dtype != common}}


def _comment(checkpoint: Checkpoint) -> tuple[bytes, list[Loss], bool]:
    """As much of the record as a comment holds, what is lost, and whether ties are in it."""
    metadata, aliases, dtypes = checkpoint.metadata, checkpoint.aliases, _dtypes_section(checkpoint.owners)
    losses: list[Loss] = []
    while True:
        record = portable.pack(metadata, aliases, dtypes=dtypes)
        comment = json.dumps(record, separators=(",", ":")).encode() if record else b""
        if len(comment) <= COMMENT_BYTES:
            return comment, losses, bool(aliases) or not checkpoint.aliases
        size = f"the archive's comment holds {COMMENT_BYTES:,} bytes, {len(comment):,} are wanted"
        if metadata:
            losses.append(Loss("metadata", size, len(metadata)))
            metadata = {}
        elif dtypes:
            count = sum(tensor.dtype.name in _NAMELESS for tensor in checkpoint.owners)
            losses.append(Loss("dtype", f"opaque bytes without a type: {size}", count))
            dtypes = {}
        else:
            losses.append(Loss("alias", f"tied names are written out each: {size}", len(aliases)))
            aliases = {}


FORMAT = Format(
    id="npz",
    title="NumPy archive",
    suffixes=(".npz",),
    dtypes=frozenset(DESCRS),
    capabilities=frozenset({"read", "write", "metadata", "aliases"}),
    match=match,
    open=open,
    layout=layout,
)
