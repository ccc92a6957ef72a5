# SPDX-License-Identifier: Apache-2.0
"""GGUF and its elders: C7, D3, D9, Z1, Z2, Q5, Q6."""

from __future__ import annotations

import struct
import time
from pathlib import Path

import numpy as np
import pytest
from tests.building import checkpoint

import tael
from cases.files import said, values
from tael.convert import convert, plan_conversion
from tael.convert.execute import execute
from tael.core import source as sources
from tael.errors import CorruptFileError, NotAWeightFileError, TransformError, UnsupportedFormatError

A = np.arange(12, dtype=np.float32).reshape(3, 4)


def text(value: str, order: str = "<") -> bytes:
    raw = value.encode()
    return struct.pack(order + "Q", len(raw)) + raw


def gguf(tensors: list[tuple[str, np.ndarray]], keys: bytes = b"", n_keys: int = 0, order: str = "<") -> bytes:
    """A version 3 file of F32 tensors, written from the specification."""
    head = b"GGUF" + struct.pack(order + "IQQ", 3, len(tensors), n_keys) + keys
    data = b""
    for name, array in tensors:
        head += text(name, order) + struct.pack(order + "I", array.ndim)
        head += b"".join(struct.pack(order + "Q", n) for n in reversed(array.shape))
        head += struct.pack(order + "IQ", 0, len(data))
        raw = array.astype(order + "f4").tobytes()
        data += raw + bytes(-len(raw) % 32)
    return head + bytes(-len(head) % 32) + data


def test_c7_duplicate_names_are_refused_on_read_and_on_write(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(gguf([("a", A), ("a", A)]))
    with pytest.raises(CorruptFileError, match="two tensors have this name"):
        tael.open(path)
    good = checkpoint({"a": A, "b": A})
    with pytest.raises(TransformError, match="two tensors would have this name"):
        good.with_tensors([good.tensors["a"], good.tensors["b"].renamed("a")])


def test_d3_a_header_of_zeros_is_called_an_unfinished_writer(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(bytes(4096) + gguf([("a", A)])[4096:] + b"payload" * 100)
    with pytest.raises(NotAWeightFileError, match=r"header.*(zeros|empty).*writer did not finish"):
        tael.open(path)


def test_d9_a_vocabulary_of_256k_tokens_takes_few_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 256_000
    tokens = b"".join(text(f"token{i}") for i in range(count))
    keys = text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, count) + tokens
    path = tmp_path / "x.gguf"
    path.write_bytes(gguf([("a", np.ones(4, np.float32))], keys, 1))
    reads = 0
    original = sources.FileSource.read_into

    def counting(self: sources.FileSource, offset: int, buffer: memoryview) -> None:
        nonlocal reads
        reads += 1
        original(self, offset, buffer)

    monkeypatch.setattr(sources.FileSource, "read_into", counting)
    started = time.process_time()
    with tael.open(path) as opened:
        spent = time.process_time() - started
        assert reads < 30
        assert spent < 1  # seconds; measured: 0.02
        found = opened.metadata["tokenizer.ggml.tokens"]
        assert len(found) == count
        assert (found[0], found[-1], found[1000]) == ("token0", f"token{count - 1}", "token1000")


@pytest.mark.parametrize(
    ("magic", "words"),
    [(b"lmgg", "ggml"), (b"fmgg\x01\0\0\0", "ggmf"), *[(b"tjgg" + bytes([v, 0, 0, 0]), "ggjt") for v in (1, 2, 3)]],
)
def test_z1_old_versions_are_named(tmp_path: Path, magic: bytes, words: str) -> None:
    """A file that holds no more than its magic: what it is must be said all the same."""
    path = tmp_path / "x.bin"
    path.write_bytes(magic + bytes(3))
    with pytest.raises(tael.TaelError) as caught:
        tael.open(path)
    assert words in str(caught.value).lower()


def test_z1_a_version_to_come_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(gguf([("a", A)]).replace(b"GGUF\x03", b"GGUF\x09", 1))
    with pytest.raises(UnsupportedFormatError, match="version 9"):
        tael.open(path)


def test_z2_a_big_endian_file_reads_as_the_little_endian_one(tmp_path: Path) -> None:
    tensors = [("a", A), ("b", A[0]), ("c", A.T.copy())]
    for order, name in (("<", "little.gguf"), (">", "big.gguf")):
        keys = text("general.name", order) + struct.pack(order + "I", 8) + text("x", order)
        (tmp_path / name).write_bytes(gguf(tensors, keys, 1, order))
    for name, array in tensors:
        assert (values(tmp_path / "big.gguf")[name] == array).all()
    convert(tmp_path / "big.gguf", tmp_path / "converted.gguf")
    assert (tmp_path / "converted.gguf").read_bytes() == (tmp_path / "little.gguf").read_bytes()


@pytest.mark.parametrize("shape", [(1, 6, 4), (1,), (), (2, 1, 3, 1, 4), (1, 1, 1, 1, 1, 2)], ids=str)
def test_q5_the_rank_is_kept(tmp_path: Path, shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    path = tmp_path / "x.gguf"
    execute(plan_conversion(checkpoint({"a": array, "other": A}), path))
    back = values(path)["a"]
    assert back.shape == shape
    assert (back == array).all()
    assert said(path) == ""


def test_q6_a_packed_table_shows_its_logical_shape(tmp_path: Path) -> None:
    blocks = ("Q8_0", (3, 64), bytes(3 * 2 * 34))
    path = tmp_path / "x.gguf"
    execute(plan_conversion(checkpoint({"type_embedding.weight": blocks}), path))
    with tael.open(path) as opened:
        assert opened.tensors["type_embedding.weight"].shape == (3, 64)
    convert(path, tmp_path / "x.safetensors")
    assert values(tmp_path / "x.safetensors")["type_embedding.weight"].shape == (3, 64)
