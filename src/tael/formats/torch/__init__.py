# SPDX-License-Identifier: Apache-2.0
"""PyTorch files: .pt, .pth, .ckpt, .bin. One suffix, five layouts; the content tells them apart.

zip      since 1.6, any name for the root folder; stored members; zip64 and data descriptors as needed
           ROOT/data.pkl           the object; a tensor in it names its storage by key (persistent id)
           ROOT/data/KEY           the bytes of one storage ("tensors/KEY" in 1.4), aligned to 64, with a CRC-32
           ROOT/byteorder          "little" or "big"; little when missing
           ROOT/version            "3"; and .format_version, .storage_alignment, .data/serialization_id
script   the same with ROOT/constants.pkl, ROOT/constants/KEY, ROOT/code/...: TorchScript
stream   before 1.6: pickles in a row (magic 0x1950a86a20f9469cfc6c, protocol 1001, machine, the object, list of storage
         keys), then for each key, in that order: i64 element count | elements; always little-endian
tar      2016, three members:
           storages                count; (key, device, class) and i64 element count | elements for each; views
           tensors                 count; (key, storage, class), i32 rank | i32 0 | i64 sizes, strides, offset for each
           pickle                  the object; persistent ids are those keys
pickle   no torch file at all: a pickle of numpy arrays, or of tensors whose storages are inside as streams

An object in a pickle is whatever Python had: read by `tael.pickle`, never run. assembly.py names the tensors.
Source: torch/serialization.py, _utils.py and caffe2/serialize of 2.13 and 1.4.
"""

from __future__ import annotations

from tael.core.checkpoint import Checkpoint
from tael.core.limits import DEFAULT, Limits
from tael.core.location import Location
from tael.core.problem import Problem
from tael.core.source import read
from tael.errors import CorruptFileError, TaelError
from tael.formats.detect import HEAD_BYTES, Probe
from tael.formats.registry import Confidence, Format
from tael.formats.torch import legacy, tar, zip
from tael.formats.torch.assembly import Parsed, assemble
from tael.formats.torch.write import DTYPES, layout
from tael.pickle import looks_like_pickle

_ZIP = b"PK\x03\x04"


def match(probe: Probe) -> Confidence:
    if probe.is_dir or probe.size == 0:
        return Confidence.NONE
    if probe.zip is not None:
        names = probe.zip.entries
        return Confidence.CERTAIN if zip.root_of(names) is not None else Confidence.NONE
    if legacy.is_stream(probe.head):
        return Confidence.CERTAIN
    if tar.is_tar(probe.head):
        try:
            found = tar.members(probe.location.source())
        except TaelError:
            return Confidence.NONE
        return Confidence.CERTAIN if found.keys() >= tar.MEMBERS else Confidence.NONE
    return Confidence.LIKELY if looks_like_pickle(probe.head) else Confidence.NONE


def open(location: Location, limits: Limits = DEFAULT) -> Checkpoint:
    """Raises `CorruptFileError`, `UnsupportedFormatError` or `LimitExceededError`."""
    parsed = _parse(location, limits)
    name = location.name.lower()
    if name.endswith(".tar") and parsed.layout != "tar":
        what = f"named .tar, but it is no tar archive: the layout is {parsed.layout}"
        parsed.problems.append(Problem("note", what, location.path))
    return assemble(parsed, limits)


def _parse(location: Location, limits: Limits) -> Parsed:
    source = location.source()
    head = read(source, 0, min(HEAD_BYTES, source.size))
    if head.startswith(_ZIP):
        return zip.open_archive(source, limits)
    if legacy.is_stream(head):
        return legacy.open_stream(source, limits)
    if tar.is_tar(head):
        return tar.open_tar(source, limits)
    if looks_like_pickle(head):
        return legacy.open_pickle(source, limits)
    raise CorruptFileError("this is no torch file: neither zip, stream, tar nor pickle", path=location.path)


FORMAT = Format(
    id="torch",
    title="PyTorch",
    suffixes=(".pt", ".pth", ".ckpt", ".bin", ".pkl", ".pickle", ".pth.tar", ".pt.tar", ".ptl", ".jit", ".torch"),
    dtypes=DTYPES,
    capabilities=frozenset({"read", "write", "metadata", "aliases"}),
    match=match,
    open=open,
    layout=layout,
)
