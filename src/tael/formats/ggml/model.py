# SPDX-License-Identifier: Apache-2.0
"""What a GGML file holds, as GGUF says it: names, metadata, and the one tensor whose rows stand in another order.

A GGML header is short. What GGUF wants beyond it is taken from the tensors' shapes (feed-forward length, heads of keys)
or from what llama.cpp's own converters assume (rope base, context, epsilon); the latter is noted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from tael.core import ops
from tael.core.node import Node, Op
from tael.core.problem import Problem
from tael.core.tensor import Tensor
from tael.errors import TransformError
from tael.formats.ggml.header import Header
from tael.formats.ggml.names import gguf_name
from tael.formats.ggml.vocabulary import bpe, from_characters, sentencepiece, unigram

# ftype of the ggml examples -> general.file_type, where llama.cpp's numbers differ (its k-quants have sizes)
_FILE_TYPES = {12: 14, 13: 16, 14: 18}
_END = (b"<|endoftext|>", b"<|endoftext|>")
_STARCODER = (b"<fim_prefix>", b"<fim-prefix>")


class _Family(NamedTuple):
    pre: str  # tokenizer.ggml.pre
    epsilon: float
    ends: tuple[bytes, bytes] = _END


_FAMILIES: dict[str, _Family] = {
    "llama": _Family("default", 5e-6),
    "gpt2": _Family("gpt-2", 1e-5),
    "starcoder": _Family("starcoder", 1e-5),
    "gptj": _Family("gpt-2", 1e-5),
    "gptneox": _Family("gpt-2", 1e-5),
    "mpt": _Family("mpt", 1e-5),
    "bloom": _Family("bloom", 1e-5, (b"<s>", b"</s>")),
}


class Model(NamedTuple):
    """Tensors and metadata under GGUF's names; `names`: GGUF's -> the file's."""

    architecture: str
    tensors: list[Tensor]
    metadata: dict[str, Any]
    names: dict[str, str]
    problems: list[Problem]


def as_gguf(header: Header, tensors: Mapping[str, Tensor], where: str) -> Model:
    """`where`: the file, for problems. Raises `TransformError` when two tensors would get one name."""
    architecture = _architecture(header, tensors)
    renamed: list[Tensor] = []
    names: dict[str, str] = {}
    unknown: list[str] = []
    for name, tensor in tensors.items():
        new = gguf_name(header.layout.id, name)
        if new is None:
            new = name
            unknown.append(name)
        if new in names:
            raise TransformError("this is the GGUF name of two tensors of the file", path=where, tensor=new)
        names[new] = name
        if architecture == "gptneox" and ".attn_qkv." in new and not tensor.damaged:
            tensor = replace(tensor, data=_by_role(tensor.data, header.params["n_head"]))
        renamed.append(tensor.renamed(new))
    shapes = {tensor.name: tensor.shape for tensor in renamed}
    metadata, assumed = _metadata(architecture, header, shapes)
    metadata |= _vocabulary(architecture, header)
    problems = [Problem("note", f"not in a GGML header, so assumed: {', '.join(assumed)}", where)]
    if unknown:
        some = ", ".join(unknown[:3]) + (", ..." if len(unknown) > 3 else "")
        what = f"{len(unknown):,} names are not those of {header.layout.title} and stay as they are: {some}"
        problems.append(Problem("note", what[:400], where))
    embedding = header.params["n_embd"]
    if header.layout.id == "gpt2" and shapes.get("blk.0.attn_qkv.weight") == (embedding, 3 * embedding):
        what = "matrices are stored transposed, as in 2022: llama.cpp will not load what is made of it"
        problems.append(Problem("warning", what, where))
    if architecture == "gptj":
        problems.append(Problem("note", "llama.cpp knows the names of GPT-J, but does not run it", where))
    if architecture == "llama" and not header.scores:
        problems.append(Problem("note", "holds no scores of words: they are taken from the words' order", where))
    return Model(architecture, renamed, metadata, names, problems)


