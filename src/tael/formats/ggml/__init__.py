# SPDX-License-Identifier: Apache-2.0
"""GGML: what llama.cpp and the ggml examples wrote before GGUF (August 2023). Read, not written.

    magic            "lmgg" (ggml, no version) | "fmgg" u32 1 (ggmf) | "tjgg" u32 1, 2 or 3 (ggjt)
    hyperparameters  32-bit numbers, another list for every family (header.py)
    words            u32 length, bytes, and in some families an F32 score
    tensors          until the file ends (records.py)

All little-endian. Nothing names the family: with "lmgg" every layout is tried, and the one that the whole file and the
names of its tensors fit is it. The checkpoint has GGUF's names and metadata (names.py, model.py), so that it converts
to a GGUF; the names in the file are kept in extras["ggml.names"].

Sources: llama.cpp up to August 2023 and its convert_llama_ggml_to_gguf.py, the ggml examples, bloomz.cpp.
"""

from __future__ import annotations

import re

from tael.core.checkpoint import Checkpoint
from tael.core.limits import Limits
from tael.core.location import Location
from tael.core.problem import Problem
from tael.errors import CorruptFileError, TaelError, UnsupportedFormatError, UnsupportedTensorError
from tael.formats.detect import Probe
from tael.formats.ggml.header import MAGICS, Header, Magic, layouts_of, read_header, read_magic
from tael.formats.ggml.model import as_gguf
from tael.formats.ggml.names import fitting
from tael.formats.ggml.records import TYPES, Records, is_old, read_records
from tael.formats.registry import Confidence, Format

_PART = re.compile(r".+\.(?:bin|ggml)[^/]*\.\d{1,2}")


def match(probe: Probe) -> Confidence:
    if probe.head[:4] not in MAGICS:
        return Confidence.NONE
    # Text may begin with these letters; a version or a count of words is never that large.
    return Confidence.CERTAIN if int.from_bytes(probe.head[4:8], "little") < 1 << 24 else Confidence.LIKELY


def open(location: Location, limits: Limits) -> Checkpoint:
    """Headers only. A file cut short is opened: what lies beyond its end is damaged.

    Raises `CorruptFileError`, or `UnsupportedFormatError` for versions and part files that are not read.
    """
    source = location.source()
    magic = read_magic(source)
    _refuse_parts(location, magic)
    header, records = _read(location, magic, limits)
    model = as_gguf(header, records.tensors, source.name)
    tensors = {tensor.name: tensor for tensor in model.tensors}
    renamed = {old: new for new, old in model.names.items()}
    problems = [_what_it_is(header, source.name)]
    for problem in records.problems:
        tensor = problem.tensor and renamed[problem.tensor]
        problems.append(Problem(problem.severity, problem.what, problem.where, tensor))
    old = sum(is_old(tensor.dtype, header.blocks) for tensor in tensors.values())
    if old:
        what = f"the blocks of {old:,} tensors have F32 scales; re-packed, they are rounded to F16 as they are today"
        problems.append(Problem("note", what, source.name))
    extras = {
        "ggml.names": model.names,
        "ggml.header": {
            "magic": magic.name,
            "version": magic.version,
            "layout": header.layout.id,
            **header.params,
            **header.floats,
        },
    }
    return Checkpoint(
        "ggml",
        location.path,
        tensors,
        model.metadata,
        extras,
        problems=[*problems, *model.problems],
        sources=[source],
    )


def _what_it_is(header: Header, where: str) -> Problem:
    blocks = "" if header.params["ftype"] < 2 else f", block layouts of ggjt v{header.blocks}"
    return Problem("note", f"{header.magic} file, {header.layout.title} layout{blocks}: a format before GGUF", where)


def _refuse_parts(location: Location, magic: Magic) -> None:
    """The first LLaMA files were cut into FILE, FILE.1, ..., each with a piece of every tensor."""
    if magic.name == "ggjt":
        return
    others = location.names() or []
    if _PART.fullmatch(location.name) or f"{location.name}.1" in others:
        raise UnsupportedFormatError(
            f"one of several parts ({magic} cut tensors across FILE, FILE.1, ...): such sets are not read",
            path=location.path,
            hint="join them with the llama.cpp of April 2023, or start from the original weights",
        )


def _read(location: Location, magic: Magic, limits: Limits) -> tuple[Header, Records]:
    """The layout that fits best: most tensors with its names, and the whole file read."""
    source = location.source()
    best: tuple[tuple[int, bool, int], Header, Records] | None = None
    furthest: tuple[int, str, TaelError] = (-1, "", CorruptFileError("holds no tensors", path=source.name))
    for layout in layouts_of(magic):
        try:
            header = read_header(source, magic, layout, limits)
            records = read_records(source, header.end, header.blocks, magic.name == "ggjt", limits)
        except (CorruptFileError, UnsupportedTensorError) as error:
            if (error.offset or 0) > furthest[0]:
                furthest = (error.offset or 0, layout.title, error)
            continue
        known = fitting(layout.id, records.tensors)
        if not records.complete and not known and magic.name == "ggml":
            continue  # hyperparameters of another layout
        rank = (known, records.complete, len(records.tensors))
        if best is None or rank > best[0]:
            best = (rank, header, records)
    if best is not None:
        return best[1], best[2]
    _, title, why = furthest
    if title and magic.name == "ggml":
        why.cause = f"a {magic} file that no known layout fits; read as {title}: {why.cause}"
    else:
        why.cause = f"a {magic} file: {why.cause}"
    raise why


FORMAT = Format(
    id="ggml",
    title="GGML (before GGUF)",
    suffixes=(".ggml", ".bin"),
    dtypes=frozenset(TYPES.values()),
    capabilities=frozenset({"read", "metadata"}),
    match=match,
    open=open,
)
