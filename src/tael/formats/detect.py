# SPDX-License-Identifier: Apache-2.0
"""What is this file? Content decides: every format is asked, and what is no weight file is called by its name."""

from __future__ import annotations

import os
import re
from functools import cached_property
from typing import TYPE_CHECKING

from tael.core.limits import DEFAULT, Limits
from tael.core.location import Location
from tael.core.source import read
from tael.errors import (
    AmbiguousFormatError,
    CorruptFileError,
    LimitExceededError,
    NotAWeightFileError,
    TaelError,
    UnsupportedFormatError,
)
from tael.formats import registry
from tael.formats.registry import Confidence, Format

if TYPE_CHECKING:
    from tael.formats.zip_archive import ZipArchive

HEAD_BYTES = 64 * 1024


class Probe:
    """What a format's `match` may look at: the first bytes, the size, a zip's directory, a folder's names."""

    def __init__(self, location: Location, limits: Limits = DEFAULT) -> None:
        self.location = location
        self.limits = limits

    @property
    def is_dir(self) -> bool:
        return self.location.is_dir

    @cached_property
    def suffix(self) -> str:
        return os.path.splitext(self.location.name)[1].lower()

    @cached_property
    def names(self) -> list[str]:
        """File names of a folder; empty for a file."""
        return (self.location.names() or []) if self.is_dir else []

    @cached_property
    def size(self) -> int:
        return 0 if self.is_dir else self.location.source().size

    @cached_property
    def head(self) -> bytes:
        """The first 64 KiB (all of a smaller file); empty for a folder."""
        return b"" if self.is_dir else read(self.location.source(), 0, min(HEAD_BYTES, self.size))

    @cached_property
    def zip(self) -> ZipArchive | None:
        """The zip's directory, or None when the file is no readable zip."""
        if not self.head.startswith(b"PK\x03\x04"):
            return None
        from tael.formats.zip_archive import open_zip

        try:
            return open_zip(self.location.source(), self.limits)
        except LimitExceededError:
            raise
        except TaelError:
            return None


def detect(location: Location, limits: Limits = DEFAULT) -> Format:
    """The format of what lies at `location`.

    Raises `NotAWeightFileError`, `UnsupportedFormatError` or `AmbiguousFormatError`.
    """
    probe = Probe(location, limits)
    for candidates in (registry.builtin, registry.plugins):
        ranked = sorted(((fmt.match(probe), fmt) for fmt in candidates()), key=lambda pair: -pair[0])
        best = [fmt for confidence, fmt in ranked if confidence == ranked[0][0] > Confidence.NONE] if ranked else []
        if len(best) == 1:
            return best[0]
        if best:
            ids = " and ".join(fmt.id for fmt in best)
            raise AmbiguousFormatError(f"could be {ids}", path=location.path, hint="name one with --from FORMAT")
    raise stranger(probe)


# Suffixes of files that each could be a checkpoint.
_WEIGHTS = (".safetensors", ".pt", ".pth", ".ckpt", ".bin", ".npz", ".npy", ".gguf", ".onnx", ".h5", ".keras")

# First bytes of what people meet instead of weights, and of weight files read elsewhere.
_MAGIC: tuple[tuple[bytes, int, str, bool], ...] = (  # bytes, offset, name, is it a container of weights?
    (b"\x1f\x8b", 0, "gzip data", False),
    (b"7z\xbc\xaf\x27\x1c", 0, "a 7z archive", False),
    (b"\xfd7zXZ\x00", 0, "xz data", False),
    (b"BZh", 0, "bzip2 data", False),
    (b"\x28\xb5\x2f\xfd", 0, "zstandard data", False),
    (b"Rar!\x1a\x07", 0, "a RAR archive", False),
    (b"%PDF-", 0, "a PDF document", False),
    (b"\x89PNG", 0, "a PNG picture", False),
    (b"\x7fELF", 0, "an ELF program", False),
    (b"SQLite format 3\0", 0, "an SQLite database", False),
    (b"PAR1", 0, "a Parquet table", False),
    (b"ustar", 257, "a tar archive", False),
    (b"PK\x03\x04", 0, "a zip archive", False),
    (b"PK\x05\x06", 0, "an empty zip archive", False),
    (b"\x89HDF\r\n\x1a\n", 0, "an HDF5 (Keras) file", True),
    (b"TFL3", 4, "a TFLite file", True),
    (b"ptrt", 0, "a TensorRT engine", True),
)