def _architecture(header: Header, tensors: Mapping[str, Tensor]) -> str:
    """Three families share GPT-2's header and names."""
    layout = header.layout.id
    if layout == "replit":
        return "mpt"
    if layout == "gpt2" and "model/ln_wte/g" in tensors:
        return "bloom"
    if layout == "gpt2" and any(word in header.words for word in _STARCODER):
        return "starcoder"
    return layout


def _metadata(
    architecture: str, header: Header, shapes: Mapping[str, Sequence[int]]
) -> tuple[dict[str, Any], list[str]]:
    """GGUF's keys, and what among them is a guess, as text."""
    params, epsilon = header.params, _FAMILIES[architecture].epsilon
    embedding, heads = params["n_embd"], params["n_head"]
    keys: dict[str, Any] = {
        "context_length": params.get("n_ctx") or 2048,
        "embedding_length": embedding,
        "block_count": params["n_layer"],
        "feed_forward_length": _rows(shapes, "blk.0.ffn_up.weight") or 4 * embedding,
        "attention.head_count": heads,
    }
    assumed = [] if params.get("n_ctx") else ["a context of 2,048 words"]
    if architecture == "llama":
        # Keys and values of fewer heads (LLaMA 2 70B) show in the rows of their projection.
        rows = _rows(shapes, "blk.0.attn_k.weight") or embedding
        groups, rest = divmod(rows * heads, embedding)
        keys["attention.head_count_kv"] = groups if groups and not rest else heads
        keys["rope.dimension_count"] = params["n_rot"] or embedding // heads
        epsilon = epsilon if keys["attention.head_count_kv"] == heads else 1e-5
        keys["attention.layer_norm_rms_epsilon"] = epsilon
    else:
        keys["attention.layer_norm_epsilon"] = epsilon
    assumed.append(f"an epsilon of {epsilon:g}")
    if architecture in ("llama", "gptneox", "gptj"):
        assumed.append("a rope base of 10,000")
    if "par_res" in header.layout.given:
        assumed.append("parallel residuals")
    if architecture in ("gptneox", "gptj"):
        keys["rope.dimension_count"] = params["n_rot"]
    if architecture == "gptneox":
        keys["use_parallel_residual"] = bool(params["par_res"])
    if architecture == "mpt":
        keys["attention.max_alibi_bias"] = header.floats["alibi_bias_max"]
        if header.floats["clip_qkv"] > 0:
            keys["attention.clamp_kqv"] = header.floats["clip_qkv"]
    file_type = params["ftype"]
    general = {
        "general.architecture": architecture,
        "general.file_type": file_type if architecture == "llama" else _FILE_TYPES.get(file_type, file_type),
    }
    if file_type > 1:
        general["general.quantization_version"] = 2
    return general | {f"{architecture}.{key}": value for key, value in keys.items()}, assumed


def _rows(shapes: Mapping[str, Sequence[int]], name: str) -> int:
    return shapes[name][0] if len(shapes.get(name, ())) == 2 else 0


def _vocabulary(architecture: str, header: Header) -> dict[str, Any]:
    if header.layout.id == "llama":
        return sentencepiece(header.words, header.scores)
    if header.layout.id == "replit":
        return unigram(header.words, header.scores)
    words = from_characters(header.words) if architecture == "mpt" else header.words
    family = _FAMILIES[architecture]
    return bpe(words, family.pre, family.ends)


def _by_role(node: Node, heads: int) -> Node:
    """GPT-NeoX stores query, key and value of head 0, then of head 1, ...; GGUF all queries, all keys, all values.

    Whole rows move, so that blocks stay whole; a bias moves number by number.
    """
    rows, *row = node.shape
    each, rest = divmod(rows, 3 * heads)
    if rest or not (row or node.dtype.is_plain):
        return node  # no GPT-NeoX: the shapes show it
    shape = (heads, 3, each, *row)
    apart = replace(node, shape=shape) if isinstance(node, Op) else ops.reshape(node, shape)  # re-packing knows no rows
    return ops.reshape(ops.transpose(apart, (1, 0, *range(2, len(shape)))), node.shape)
