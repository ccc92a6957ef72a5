# SPDX-License-Identifier: Apache-2.0
"""GGML files made by hand, for tests and golden files: headers, words and tensors of every layout, tiny models."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

MAGICS = {"ggml": b"lmgg", "ggmf": b"fmgg", "ggjt": b"tjgg"}
CODES = {
    "F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8,
    "Q2_K": 10, "Q3_K": 11, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14,
}  # fmt: skip
FTYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 8, "Q5_1": 9, "Q8_0": 7}

Record = tuple[str, str, Sequence[int], bytes]  # name, type, shape (slowest first), data


def numbers(*values: float) -> bytes:
    """i32 for integers, f32 for the rest."""
    return b"".join(struct.pack("<f" if isinstance(value, float) else "<i", value) for value in values)


def words(items: Sequence[bytes], scores: Sequence[float] | None = None) -> bytes:
    out = bytearray()
    for index, item in enumerate(items):
        out += struct.pack("<i", len(item)) + item
        if scores is not None:
            out += struct.pack("<f", scores[index])
    return bytes(out)


def records(items: Sequence[Record], start: int, aligned: bool) -> bytes:
    """`start`: where in the file they will stand."""
    out = bytearray()
    for name, kind, shape, data in items:
        spelled = name.encode("utf-8", "surrogateescape")
        out += numbers(len(shape), len(spelled), CODES[kind], *reversed(shape)) + spelled
        if aligned:
            out += bytes(-(start + len(out)) % 32)
        out += data
    return bytes(out)


def file(magic: str, version: int | None, fields: bytes, vocabulary: bytes, items: Sequence[Record]) -> bytes:
    head = MAGICS[magic] + (b"" if version is None else numbers(version)) + fields + vocabulary
    return head + records(items, len(head), magic == "ggjt")


# --- vocabularies


def byte_words(special: bytes = b"<|endoftext|>") -> list[bytes]:
    """All bytes, a few merges in their order, and the word that ends a text."""
    merged = [b"he", b"ll", b" t", b"hell", b"hello", b"in", b" th", b" the", b"an", b"and"]
    return [*(bytes([byte]) for byte in range(256)), *merged, special]


def pieces() -> tuple[list[bytes], list[float]]:
    """A SentencePiece vocabulary as llama.cpp's converters wrote it: 3 special pieces, 256 bytes, merges."""
    merged = [b" t", b"he", b" the", b"ll", b"in", b" he", b" hell", b"o", b" ", b"h", b"e", b"l", b"t", b"i", b"n"]
    items = [b" \xe2\x81\x87 ", b"", b"", *(bytes([byte]) for byte in range(256)), *merged]
    return items, [0.0] * 259 + [float(-n) for n in range(len(merged))]


# --- blocks, as ggml of the time made them. Codes are chosen, not searched: these are files, not a quantizer


def q4_0(values: np.ndarray, version: int) -> bytes:
    """version 1: F32 scale, codes 2j and 2j+1 in a byte. 2: F32 scale, codes j and 16+j. 3: F16 scale."""
    rows = values.astype(np.float32).reshape(-1, 32)
    top = rows[np.arange(len(rows)), np.abs(rows).argmax(axis=1)]
    scale = (top / -8).astype(np.float16).astype(np.float32)
    codes = np.clip(np.rint(rows / np.where(scale == 0, 1, scale)[:, None]) + 8, 0, 15).astype(np.uint8)
    packed = codes[:, 0::2] | codes[:, 1::2] << 4 if version == 1 else codes[:, :16] | codes[:, 16:] << 4
    head = scale.astype("<f4" if version < 3 else "<f2")[:, None].view(np.uint8)
    return np.hstack([head, packed]).tobytes()


def q8_0(values: np.ndarray, version: int) -> bytes:
    rows = values.astype(np.float32).reshape(-1, 32)
    scale = (np.abs(rows).max(axis=1) / 127).astype(np.float16).astype(np.float32)
    codes = np.clip(np.rint(rows / np.where(scale == 0, 1, scale)[:, None]), -127, 127).astype(np.int8)
    head = scale.astype("<f4" if version < 3 else "<f2")[:, None].view(np.uint8)
    return np.hstack([head, codes.view(np.uint8)]).tobytes()


_ENCODE: dict[str, Callable[[np.ndarray, int], bytes]] = {
    "F32": lambda values, version: values.astype("<f4").tobytes(),
    "F16": lambda values, version: values.astype("<f2").tobytes(),
    "Q4_0": q4_0,
    "Q8_0": q8_0,
}


# --- tiny models


