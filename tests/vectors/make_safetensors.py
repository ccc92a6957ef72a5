# SPDX-License-Identifier: Apache-2.0
"""Writes tests/vectors/safetensors: files of the real libraries, and one malformed file per rule of the format.

python tests/vectors/make_safetensors.py        (needs torch, safetensors, transformers, huggingface_hub)
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent / "safetensors"
BY_HAND = "bytes laid out by this script from the specification"


def versions(*packages: str) -> str:
    return ", ".join(f"{package} {version(package)}" for package in packages)


# --- files of the real libraries


def library_files(folder: Path) -> dict[str, str]:
    import torch
    from safetensors import TensorSpec, serialize_file
    from safetensors.torch import save_file, save_model

    torch.manual_seed(0)
    tensors = {
        "f64": torch.tensor([[1.5, -0.0, float("inf")]], dtype=torch.float64),
        "f32": torch.tensor([[1.0, float("nan"), -0.0], [1e-45, 3.4e38, -2.5]]),
        "f16": torch.tensor([0.5, -0.0, 65504.0, 6e-8], dtype=torch.float16),
        "bf16": torch.tensor([0x7FC1, -0x8000, 0x0001, 0x3F80], dtype=torch.int16).view(torch.bfloat16),
        "c64": torch.tensor([1 + 2j, -0.0 - 1j], dtype=torch.complex64),
        "i64": torch.tensor([-(2**63), 2**63 - 1]),
        "i32": torch.tensor([[-(2**31)], [7]], dtype=torch.int32),
        "i16": torch.tensor([-5, 6, 7], dtype=torch.int16),
        "i8": torch.tensor([-128, 127, 0], dtype=torch.int8),
        "u64": torch.tensor([2**63 - 1, 3], dtype=torch.uint64),
        "u32": torch.tensor([2**32 - 1], dtype=torch.uint32),
        "u16": torch.tensor([65535, 1], dtype=torch.uint16),
        "u8": torch.tensor([255, 0, 1], dtype=torch.uint8),
        "bool": torch.tensor([True, False, True]),
        "scalar": torch.tensor(7.25),
        "empty": torch.zeros(2, 0),
        "empty.flat": torch.zeros(0, dtype=torch.bfloat16),
        "层.weight": torch.arange(6, dtype=torch.float32).reshape(1, 2, 3),
    }
    for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"):
        tensors[name] = torch.tensor([0x00, 0x80, 0x7F, 0x38, 0x01], dtype=torch.uint8).view(getattr(torch, name))
    save_file(tensors, folder / "library.safetensors", metadata={"format": "pt"})
    wanted = {
        name: [list(tensor.shape), tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes().hex()]
        for name, tensor in tensors.items()
    }
    write_json(folder / "library.json", wanted)

    packed = torch.tensor([[0x21, 0x43], [0x65, 0x87]], dtype=torch.uint8)
    spec = TensorSpec(dtype="float4_e2m1fn_x2", shape=[2, 2], data_ptr=packed.data_ptr(), data_len=4)
    serialize_file({"packed": spec}, folder / "f4.safetensors")

    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = torch.nn.Embedding(4, 2)
            self.head = torch.nn.Linear(2, 4, bias=False)
            self.head.weight = self.embed.weight

    save_model(Tied(), str(folder / "save_model.safetensors"))
    by = versions("torch", "safetensors")
    return dict.fromkeys(["library.safetensors", "library.json", "f4.safetensors", "save_model.safetensors"], by)


def library_folders(folder: Path) -> dict[str, str]:
    import torch
    from huggingface_hub import save_torch_state_dict
    from transformers import LlamaConfig, LlamaForCausalLM

    state = {f"layers.{n}.weight": torch.arange(8, dtype=torch.float32).reshape(2, 4) + n for n in range(5)}
    state["tied.weight"] = state["layers.3.weight"]
    (folder / "hub").mkdir()
    save_torch_state_dict(state, folder / "hub", max_shard_size=70)

    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1, "vocab_size": 16}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 32}
    model = LlamaForCausalLM(LlamaConfig(**sizes, **heads, tie_word_embeddings=True)).to(torch.bfloat16)
    model.save_pretrained(folder / "llama")
    return {
        **{path: versions("huggingface_hub", "torch", "safetensors") for path in inside(folder, "hub")},
        **{path: versions("transformers", "torch", "safetensors") for path in inside(folder, "llama")},
    }


def inside(folder: Path, name: str) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in sorted((folder / name).rglob("*")) if path.is_file()]


# --- malformed files: each breaks one rule


def file(header: Any, payload: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header, ensure_ascii=False).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + payload


def one(dtype: Any = "U8", shape: Any = (1,), offsets: Any = (0, 1), payload: bytes = b"\7", **more: Any) -> bytes:
    return file({"x": {"dtype": dtype, "shape": shape, "data_offsets": offsets, **more}}, payload)


def two(a: tuple[int, int], b: tuple[int, int], payload: bytes) -> bytes:
    ranges = {"a": a, "b": b}
    entries = {n: {"dtype": "U8", "shape": [e - s], "data_offsets": [s, e]} for n, (s, e) in ranges.items()}
    return file(entries, payload)


def with_metadata(value: str) -> bytes:
    entry = '"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}'
    return file(f'{{"__metadata__":{value},{entry}}}'.encode(), b"\7")


ENTRY = b'{"dtype":"U8","shape":[1],"data_offsets":[0,1]}'

MALFORMED: dict[str, bytes] = {
    "too_short": b"\x10\0\0",
    "header_beyond_end": file({}, length=1000),
    "header_length_2_63": file({}, length=1 << 63),
    "leading_space": file(b" {}"),
    "not_utf8": file(b'{"\xff":1}'),
    "not_json": file(b'{"x":'),
    "zero_padding": file(b"{}\0\0\0\0\0\0"),
    "nan": with_metadata('{"a":NaN}'),
    "nested": with_metadata("[" * 3000 + "]" * 3000),
    "long_number": file(b'{"x":{"dtype":"U8","shape":[%s],"data_offsets":[0,1]}}' % (b"1" * 5000), b"\7"),
    "half_surrogate": file(b'{"\\ud800":%s}' % ENTRY, b"\7"),
    "name_twice": file(b'{"a":%s,"a":%s}' % (ENTRY, ENTRY), b"\7"),
    "field_twice": file(b'{"x":{"dtype":"F32","dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"\7"),
    "entry_is_a_number": file({"x": 1}),
    "no_shape": file({"x": {"dtype": "U8", "data_offsets": [0, 1]}}, b"\7"),
    "dtype_unknown": one("Q4_K"),
    "dtype_lower_case": one("u8"),
    "dtype_is_a_number": one(3),
    "shape_is_a_number": one(shape=1),
    "shape_negative": one(shape=[-1, -1]),
    "shape_float": one(shape=[1.0]),
    "shape_bool": one(shape=[True]),
    "shape_nested": one(shape=[[1]]),
    "shape_2_63": one(shape=[1 << 63]),
    "shape_overflows": one(shape=[1 << 40, 1 << 40]),
    "shape_empty_and_endless": one(shape=[0, 1 << 40, 1 << 40], offsets=[0, 0], payload=b""),
    "shape_of_65_axes": one(shape=[1] * 65),
    "larger_than_its_bytes": one("F32", [1000, 1000], [0, 4], b"abcd"),
    "half_a_byte": one("F4", [3], [0, 2], b"ab"),
    "offsets_of_three": one(offsets=[0, 1, 2]),
    "offsets_reversed": one(offsets=[1, 0]),
    "offsets_negative": one(offsets=[-1, 0]),
    "offsets_float": one(offsets=[0.0, 1.0]),
    "offsets_of_text": one(offsets=["0", "1"]),
    "hole_at_start": one(offsets=[1, 2], payload=b"ab"),
    "hole_between": two((0, 1), (2, 3), b"abc"),
    "overlap": two((0, 3), (2, 4), b"abcd"),
    "same_offset": two((0, 8), (0, 8), b"abcdefgh"),
    "trailing_bytes": one(payload=b"\7more"),
}

ODD: dict[str, bytes] = {
    "metadata_0": with_metadata("0"),
    "metadata_null": with_metadata("null"),
    "metadata_empty": with_metadata("{}"),
    "metadata_list": with_metadata('["a"]'),
    "metadata_number": with_metadata('{"step":12,"format":"pt"}'),
    "metadata_nested": with_metadata('{"a":{"b":[1,null]}}'),
    "metadata_twice": with_metadata('{"a":"1","a":"2"}'),
    "metadata_foreign": with_metadata('{"tael.metadata":"[1]"}'),
    "unknown_field": one(requires_grad=True),
    "any_order": two((3, 4), (0, 3), b"abcd"),
    "cut": two((0, 4), (4, 8), b"abcdef"),
}


def main() -> None:
    shutil.rmtree(HERE, ignore_errors=True)
    HERE.mkdir()
    made = {**library_files(HERE), **library_folders(HERE)}
    for kind, files in (("malformed", MALFORMED), ("odd", ODD)):
        (HERE / kind).mkdir()
        for name, data in files.items():
            (HERE / kind / f"{name}.safetensors").write_bytes(data)
            made[f"{kind}/{name}.safetensors"] = BY_HAND
    for path in made:
        (HERE / path).chmod(0o644)  # the library leaves 0600
    write_json(HERE / "PROVENANCE.json", {"made with": sys.argv[0].rpartition("/")[2], "files": provenance(made)})


def provenance(made: dict[str, str]) -> dict[str, dict[str, str]]:
    return {
        path: {"by": by, "sha256": hashlib.sha256((HERE / path).read_bytes()).hexdigest()}
        for path, by in sorted(made.items())
    }


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