def stranger(probe: Probe) -> TaelError:
    """The error that says what the file is, since no format reads it."""
    path, head = probe.location.path, probe.head
    if probe.is_dir:
        weights = [name for name in probe.names if name.lower().endswith(_WEIGHTS)]
        if len(weights) > 1:
            return UnsupportedFormatError(
                f"this folder holds {len(weights):,} files of weights that make no set: {', '.join(weights[:5])}",
                path=path,
                hint="name one of them",
            )
        some = ", ".join(probe.names[:5]) or ("it is empty" if probe.location.names() == [] else "it cannot be listed")
        return NotAWeightFileError(
            f"no weight files found in this folder ({some})",
            path=path,
            hint="name the file or the folder that holds the weights",
        )
    if probe.size == 0 and _has_bytes(path):
        return NotAWeightFileError("a file that the system makes up as it is read: it has no size", path=path)
    if probe.size == 0:
        return NotAWeightFileError("the file is empty", path=path, hint="the download or the writer did not finish")
    if head.startswith(b"version https://git-lfs.github.com/spec/"):
        return _lfs_pointer(path, head)
    if probe.suffix == ".gguf" and not head[:24].strip(b"\0"):
        return NotAWeightFileError(
            "the header is empty, the writer did not finish: the magic and the counts are zeros",
            path=path,
            hint="write or fetch it again",
        )
    if not head.strip(b"\0") and probe.size > 8:
        return NotAWeightFileError(
            "the header is all zeros: the writer did not finish, or the file was preallocated and never filled",
            path=path,
            hint="write or fetch it again",
        )
    if head.startswith(b"PK\x03\x04") and probe.zip is None:
        return CorruptFileError(
            "a zip archive (as PyTorch and NumPy files are) whose directory, at its end, is missing or damaged",
            path=path,
            hint="the file is cut short, or damaged: fetch it again",
        )
    for magic, offset, name, is_container in _MAGIC:
        if head[offset : offset + len(magic)] == magic:
            if is_container:
                return UnsupportedFormatError(f"this is {name}: no reader for it in this version", path=path)
            hint = "unpack it first" if "archive" in name or "data" in name else "this holds no weights"
            return NotAWeightFileError(f"this is {name}, not a weight file", path=path, hint=hint)
    text = head[:4096].lstrip(b"\xef\xbb\xbf \t\r\n")
    lower = text[:512].lower()
    if lower.startswith((b"<!doctype html", b"<html")) or b"<html" in lower:
        title = re.search(rb"<title[^>]*>([^<]{0,80})", head, re.IGNORECASE)
        about = f" titled {title[1].decode('utf-8', 'replace').strip()!r}" if title else ""
        return NotAWeightFileError(
            f"this is an HTML page{about}: an error or a login page was saved instead of the file",
            path=path,
            hint="check the link and your access rights, and download again",
        )
    if text.startswith((b"{", b"[")) and b"\0" not in text:
        error = re.search(rb'"(?:error|message|detail)"\s*:\s*"([^"]{0,120})', head)
        said = f" saying {error[1].decode('utf-8', 'replace')!r}" if error else ""
        return NotAWeightFileError(f"this is JSON text{said}, not a weight file", path=path)
    if b"\0" not in text and _is_text(text):
        return NotAWeightFileError(f"this is text, starting {text[:40].decode('utf-8', 'replace')!r}", path=path)
    return UnsupportedFormatError(
        f"not recognised (first bytes {head[:8].hex(' ')})", path=path, hint="`tael formats` lists what can be read"
    )


def _has_bytes(path: str) -> bool:
    """Can bytes be read from a local file whose size is 0? Those in /proc are like that."""
    if not os.path.isfile(path):
        return False
    try:
        with open(path, "rb") as file:
            return file.read(1) != b""
    except OSError:
        return False


def _lfs_pointer(path: str, head: bytes) -> NotAWeightFileError:
    size = re.search(rb"^size (\d{1,20})$", head, re.MULTILINE)
    digest = re.search(rb"^oid sha256:([0-9a-f]{64})$", head, re.MULTILINE)
    real = f"{int(size[1]):,} bytes" if size else "unknown size"
    sha = f", sha256 {digest[1].decode()}" if digest else ""
    return NotAWeightFileError(
        f"this is a Git LFS pointer, not the file itself; the real file has {real}{sha}",
        path=path,
        hint="run `git lfs pull` in the repository, or download the file from its hub",
    )


def _is_text(head: bytes) -> bool:
    printable = sum(byte >= 32 or byte in b"\t\n\r" for byte in head)
    return printable > 0.97 * len(head)
