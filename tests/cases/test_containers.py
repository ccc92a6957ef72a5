# SPDX-License-Identifier: Apache-2.0
"""Malformed, ambiguous or wrong containers: C1 C3 C4 C5, S7, T1, Y1 Y4, Z3, M5 M6."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from cases.files import converted, safetensors, said, values
from tael.convert import convert
from tael.errors import CorruptFileError, NotAWeightFileError, TaelError
from tael.formats import open_checkpoint

A = np.arange(6, dtype=np.float32).reshape(2, 3)


def raw(header: str, payload: bytes) -> bytes:
    return struct.pack("<Q", len(header)) + header.encode() + payload


def test_c1_duplicate_header_keys_are_named(tmp_path: Path) -> None:
    one = '"twice":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}'
    path = tmp_path / "x.safetensors"
    path.write_bytes(raw("{" + one + "," + one.replace("[0,4]", "[4,8]") + "}", bytes(8)))
    with pytest.raises(CorruptFileError, match=r"twice.*twice|'twice'"):
        open_checkpoint(path)


@pytest.mark.parametrize("shape", [[1000, 1000], [2**63, 2], [2**62, 2**62, 2**62], [-1], [1.5]], ids=str)
def test_c3_a_shape_that_is_not_its_bytes_is_refused_before_allocating(tmp_path: Path, shape: list[int]) -> None:
    header = json.dumps({"a": {"dtype": "F32", "shape": shape, "data_offsets": [0, 4]}})
    (tmp_path / "x.safetensors").write_bytes(raw(header, bytes(4)))
    with pytest.raises(CorruptFileError, match="'a'"):
        open_checkpoint(tmp_path / "x.safetensors")


@pytest.mark.parametrize("metadata", [0, None, {}, {"a": {"b": "c"}}, {"n": 7}, [1], "text"], ids=str)
def test_c4_odd_metadata_never_hides_the_tensors(tmp_path: Path, metadata: object) -> None:
    header = json.dumps({"__metadata__": metadata, "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}})
    path = tmp_path / "x.safetensors"
    path.write_bytes(raw(header, A.tobytes()))
    assert (values(path)["a"] == A).all()
    assert ("warning" in said(path)) == (metadata != {})
    assert (converted(path, tmp_path / "repaired.safetensors")["a"] == A).all()
    assert said(tmp_path / "repaired.safetensors") == ""


@pytest.mark.parametrize("pad", range(8))
def test_c5_the_payload_starts_right_behind_the_header(tmp_path: Path, pad: int) -> None:
    (tmp_path / "x.safetensors").write_bytes(safetensors({"a": A}, pad=pad))
    assert (values(tmp_path / "x.safetensors")["a"] == A).all()


def test_s7_two_names_at_one_offset_are_explained_and_never_written(tmp_path: Path) -> None:
    entry = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
    path = tmp_path / "x.safetensors"
    path.write_bytes(raw(json.dumps({"first": entry, "second": entry}), A.tobytes()))
    with pytest.raises(CorruptFileError, match=r"first.*second|second.*first"):
        open_checkpoint(path)


def test_t1_an_lfs_pointer_is_called_so_with_its_real_size_and_digest(tmp_path: Path) -> None:
    digest = "4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393"
    path = tmp_path / "model.safetensors"
    path.write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize 4976698672\n")
    with pytest.raises(NotAWeightFileError, match=f"LFS pointer.*4,976,698,672.*{digest}"):
        open_checkpoint(path)


STRANGERS = {
    "empty": b"",
    "HTML": b"<!DOCTYPE html><html><head><title>Sign in</title></head></html>",
    "JSON": b'{"error": "Repository not found"}',
    "gzip": b"\x1f\x8b\x08\0" + bytes(60),
    "7z": b"7z\xbc\xaf\x27\x1c" + bytes(60),
    "zeros": bytes(4096),
    "zip": b"PK\x05\x06" + bytes(18),
    "GGUF": b"GGUF" + bytes(60),
    "text": b"just some words in a file\n" * 3,
}


@pytest.mark.parametrize("kind", STRANGERS)
def test_t1_what_is_no_weight_file_is_called_by_its_name(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(STRANGERS[kind])
    with pytest.raises(TaelError, match=kind):
        open_checkpoint(path)


def test_y1_bf16_bits_survive_every_container(tmp_path: Path) -> None:
    bits = np.array([0x3F80, 0x8000, 0x0001, 0x7F80, 0x7FC1, 0xFFFF, 0x7F81], np.uint16)
    path = tmp_path / "x.safetensors"
    path.write_bytes(safetensors({"a": ("BF16", bits.shape, bits.tobytes())}))
    for suffix in (".npz", ".npy", ".pt", ".safetensors"):
        target = tmp_path / f"y{suffix}"
        convert(path, target)
        back = values(target)
        (array,) = back.values()
        assert array.view(np.uint16).tolist() == bits.tolist()
        if suffix != ".npy":
            assert array.dtype == ml_dtypes.bfloat16


@pytest.mark.parametrize("shape", [(2, 0), (0,), ()], ids=str)
@pytest.mark.parametrize("suffix", [".npz", ".npy", ".pt", ".safetensors"])
def test_y4_empty_tensors_and_scalars(tmp_path: Path, shape: tuple[int, ...], suffix: str) -> None:
    array = np.ones(shape, np.float32)
    (tmp_path / "x.safetensors").write_bytes(safetensors({"a": array}))
    (back,) = converted(tmp_path / "x.safetensors", tmp_path / f"y{suffix}").values()
    assert back.shape == shape
    assert back.tobytes() == array.tobytes()
    (again,) = converted(tmp_path / f"y{suffix}", tmp_path / "z.safetensors", dtype="F16").values()
    assert again.shape == shape


def test_z3_pickled_objects_in_npz_are_listed_and_not_run(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", w=A, evil=np.array([{"a": 1}], object))
    assert (values(tmp_path / "x.npz")["w"] == A).all()
    assert "evil" in said(tmp_path / "x.npz")
    with pytest.raises(TaelError, match="evil"):
        convert(tmp_path / "x.npz", tmp_path / "y.safetensors")
    convert(tmp_path / "x.npz", tmp_path / "y.safetensors", skip_damaged=True)
    assert values(tmp_path / "y.safetensors").keys() == {"w"}
    np.save(tmp_path / "o.npy", np.array([{"a": 1}], object))
    assert "pickle" in said(tmp_path / "o.npy")


def test_m5_metadata_is_carried_by_default(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(safetensors({"a": A}, {"format": "pt", "x": "y"}))
    for suffix in (".pt", ".npz", ".safetensors"):
        convert(path, tmp_path / f"y{suffix}")
        convert(tmp_path / f"y{suffix}", tmp_path / "z.safetensors", force=True)
        with open_checkpoint(tmp_path / "z.safetensors") as back:
            assert dict(back.metadata) == {"format": "pt", "x": "y"}


def test_m6_the_configs_dtype_follows_the_tensors_at_every_level(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    config = {"torch_dtype": "float32", "vision_config": {"torch_dtype": "float32", "depth": 2}, "text_config": {}}
    (folder / "config.json").write_text(json.dumps(config))
    bits = ("BF16", (2, 2), bytes(8))
    (folder / "model.safetensors").write_bytes(safetensors({"vision_model.a": bits, "language_model.b": bits}))
    convert(folder, tmp_path / "out")
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert written == {
        "torch_dtype": "bfloat16",
        "vision_config": {"torch_dtype": "bfloat16", "depth": 2},
        "text_config": {},
    }
    convert(folder, tmp_path / "half", dtype="F16")
    assert json.loads((tmp_path / "half" / "config.json").read_text())["torch_dtype"] == "float16"
