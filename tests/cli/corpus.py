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
model-f16.gguf      a llama of 2 layers in F16, its rows as long as a block of Q4_K; template.jinja: a chat template
model.gguf          the same with names, a vocabulary of 8 words and metadata to edit
narrow.gguf         one whose rows no block of 256 divides; imatrix.gguf: importances for model-f16.gguf
pointer.safetensors a Git LFS pointer; page.safetensors: an HTML page; empty.pt: nothing
"""

from __future__ import annotations

import json
import shutil
import struct
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
    _gguf_files(folder)
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


def gguf(arrays: Arrays, metadata: dict[str, object]) -> bytes:
    """A GGUF file by the specification: text, whole numbers as u32, others as f32, lists of texts."""

    def text(value: str) -> bytes:
        return len(value.encode()).to_bytes(8, "little") + value.encode()

    def typed(value: object) -> bytes:
        if isinstance(value, list):
            return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(text, value))
        if isinstance(value, str):
            return struct.pack("<I", 8) + text(value)
        return struct.pack("<II", 4, value) if isinstance(value, int) else struct.pack("<If", 6, value)

    head = b"GGUF" + struct.pack("<IQQ", 3, len(arrays), len(metadata))
    head += b"".join(text(key) + typed(value) for key, value in metadata.items())
    data = b""
    for name, array in arrays.items():
        lengths = b"".join(struct.pack("<Q", n) for n in reversed(array.shape))
        kind = {"float32": 0, "float16": 1}[array.dtype.name]
        head += text(name) + struct.pack("<I", array.ndim) + lengths + struct.pack("<IQ", kind, len(data))
        data += array.tobytes() + bytes(-array.nbytes % 32)
    return head + bytes(-len(head) % 32) + data


def _gguf_files(folder: Path) -> None:
    width, words = 256, ["<unk>", "<s>", "</s>", "the", "cat", "sat", "on", "mat"]
    shapes: dict[str, tuple[int, ...]] = {"token_embd": (8, width), "output_norm": (width,), "output": (8, width)}
    for layer in range(2):
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in {
            "attn_norm": (width,), "attn_q": (width, width), "attn_k": (64, width), "attn_v": (64, width),
            "attn_output": (width, width), "ffn_norm": (width,), "ffn_gate": (512, width), "ffn_up": (512, width),
            "ffn_down": (width, 512),
        }.items()}  # fmt: skip
    arrays = {
        f"{name}.weight": values(shape, seed).astype(np.float32 if len(shape) == 1 else np.float16)
        for seed, (name, shape) in enumerate(shapes.items())
    }
    facts: dict[str, object] = {
        "general.architecture": "llama", "general.name": "tiny", "general.file_type": 1, "llama.block_count": 2,
        "llama.context_length": 512, "llama.embedding_length": width, "llama.feed_forward_length": 512,
        "llama.attention.head_count": 4, "llama.attention.head_count_kv": 1,
        "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.rope.dimension_count": 64,
    }  # fmt: skip
    (folder / "model-f16.gguf").write_bytes(gguf(arrays, facts))
    facts |= {"general.url": "https://example.org/tiny", "general.tags": ["text-generation"]}
    facts |= {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": words}
    facts |= {"tokenizer.chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}"}
    (folder / "model.gguf").write_bytes(gguf(arrays, facts))
    (folder / "template.jinja").write_text("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}\n")
    narrow = {"blk.0.attn_q.weight": (4, 288), "blk.0.attn_k.weight": (4, 256), "blk.0.attn_v.weight": (4, 100)}
    bad = values((4, 256), 7).astype(np.float16)
    bad[2, 30] = np.nan
    arrays = {name: values(shape, 5).astype(np.float16) for name, shape in narrow.items()}
    (folder / "narrow.gguf").write_bytes(gguf(arrays, {"general.architecture": "llama", "llama.block_count": 1}))
    (folder / "nan.gguf").write_bytes(gguf({"blk.0.attn_q.weight": bad}, {"general.architecture": "llama"}))
    importance: Arrays = {}
    for name, shape in shapes.items():
        if name.startswith("blk.") and len(shape) == 2:
            importance[f"{name}.weight.in_sum2"] = np.abs(values((1, shape[1]), 11)) + np.float32(0.01)
            importance[f"{name}.weight.counts"] = np.ones((1, 1), np.float32)
    facts = {"general.type": "imatrix", "imatrix.datasets": ["tiny.txt"], "imatrix.chunk_count": 1}
    (folder / "imatrix.gguf").write_bytes(gguf(importance, facts))


def _many(folder: Path) -> None:
    with open(folder / "many.npz", "wb") as file:
        np.savez(file, **{f"blocks.{n // 10}.experts.{n % 10}.w": np.zeros(n % 7, np.float32) for n in range(1000)})


def _hostile(folder: Path) -> None:
    names = ["\x1b[2J\x1b[1;31mowned", "two\nlines", "\u202egnp.tensor", "x" * 3000, "权重.weight"]
    arrays = {name: values((2, 2), seed) for seed, name in enumerate(names)}
    metadata = {"\x1b]0;title\x07": "\x1b[31mred", "note": "first\nsecond", "long": "blah " * 2000}
    (folder / "hostile.safetensors").write_bytes(safetensors(arrays, metadata))
