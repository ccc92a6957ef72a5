# SPDX-License-Identifier: Apache-2.0
"""What `inspect` says of a header: sums, roles, the tree of modules, sizes in other precisions, the JSON document."""

from __future__ import annotations

import json
import math
import time

import numpy as np
import pytest

from building import checkpoint, tensor
from tael.core.checkpoint import Checkpoint
from tael.core.dtypes import DTYPES
from tael.core.node import Contiguous, Span
from tael.core.problem import Problem
from tael.core.source import BytesSource
from tael.core.tensor import Tensor, TensorInfo
from tael.inspection.modules import module_tree
from tael.inspection.roles import roles
from tael.inspection.summary import Share, predict, predict_parameters, summarize, to_json


def info(name: str, *shape: int, kind: str = "F32") -> TensorInfo:
    return TensorInfo(name, DTYPES[kind], shape)


def llama(layers: int = 3) -> Checkpoint:
    half = np.float16
    contents: dict[str, np.ndarray] = {"model.embed_tokens.weight": np.zeros((16, 8), half)}
    for k in range(layers):
        contents |= {
            f"model.layers.{k}.self_attn.q_proj.weight": np.zeros((8, 8), half),
            f"model.layers.{k}.mlp.up.weight": np.zeros((12, 8), half),
            f"model.layers.{k}.input_layernorm.weight": np.zeros(8, np.float32),
        }
    contents |= {"model.norm.weight": np.zeros(8, np.float32), "step": np.array(3, np.int64)}
    return checkpoint(
        contents,
        aliases={"lm_head.weight": "model.embed_tokens.weight"},
        metadata={"format": "pt"},
        problems=[Problem("note", "odd", "file", "step")],
    )


def test_sums_count_ties_once() -> None:
    found = summarize(llama())
    assert (found.format, found.path, found.tensors) == ("memory", "memory", 13)
    assert found.aliases == {"lm_head.weight": "model.embed_tokens.weight"}
    halves, floats = 16 * 8 + 3 * (64 + 96), 4 * 8
    assert found.parameters == halves + floats + 1
    assert found.nbytes == 2 * halves + 4 * floats + 8
    assert found.dtypes == (
        Share("F16", 8, halves, 2 * halves),
        Share("F32", 4, floats, 4 * floats),
        Share("I64", 1, 1, 8),
    )
    assert {share.name: share.parameters for share in found.roles} == {
        "weight": 480,
        "embedding": 128,
        "norm scale": 32,
        "other": 1,
    }
    assert [largest.name for largest in found.largest[:2]] == [
        "model.embed_tokens.weight",
        "model.layers.0.mlp.up.weight",
    ]
    assert found.metadata == {"format": "pt"}
    assert found.problems == (Problem("note", "odd", "file", "step"),)


# --- the tree


def test_layers_are_one_branch() -> None:
    root = summarize(llama()).modules
    assert list(root.children) == ["model", "step", "lm_head"]
    assert (root.tensors, root.parameters) == (13, 641)
    layers = root.children["model"].children["layers.*"]
    assert (layers.path, layers.repeats, layers.tensors, layers.parameters) == ("model.layers.*", 3, 9, 3 * 168)
    leaf = layers.children["mlp"].children["up"].children["weight"]
    assert (leaf.dtype, leaf.shape, leaf.tensors, leaf.nbytes) == ("F16", (12, 8), 3, 3 * 192)
    assert not leaf.children
    assert root.children["lm_head"].parameters == 0


def test_experts_count_within_a_layer() -> None:
    root = module_tree(info(f"h.{i}.experts.{k}.w", 2) for i in range(5) for k in range(8))
    layers = root.children["h.*"]
    assert (layers.repeats, layers.children["experts.*"].repeats) == (5, 8)


def test_other_spellings_and_shapes() -> None:
    root = module_tree(
        [
            info("encoder/layer_0/kernel:0", 2, 2),
            info("encoder/layer_1/kernel:0", 3, 2),
            info("0.weight", 1),
            info("2.0.1.weight", 1),
            info("a..b", 1),
            info("literal.*.star", 1),
            info("x" + ".y" * 100, 1),
            info("", 1),
        ]
    )
    layer = root.children["encoder"].children["layer_*"]
    assert (layer.repeats, layer.children["kernel:0"].shape, layer.children["kernel:0"].dtype) == (2, None, "F32")
    assert root.children["*"].repeats == 2
    assert root.tensors == 8
    depth, node = 0, root.children["x"]
    while node.children:
        depth, node = depth + 1, next(iter(node.children.values()))
    assert depth == 16


