# SPDX-License-Identifier: Apache-2.0
"""GGUF against the gguf package, both ways, and a real model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import building
from peers.real_files import SMOLLM2, real_file
from tael.convert import convert, plan_conversion
from tael.convert.execute import execute
from tael.core.checkpoint import Checkpoint
from tael.core.limits import DEFAULT
from tael.core.location import locate
from tael.formats import open_checkpoint
from tael.formats.gguf.header import parse
from tael.formats.gguf.tensors import TYPES
from tael.formats.gguf.values import IDS

pytestmark = pytest.mark.peer


def reader_view(path: Path) -> tuple[dict[str, Any], dict[str, tuple[str, tuple[int, ...], bytes]]]:
    """Keys and tensors as gguf.GGUFReader sees them. Big-endian arrays of it are swapped back."""
    from gguf import GGUFReader

    reader = GGUFReader(path)
    keys = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    tensors = {}
    for tensor in reader.tensors:
        data = tensor.data
        if reader.byte_order == "S":
            data = data.byteswap() if data.dtype.byteorder != ">" else data.astype(data.dtype.newbyteorder("<"))
        shape = tuple(int(length) for length in reversed(tensor.shape))
        tensors[tensor.name] = (tensor.tensor_type.name, shape, np.ascontiguousarray(data).tobytes())
    return keys, tensors


def our_view(checkpoint: Checkpoint) -> tuple[dict[str, Any], dict[str, tuple[str, tuple[int, ...], bytes]]]:
    keys = {key: value for key, value in checkpoint.metadata.items() if key != "gguf.types"}
    tensors = {t.name: (t.dtype.name, t.shape, building.raw_bytes(t)) for t in checkpoint.tensors.values()}
    return keys, tensors


def same_keys(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert list(ours) == list(theirs)
    for key, value in theirs.items():
        assert ours[key] == value, key


def test_our_numbers_are_those_of_the_package() -> None:
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

    assert all(TYPES[kind.value].name == kind.name for kind in GGMLQuantizationType)
    for kind, (block, size) in GGML_QUANT_SIZES.items():
        if kind.name != "Q8_1":  # 36 bytes in ggml itself since its two scales are halves
            assert (TYPES[kind.value].block, TYPES[kind.value].block_bytes) == (block, size), kind
    names = {kind.name: kind.value for kind in GGUFValueType if kind.name != "ARRAY"}
    short = {"UINT": "u", "INT": "i", "FLOAT": "f", "STRING": "str", "BOOL": "bool"}
    assert {
        short[name.rstrip("0123456789")] + name.lstrip("ABCDEFGHIJKLMNOPQRSTUVWXYZ"): number
        for name, number in names.items()
    } == IDS


@pytest.mark.parametrize("big", [False, True], ids=["little", "big"])
def test_what_the_package_writes_we_read(big: bool, tmp_path: Path) -> None:
    import gguf

    end = gguf.GGUFEndian.BIG if big else gguf.GGUFEndian.LITTLE
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "test", endianess=end)
    values = np.random.default_rng(1).standard_normal((3, 64)).astype(np.float32)
    writer.add_uint64("u64", 2**64 - 1)
    writer.add_float64("f64", 1e-300)
    writer.add_array("words", [f"word {n} 层" for n in range(1000)])
    writer.add_array("numbers", list(range(-500, 500)))
    writer.add_array("bools", [True, False, True])
    for kind in (np.float32, np.float16, np.float64, np.int8, np.int16, np.int32, np.int64):
        writer.add_tensor(f"w.{np.dtype(kind).name}", (values * 20).astype(kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    keys, _ = reader_view(tmp_path / "x.gguf")
    with open_checkpoint(tmp_path / "x.gguf") as checkpoint:
        assert checkpoint.problems == []
        ours, _ = our_view(checkpoint)
        same_keys(ours, keys)
        for kind in (np.float32, np.float16, np.float64, np.int8, np.int16, np.int32, np.int64):
            found = checkpoint.tensors[f"w.{np.dtype(kind).name}"].numpy()
            assert found.dtype == kind
            assert (found == (values * 20).astype(kind)).all()


def test_what_we_write_the_package_reads(tmp_path: Path) -> None:
    values = np.random.default_rng(2).standard_normal((2, 3, 256)).astype(np.float32)
    contents: dict[str, Any] = {f"w.{kind}": values.astype(kind) for kind in ("float32", "float16", "float64", "int8")}
    # Of what the package knows, blocks of any bytes: they are not decoded.
    from gguf import GGML_QUANT_SIZES

    for number in GGML_QUANT_SIZES:
        dtype = TYPES[number.value]
        if dtype.kind == "quantized" and dtype.name != "Q8_1":
            raw = np.random.default_rng(number.value).bytes(dtype.nbytes((3, 256)))
            contents[f"q.{dtype.name}"] = (dtype.name, (3, 256), raw)
    metadata = {
        "general.architecture": "test", "n": 5, "negative": -5, "huge": 2**40, "f": 0.5, "yes": True, "text": "é 层",
        "tokenizer.ggml.tokens": ["a", "", "层"], "tokenizer.ggml.token_type": [1, 2, 3], "list": [0.5, 0.25],
    }  # fmt: skip
    checkpoint = building.checkpoint(contents, metadata=metadata)
    execute(plan_conversion(checkpoint, tmp_path / "x.gguf"))
    keys, tensors = reader_view(tmp_path / "x.gguf")
    ours, raw = our_view(checkpoint)
    same_keys(ours, keys)
    assert tensors == raw


def test_a_set_of_ours_has_the_names_and_keys_of_the_package(tmp_path: Path) -> None:
    import gguf

    arrays = {f"blk.{n}.weight": np.full((4, 8), n, np.float32) for n in range(5)}
    writer = gguf.GGUFWriter(tmp_path / "theirs.gguf", "test", split_max_tensors=2)
    for name, array in arrays.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    checkpoint = building.checkpoint(arrays, metadata={"general.architecture": "test"})
    execute(plan_conversion(checkpoint, tmp_path / "ours.gguf", shard_size=300))
    for number in (1, 2, 3):
        files = [tmp_path / f"{whose}-{number:05d}-of-00003.gguf" for whose in ("ours", "theirs")]
        (ours, our_tensors), (theirs, their_tensors) = map(reader_view, files)
        assert ours == theirs
        assert our_tensors == their_tensors


@pytest.fixture(scope="module")
def smollm2() -> Path:
    return real_file(*SMOLLM2)


def test_a_real_model_is_what_the_package_sees(smollm2: Path) -> None:
    keys, tensors = reader_view(smollm2)
    with open_checkpoint(smollm2) as checkpoint:
        assert checkpoint.problems == []
        ours, raw = our_view(checkpoint)
    same_keys(ours, keys)
    assert list(raw) == list(tensors)
    assert raw == tensors


def test_a_real_model_is_written_again_byte_for_byte(smollm2: Path, tmp_path: Path) -> None:
    convert(smollm2, tmp_path / "again.gguf")
    before, after = (parse(locate(path).source(), DEFAULT) for path in (smollm2, tmp_path / "again.gguf"))
    assert after.values == before.values
    assert after.infos == before.infos
    assert (tmp_path / "again.gguf").read_bytes() == smollm2.read_bytes()


def test_a_real_model_through_a_set_and_back(smollm2: Path, tmp_path: Path) -> None:
    convert(smollm2, tmp_path / "set.gguf", shard_size=40_000_000)
    assert len(list(tmp_path.iterdir())) == 3
    convert(tmp_path / "set-00002-of-00003.gguf", tmp_path / "one.gguf")
    assert (tmp_path / "one.gguf").read_bytes() == smollm2.read_bytes()