class Size(NamedTuple):
    embd: int = 32
    heads: int = 2
    layers: int = 1
    ctx: int = 64
    mult: int = 32

    @property
    def ff(self) -> int:
        """LLaMA's feed-forward length."""
        return (2 * 4 * self.embd // 3 + self.mult - 1) // self.mult * self.mult


TINY = Size()


def _weights(names: dict[str, tuple[int, ...]], kind: str, version: int, seed: int) -> list[Record]:
    """Matrices of `kind`, vectors F32; norms near 1. wpe stays F32, as the loaders want it."""
    random = np.random.default_rng(seed)
    out: list[Record] = []
    for name, shape in names.items():
        values = random.normal(0, 0.4 if len(shape) == 2 else 0.1, shape).astype(np.float32)
        if len(shape) == 1 and "norm" in name + name.replace("ln", "norm") and not name.endswith(("/b", ".bias")):
            values += 1
        each = "F32" if len(shape) == 1 or name == "model/wpe" else kind
        out.append((name, each, shape, _ENCODE[each](values, version)))
    return out


def llama(magic: str = "ggjt", version: int | None = 3, kind: str = "F16", size: Size = TINY, seed: int = 1) -> bytes:
    items, scores = pieces()
    e, v = size.embd, len(items)
    names: dict[str, tuple[int, ...]] = {"tok_embeddings.weight": (v, e), "norm.weight": (e,), "output.weight": (v, e)}
    for n in range(size.layers):
        names |= {f"layers.{n}.attention.w{x}.weight": (e, e) for x in "qkvo"}
        names |= {f"layers.{n}.attention_norm.weight": (e,), f"layers.{n}.ffn_norm.weight": (e,)}
        names |= {f"layers.{n}.feed_forward.w{x}.weight": (e, size.ff) if x == 2 else (size.ff, e) for x in (1, 2, 3)}
    fields = numbers(v, e, size.mult, size.heads, size.layers, e // size.heads, FTYPES[kind])
    blocks = version or 1 if magic == "ggjt" else 1
    return file(
        magic, version, fields, words(items, scores if magic != "ggml" else None), _weights(names, kind, blocks, seed)
    )


def gpt2(kind: str = "F16", version: int = 3, size: Size = TINY, *, head: bool = False, seed: int = 2) -> bytes:
    return _gpt2_like(kind, version, size, byte_words(), head, seed)


def starcoder(kind: str = "F16", version: int = 3, size: Size = TINY, seed: int = 3) -> bytes:
    return _gpt2_like(kind, version, size, [*byte_words(), b"<fim-prefix>"], True, seed)


def _gpt2_like(kind: str, version: int, size: Size, items: list[bytes], head: bool, seed: int) -> bytes:
    e, v = size.embd, len(items)
    names: dict[str, tuple[int, ...]] = {"model/ln_f/g": (e,), "model/ln_f/b": (e,)}
    names |= {"model/wte": (v, e), "model/wpe": (size.ctx, e)} | ({"model/lm_head": (v, e)} if head else {})
    for n in range(size.layers):
        for norm in ("ln_1", "ln_2"):
            names |= {f"model/h{n}/{norm}/g": (e,), f"model/h{n}/{norm}/b": (e,)}
        for part, out, of in (
            ("attn/c_attn", 3 * e, e),
            ("attn/c_proj", e, e),
            ("mlp/c_fc", 4 * e, e),
            ("mlp/c_proj", e, 4 * e),
        ):
            names |= {f"model/h{n}/{part}/w": (out, of), f"model/h{n}/{part}/b": (out,)}
    fields = numbers(v, size.ctx, e, size.heads, size.layers, FTYPES[kind] + 1000 * (version - 1))
    return file("ggml", None, fields, numbers(v) + words(items), _weights(names, kind, version, seed))


def gptneox(
    kind: str = "F16", version: int = 3, size: Size = TINY, *, parallel: int | None = 1, seed: int = 4
) -> bytes:
    """`parallel` None: the first header, without the field."""
    items = byte_words()
    e, v = size.embd, len(items)
    names: dict[str, tuple[int, ...]] = {"gpt_neox.embed_in.weight": (v, e)}
    for n in range(size.layers):
        parts = {
            "input_layernorm": (e,),
            "post_attention_layernorm": (e,),
            "attention.query_key_value": (3 * e, e),
            "attention.dense": (e, e),
            "mlp.dense_h_to_4h": (4 * e, e),
            "mlp.dense_4h_to_h": (e, 4 * e),
        }
        for part, shape in parts.items():
            names |= {f"gpt_neox.layers.{n}.{part}.weight": shape, f"gpt_neox.layers.{n}.{part}.bias": shape[:1]}
    names |= {f"gpt_neox.final_layer_norm.{x}": (e,) for x in ("weight", "bias")} | {"embed_out.weight": (v, e)}
    variant = [] if parallel is None else [parallel]
    rotated = e // size.heads // 2
    fields = numbers(v, size.ctx, e, size.heads, size.layers, rotated, *variant, FTYPES[kind] + 1000 * (version - 1))
    return file("ggml", None, fields, words(items), _weights(names, kind, version, seed))


def gptj(kind: str = "F16", version: int = 3, size: Size = TINY, seed: int = 5) -> bytes:
    items = byte_words()
    e, v = size.embd, len(items)
    names: dict[str, tuple[int, ...]] = {"transformer.wte.weight": (v, e)}
    for n in range(size.layers):
        names |= {f"transformer.h.{n}.ln_1.{x}": (e,) for x in ("weight", "bias")}
        names |= {f"transformer.h.{n}.attn.{x}_proj.weight": (e, e) for x in ("q", "k", "v", "out")}
        names |= {f"transformer.h.{n}.mlp.fc_in.weight": (4 * e, e), f"transformer.h.{n}.mlp.fc_in.bias": (4 * e,)}
        names |= {f"transformer.h.{n}.mlp.fc_out.weight": (e, 4 * e), f"transformer.h.{n}.mlp.fc_out.bias": (e,)}
    names |= {f"transformer.ln_f.{x}": (e,) for x in ("weight", "bias")}
    names |= {"lm_head.weight": (v, e), "lm_head.bias": (v,)}
    fields = numbers(v, size.ctx, e, size.heads, size.layers, e // size.heads, FTYPES[kind] + 1000 * (version - 1))
    return file("ggml", None, fields, numbers(v) + words(items), _weights(names, kind, version, seed))


def mpt(kind: str = "F16", version: int = 3, size: Size = TINY, *, clip: float = 0.0, seed: int = 6) -> bytes:
    """A byte is the character of its number, in UTF-8."""
    items = [item.decode("latin-1").encode() for item in byte_words()]
    fields = numbers(
        size.embd, size.ctx, size.heads, size.layers, len(items), 8.0, clip, FTYPES[kind] + 1000 * (version - 1)
    )
    return file("ggml", None, fields, words(items), _mpt_weights(len(items), kind, version, size, seed))


def replit(kind: str = "F16", version: int = 3, size: Size = TINY, seed: int = 7) -> bytes:
    letters = [bytes([byte]) for byte in range(33, 127)]
    mark = "\u2581".encode()
    items = [b"<|unk|>", b"<|endoftext|>", b"<|pad|>", mark, *letters, mark + b"the", b"he", b"ll", b"hello"]
    scores = [-1.0 - 0.25 * n for n in range(len(items))]
    fields = numbers(size.embd, size.ctx, size.heads, size.layers, len(items), FTYPES[kind] + 1000 * (version - 1))
    return file("ggml", None, fields, words(items, scores), _mpt_weights(len(items), kind, version, size, seed))


def _mpt_weights(v: int, kind: str, version: int, size: Size, seed: int) -> list[Record]:
    e = size.embd
    names: dict[str, tuple[int, ...]] = {"transformer.wte.weight": (v, e), "transformer.norm_f.weight": (e,)}
    for n in range(size.layers):
        parts = {
            "norm_1": (e,),
            "attn.Wqkv": (3 * e, e),
            "attn.out_proj": (e, e),
            "norm_2": (e,),
            "ffn.up_proj": (4 * e, e),
            "ffn.down_proj": (e, 4 * e),
        }
        names |= {f"transformer.blocks.{n}.{part}.weight": shape for part, shape in parts.items()}
    return _weights(names, kind, version, seed)


def bloom(kind: str = "F16", size: Size = TINY, seed: int = 8) -> bytes:
    items = [b"<unk>", b"<s>", b"</s>", *byte_words(b"<pad>")]
    e, v = size.embd, len(items)
    names: dict[str, tuple[int, ...]] = {"tok_embeddings.weight": (v, e), "output.weight": (v, e)}
    names |= {f"{part}.{x}": (e,) for part in ("norm", "output_norm") for x in ("weight", "bias")}
    for n in range(size.layers):
        parts = {
            "attention_norm": (e,),
            "attention.query_key_value": (3 * e, e),
            "attention.wo": (e, e),
            "ffn_norm": (e,),
            "feed_forward.w1": (4 * e, e),
            "feed_forward.w2": (e, 4 * e),
        }
        for part, shape in parts.items():
            names |= {f"layers.{n}.{part}.weight": shape, f"layers.{n}.{part}.bias": shape[:1]}
    fields = numbers(v, e, 1, size.heads, size.layers, FTYPES[kind])
    return file("ggml", None, fields, words(items), _weights(names, kind, 1, seed))