def test_a_tensor_that_is_also_a_module() -> None:
    root = module_tree([info("a", 2), info("a.b", 3)])
    assert root.children["a"].parameters == 5
    assert root.children["a"].children["b"].parameters == 3


# --- roles


@pytest.mark.parametrize(
    ("name", "shape", "role"),
    [
        ("model.layers.0.self_attn.q_proj.weight", (8, 8), "weight"),
        ("model.layers.0.self_attn.q_proj.bias", (8,), "bias"),
        ("model.layers.0.input_layernorm.weight", (8,), "norm scale"),
        ("bert.encoder.layer.0.output.LayerNorm.gamma", (8,), "norm scale"),
        ("bert.encoder.layer.0.output.LayerNorm.beta", (8,), "norm shift"),
        ("bert.embeddings.LayerNorm.bias", (8,), "norm shift"),
        ("bert.embeddings.word_embeddings.weight", (30, 8), "embedding"),
        ("bert.embeddings.token_type_embeddings.weight", (2, 8), "embedding"),
        ("bert.embeddings.position_embeddings.weight", (9, 8), "position"),
        ("bert.embeddings.position_ids", (1, 9), "position"),
        ("transformer.wte.weight", (30, 8), "embedding"),
        ("transformer.wpe.weight", (9, 8), "position"),
        ("transformer.h.0.ln_1.weight", (8,), "norm scale"),
        ("transformer.h.0.ln_1.bias", (8,), "norm shift"),
        ("transformer.ln_f.weight", (8,), "norm scale"),
        ("shared.weight", (30, 8), "embedding"),
        ("encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight", (32, 8), "position"),
        ("encoder.layers.0.self_attn.rotary_emb.inv_freq", (4,), "position"),
        ("vit.embeddings.cls_token", (1, 1, 8), "embedding"),
        ("vit.embeddings.position_embedding", (1, 9, 8), "position"),
        ("vit.embeddings.patch_embeddings.projection.weight", (8, 3, 4, 4), "weight"),
        ("patch_embedding.weight", (8, 3, 4, 4), "weight"),
        ("norm1.linear.weight", (16, 8), "weight"),
        ("norm1.linear.bias", (16,), "bias"),
        ("layer1.0.bn1.running_mean", (8,), "other"),
        ("layer1.0.bn1.num_batches_tracked", (), "other"),
        ("layer1.0.bn1.weight", (8,), "norm scale"),
        ("token_embd.weight", (30, 8), "embedding"),
        ("blk.0.attn_norm.weight", (8,), "norm scale"),
        ("blk.0.attn_q.weight", (8, 8), "weight"),
        ("output_norm.weight", (8,), "norm scale"),
        ("output.weight", (30, 8), "weight"),
        ("rope_freqs.weight", (4,), "position"),
        ("bert/encoder/layer_0/attention/self/query/kernel:0", (8, 8), "weight"),
        ("batch_normalization/gamma:0", (8,), "norm scale"),
        ("encoder/LayerNorm_0/scale", (8,), "norm scale"),
        ("encoder/Dense_0/kernel", (8, 8), "weight"),
        ("token_embedder/embedding", (30, 8), "embedding"),
        ("linear/b", (8,), "bias"),
        ("attn.in_proj_bias", (24,), "bias"),
        ("attn.in_proj_weight", (24, 8), "weight"),
        ("lstm.bias_hh_l0", (8,), "bias"),
        ("mlp.experts.gate_up_proj", (4, 6, 6), "weight"),
        ("ls1.gamma", (8,), "other"),
        ("gamma_proj.weight", (8, 8), "weight"),
        ("logit_scale", (), "other"),
        ("layer.weight_g", (8, 1, 1), "weight"),
    ],
)
def test_roles_by_name(name: str, shape: tuple[int, ...], role: str) -> None:
    assert roles([info(name, *shape)]) == {name: role}


def test_a_vector_with_a_partner_is_a_norm() -> None:
    found = roles([info("0.1.weight", 8), info("0.1.bias", 8), info("0.2.weight", 8, 8), info("0.2.bias", 8)])
    assert list(found.values()) == ["norm scale", "norm shift", "weight", "bias"]
    assert roles([info("act.weight", 8)]) == {"act.weight": "weight"}


# --- sizes


