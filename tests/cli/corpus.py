# SPDX-License-Identifier: Apache-2.0
"""The small files that the documentation and the command tests work on. Every value is exact on every machine.

model.safetensors   a language model of 0.5 M parameters with the names of a real one
model.pt            the same, written by tael as PyTorch
tuned.safetensors   the same after "training": values of one tensor changed, one tensor retyped, one added, one gone
sharded/            the same as a Hugging Face folder of three shards; broken/ is the same without its second shard
train.ckpt          a training checkpoint of real PyTorch, with optimizer and averages
large.safetensors   values beyond float16
many.npz            the names of a checkpoint with 1,000 tensors
hostile.safetensors names and metadata that try to draw on the terminal
cut.safetensors     model.safetensors, its last 100,000 bytes missing
pointer.safetensors a Git LFS pointer; page.safetensors: an HTML page; empty.pt: nothing
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np

import tael

VECTORS = Path(__file__).parents[1] / "vectors"
HIDDEN, INNER, LAYERS, VOCABULARY = 64, 176, 4, 2048
Arrays = dict[str, np.ndarray]


def values(shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Float32 values in -0.5 ... 0.5 from integers alone."""
    index = np.arange(int(np.prod(shape)), dtype=np.uint64) + np.uint64(seed * 1_000_003)
    mixed = (index * np.uint64(2654435761)) % np.uint64(2**24)
    return (mixed.astype(np.float32) / np.float32(2**24) - np.float32(0.5)).reshape(shape)


def language_model() -> Arrays:
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN)}
    for layer in range(LAYERS):
        shapes |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in {
            "input_layernorm": (HIDDEN,),
            "self_attn.q_proj": (HIDDEN, HIDDEN), "self_attn.k_proj": (HIDDEN // 4, HIDDEN),
            "self_attn.v_proj": (HIDDEN // 4, HIDDEN), "self_attn.o_proj": (HIDDEN, HIDDEN),
            "post_attention_layernorm": (HIDDEN,),
            "mlp.gate_proj": (INNER, HIDDEN), "mlp.up_proj": (INNER, HIDDEN), "mlp.down_proj": (HIDDEN, INNER),
        }.items()}  # fmt: skip
    shapes["model.norm.weight"] = (HIDDEN,)
    return {name: values(shape, seed) for seed, (name, shape) in enumerate(shapes.items())}


def safetensors(arrays: Arrays, metadata: dict[str, str] | None = None) -> bytes:
    """A file by the specification, written here so that what the tests read is not what tael wrote."""
    names = {"float32": "F32", "float16": "F16", "int64": "I64"}
    header: dict[str, object] = {"__metadata__": metadata} if metadata else {}
    at = 0
    for name, array in arrays.items():
        header[name] = {
            "dtype": names[array.dtype.name], "shape": list(array.shape), "data_offsets": [at, at + array.nbytes]
        }  # fmt: skip
        at += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(array.tobytes() for array in arrays.values())


def build(folder: Path) -> None:
    """Write all of it into `folder`."""
    model = language_model()
    whole = safetensors(model, {"format": "pt"})
    (folder / "model.safetensors").write_bytes(whole)
    (folder / "cut.safetensors").write_bytes(whole[:-100_000])
    tael.convert(folder / "model.safetensors", folder / "model.pt")
    tael.convert(folder / "model.safetensors", folder / "sharded", shard_size=800_000)
    tael.convert(folder / "model.safetensors", folder / "broken", shard_size=800_000)
    sorted((folder / "broken").glob("*.safetensors"))[1].unlink()
    shutil.copy(VECTORS / "cli" / "train.ckpt", folder)
    _tuned(folder, model)
    _many(folder)
    large = {"fits": np.array([1, -2, 65504], np.float32), "does.not": np.array([1, 1e6, np.nan, -1e38], np.float32)}
    (folder / "large.safetensors").write_bytes(safetensors(large))
    _hostile(folder)
    (folder / "pointer.safetensors").write_text(
        f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0123456789abcdef' * 4}\nsize 4976698672\n"
    )
    (folder / "page.safetensors").write_text("<!DOCTYPE html><html><head><title>Sign in</title></head></html>")
    (folder / "empty.pt").write_bytes(b"")


def _tuned(folder: Path, model: Arrays) -> None:
    tuned = dict(model)
    del tuned["model.layers.3.mlp.down_proj.weight"]
    tuned["model.norm.weight"] = model["model.norm.weight"] + np.float32(0.25)
    tuned["model.layers.0.mlp.up_proj.weight"] = model["model.layers.0.mlp.up_proj.weight"].astype(np.float16)
    tuned["lm_head.weight"] = values((VOCABULARY, HIDDEN), 99)
    (folder / "tuned.safetensors").write_bytes(safetensors(tuned, {"format": "pt", "epoch": "3"}))


def _many(folder: Path) -> None:
    with open(folder / "many.npz", "wb") as file:
        np.savez(file, **{f"blocks.{n // 10}.experts.{n % 10}.w": np.zeros(n % 7, np.float32) for n in range(1000)})


def _hostile(folder: Path) -> None:
    names = ["\x1b[2J\x1b[1;31mowned", "two\nlines", "\u202egnp.tensor", "x" * 3000, "权重.weight"]
    arrays = {name: values((2, 2), seed) for seed, name in enumerate(names)}
    metadata = {"\x1b]0;title\x07": "\x1b[31mred", "note": "first\nsecond", "long": "blah " * 2000}
    (folder / "hostile.safetensors").write_bytes(safetensors(arrays, metadata))
