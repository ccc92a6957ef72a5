# SPDX-License-Identifier: Apache-2.0
"""What a fuzzer runs: open hostile bytes as one format, look at everything, read a little of every tensor.

python tests/fuzz/targets.py FORMAT FILE...    runs the files once each; a traceback is a bug
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping
from pathlib import Path

from tael.core.limits import Limits
from tael.core.location import Location, safe_parts
from tael.core.source import BytesSource
from tael.errors import SourceNotFoundError, TaelError
from tael.formats import registry
from tael.formats.detect import Probe

LIMITS = Limits(header_bytes=16 << 20, index_bytes=16 << 20, pickle_opcodes=300_000, pickle_objects=300_000)
FOLDERS = {
    "shards": "model.safetensors.index.json",
    "hf": "config.json",
}  # formats of several files: which one is hostile
VECTORS = Path(__file__).parent.parent / "vectors"


class MemoryLocation:
    """A folder, or a file in it, that exists in memory only."""

    def __init__(self, files: Mapping[str, bytes], path: str) -> None:
        self.files, self.path, self.is_dir = files, path, path.endswith("/")
        self._source: BytesSource | None = None

    @property
    def name(self) -> str:
        return self.path.rstrip("/").rpartition("/")[2]

    def source(self) -> BytesSource:
        if self.name not in self.files:
            raise SourceNotFoundError("no such file", path=self.path)
        self._source = self._source or BytesSource(self.files[self.name], self.path)
        return self._source

    def sibling(self, name: str) -> Location:
        return MemoryLocation(self.files, "/".join(["m", *safe_parts(name, self.path)]))

    child = sibling

    def exists(self) -> bool:
        return self.is_dir or self.name in self.files

    def names(self) -> list[str]:
        return sorted(self.files)


def location(format_id: str, data: bytes) -> MemoryLocation:
    if format_id == "gguf":  # the first of a set, should its keys say so
        names = ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"]
        twice = (VECTORS / "gguf" / "sets" / "name_twice" / names[1]).read_bytes()
        second = twice.replace(b"\1\0\0\0\0\0\0\0a", b"\1\0\0\0\0\0\0\0b")
        return MemoryLocation({names[0]: data, names[1]: second}, f"m/{names[0]}")
    if format_id not in FOLDERS:
        return MemoryLocation({"model.bin": data}, "m/model.bin")
    shard = b'\x40\0\0\0\0\0\0\0{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}'.ljust(72) + b"abcd"
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    files = {names[0]: shard, names[1]: shard.replace(b'"a"', b'"b"')}
    index = b'{"metadata":{},"weight_map":{"a":"%s","b":"%s"}}' % tuple(name.encode() for name in names)
    files["model.safetensors.index.json"] = index
    files[FOLDERS[format_id]] = data
    return MemoryLocation(files, "m/" if format_id == "hf" else f"m/{FOLDERS[format_id]}")


def exercise(format_id: str, data: bytes) -> None:
    """Anything but a `TaelError` that comes out of here is a bug."""
    where = location(format_id, data)
    fmt = registry.get(format_id)
    assert fmt.open is not None
    try:
        fmt.match(Probe(where, LIMITS))
        checkpoint = fmt.open(where, LIMITS)
    except TaelError as error:
        if len(str(error)) > 10_000:
            raise AssertionError("an error nobody will read") from error
        return
    from tael.inspection.summary import to_json

    to_json(checkpoint)
    for tensor in itertools.islice(checkpoint.tensors.values(), 50):
        try:
            for _ in itertools.islice(tensor.chunks(1 << 16), 2):
                pass
        except TaelError:
            pass


def seeds(format_id: str) -> list[Path]:
    """Files to start from: what the fuzzer found before, and the golden files."""
    folders = {"npy": "numpy", "npz": "numpy", "shards": "safetensors", "hf": "safetensors"}
    golden = (VECTORS / folders.get(format_id, format_id)).rglob("*")
    found = (Path(__file__).parent / "corpus" / format_id).glob("*")
    return sorted(path for path in (*found, *golden) if path.is_file() and path.stat().st_size < 1 << 18)


if __name__ == "__main__":
    for name in sys.argv[2:]:
        exercise(sys.argv[1], Path(name).read_bytes())