def test_predicted_sizes() -> None:
    infos = [
        info("w", 4, 64, kind="F16"),
        info("ragged", 4, 33, kind="F16"),
        info("b", 32, kind="F16"),
        info("i", 10, kind="I64"),
        info("q", 2, 256, kind="Q4_K"),
    ]
    found = predict(infos, ["F32", "BF16", "Q8_0"])
    floats = 256 + 132 + 32 + 512
    assert found["F32"] == 4 * floats + 80
    assert found["BF16"] == 2 * floats + 80
    assert found["Q8_0"] == 8 * 34 + 16 * 34 + 4 * (132 + 32) + 80


def test_the_table_of_sizes_by_parameters() -> None:
    assert predict_parameters(7_000_000_000, "f32") == 28_000_000_000
    assert predict_parameters(7_000_000_000, "bf16") == 14_000_000_000
    assert predict_parameters(256_000_000, "Q4_K") == 144_000_000
    assert predict_parameters(1, "F4_E2M1") == 1


# --- JSON


def test_the_json_document() -> None:
    source = llama(1)
    document = to_json(source)
    assert list(document)[:8] == [
        "schema",
        "path",
        "format",
        "tensors",
        "metadata",
        "parameters",
        "nbytes",
        "problems",
    ]
    assert document["schema"] == "tael.inspect/1"
    assert document["tensors"][0] == {
        "name": "model.embed_tokens.weight",
        "dtype": "F16",
        "shape": [16, 8],
        "nbytes": 256,
    }
    assert document["tensors"][-1]["alias_of"] == "model.embed_tokens.weight"
    assert document["problems"] == [{"severity": "note", "what": "odd", "where": "file", "tensor": "step"}]
    assert document["parameters"] == source.parameters
    assert document["training"] is None
    assert json.loads(json.dumps(document, allow_nan=False)) == document


def test_json_holds_metadata_that_is_not_json() -> None:
    metadata = {
        "nan": math.nan,
        "inf": -math.inf,
        "raw": b"\x01\xff",
        "deep": {"l": (1, None, True)},
        "odd": {1: range(2)},
    }
    source = checkpoint({"w": tensor("w", np.ones(2), damaged="torn")}, metadata=metadata)
    document = json.loads(json.dumps(to_json(source), allow_nan=False))
    assert document["metadata"] == {
        "nan": "nan",
        "inf": "-inf",
        "raw": "01ff",
        "deep": {"l": [1, None, True]},
        "odd": {"1": "range(0, 2)"},
    }
    assert document["tensors"][0]["damaged"] == "torn"


def test_a_hundred_thousand_tensors_take_seconds() -> None:
    source, kind = BytesSource(bytes(4)), DTYPES["F32"]
    names = [f"model.layers.{i}.experts.{k}.{part}.weight" for i in range(100) for k in range(250) for part in "abcd"]
    tensors = {n: Tensor(TensorInfo(n, kind, (1,)), Contiguous(kind, (1,), Span(source, 0, 4))) for n in names}
    start = time.perf_counter()
    found = summarize(Checkpoint("memory", "memory", tensors))
    assert time.perf_counter() - start < 10
    assert found.parameters == 100_000
    assert found.modules.children["model"].children["layers.*"].children["experts.*"].repeats == 250


def test_numbers_beside_other_digits_keep_apart() -> None:
    names = [f"h.{i}.mlp.w{k}" for i in (3, 9, 10, 11) for k in (1, 2)]
    root = module_tree([info(name, 1) for name in names])
    mlp = root.children["h.*"].children["mlp"]
    assert root.children["h.*"].repeats == 4
    assert {name: child.tensors for name, child in mlp.children.items()} == {"w1": 4, "w2": 4}


def test_names_without_likes_make_a_bounded_tree() -> None:
    root = module_tree([info(".".join([f"x{i}y"] * 30), 1) for i in range(30_000)])
    count, waiting = 0, [root]
    while waiting:
        node = waiting.pop()
        count += 1
        waiting += node.children.values()
    assert count <= 200_001
    assert len(root.children) == root.tensors == 30_000


def test_roles_of_names_of_many_characters() -> None:
    long = "x" * 200_000
    norms = "norm_" * 20_000 + "-"
    found = roles([info(f"{long}.bias", 2), info(long, 2, 2), info(norms, 2), info("a/b:0/norm/scale:0", 3)])
    assert list(found.values()) == ["bias", "weight", "other", "norm scale"]
