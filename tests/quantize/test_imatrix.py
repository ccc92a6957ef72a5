# SPDX-License-Identifier: Apache-2.0
"""Importance matrices: what they hold, whom they weigh, and the bytes that llama-quantize makes with them."""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tael
from building import checkpoint
from tael.convert.execute import execute
from tael.convert.plan import Target
from tael.core.dtypes import DTYPES
from tael.core.evaluate import Counters, read_blocks
from tael.core.node import Node
from tael.core.tensor import TensorInfo
from tael.errors import CorruptFileError, TaelError, TransformError, UnsupportedFormatError
from tael.formats.gguf import layout
from tael.quantize.imatrix import Imatrix, match, read

VECTORS = Path(__file__).parents[1] / "vectors" / "quantize"
ATTN, GATE, DOWN = "blk.0.attn_q.weight", "blk.0.ffn_gate_exps.weight", "blk.0.ffn_down_exps.weight"


def legacy(entries: dict[str, Any], calls: int = 1, tail: bytes = b"") -> bytes:
    data = struct.pack("<i", len(entries))
    for name, values in entries.items():
        raw = np.asarray(values, "<f4")
        data += struct.pack("<i", len(name)) + name.encode() + struct.pack("<ii", calls, raw.size) + raw.tobytes()
    return data + tail


def matrix(folder: Path, entries: dict[str, Any], calls: int = 1, tail: bytes = b"") -> Imatrix:
    (folder / "m.dat").write_bytes(legacy(entries, calls, tail))
    return read(folder / "m.dat")


def gguf(path: Path, contents: dict[str, Any], **metadata: Any) -> None:
    execute(layout(checkpoint(contents, metadata=metadata), Target(str(path))), force=True)


def numbers(node: Node) -> np.ndarray[Any, Any]:
    out = np.empty(int(np.prod(node.shape)), np.uint32)
    read_blocks(node, 0, out, Counters())
    return out.view(np.float32).reshape(node.shape)


def tensor(name: str, *shape: int) -> TensorInfo:
    return TensorInfo(name, DTYPES["F16"], shape)


# --- against llama-quantize


@pytest.mark.parametrize("target", sorted(VECTORS.glob("imatrix-*.gguf")), ids=lambda path: path.stem)
def test_same_file_as_llama_quantize(target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of zeros, an expert that was never used, weights from 1e-6 to 1e6: all in the bytes."""
    _, kind, recipe = target.stem.split("-")
    monkeypatch.chdir(VECTORS)  # the path as typed stands in the file
    tael.quantize("small.gguf", tmp_path / "out.gguf", recipe, imatrix=f"imatrix.{kind}")
    assert (tmp_path / "out.gguf").read_bytes() == target.read_bytes()


def test_gguf_sums_are_divided_by_the_counts_of_each_expert() -> None:
    found = read(VECTORS / "imatrix.gguf")
    assert (found.datasets, found.chunks) == (["some/text.raw", "more.raw"], 12)
    assert {name: node.shape for name, node in found.entries.items()} == {
        ATTN: (1, 256), "blk.0.attn_v.weight": (1, 256), GATE: (3, 256), DOWN: (3, 256),
    }  # fmt: skip
    with tael.open(VECTORS / "imatrix.gguf") as stored:
        for name, node in found.entries.items():
            sums, counts = (stored.tensors[name + end].numpy() for end in (".in_sum2", ".counts"))
            expected = np.where(counts > 0, sums / np.where(counts > 0, counts, 1), np.float32(1))
            assert numbers(node).tobytes() == expected.astype(np.float32).tobytes()
    assert (numbers(found.entries[DOWN])[1] == 1).all()  # its count is 0


def test_counts_are_rounded_as_llama_quantize_does(tmp_path: Path) -> None:
    for count, used in ((2.5, 3), (0.4, 0), (0.5, 1)):
        sums, counts = np.full((1, 4), 6, np.float32), np.full((1, 1), count, np.float32)
        gguf(tmp_path / "m.gguf", {f"{ATTN}.in_sum2": sums, f"{ATTN}.counts": counts})
        assert (numbers(read(tmp_path / "m.gguf").entries[ATTN]) == (6 / used if used else 1)).all()


# --- the older format


def test_legacy_values_are_divided_by_calls(tmp_path: Path) -> None:
    values = np.asarray([0, 1e-3, 1, 1e7], np.float32)
    found = matrix(tmp_path, {ATTN: values}, 3, struct.pack("<ii", 9, 5) + b"a.raw")
    assert numbers(found.entries[ATTN]).tobytes() == (values / np.float32(3)).tobytes()
    assert (found.datasets, found.chunks) == (["a.raw"], 9)
    uncounted = matrix(tmp_path, {ATTN: values}, 0)
    assert numbers(uncounted.entries[ATTN]).tobytes() == values.tobytes()
    assert (uncounted.datasets, uncounted.chunks) == ([], 0)


@pytest.mark.parametrize(("tail", "chunks"), [(struct.pack("<i", 4), 4), (struct.pack("<ii", 4, 0), 4)])
def test_legacy_without_a_dataset(tmp_path: Path, tail: bytes, chunks: int) -> None:
    found = matrix(tmp_path, {ATTN: [1]}, 1, tail)
    assert (list(found.datasets), found.chunks) == ([], chunks)
    assert "quantize.imatrix.dataset" not in match(found, []).metadata


def test_every_truncation_and_every_damaged_number_is_refused_in_words(tmp_path: Path) -> None:
    whole = legacy({ATTN: [1, 2], GATE: [3, 4]}, 2, struct.pack("<ii", 9, 5) + b"a.raw")
    ends = {len(legacy({ATTN: [1, 2], GATE: [3, 4]})) + more for more in (0, 1, 2, 3, 4, 5, 6, 7)}
    path = tmp_path / "m.dat"
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        if size in ends:  # what follows the entries may be missing
            assert len(read(path).entries) == 2
        else:
            with pytest.raises((CorruptFileError, UnsupportedFormatError)):
                read(path)
    for at in range(len(whole) - 4):
        for value in (-1, 0x7FFFFFFF):
            path.write_bytes(whole[:at] + struct.pack("<i", value) + whole[at + 4 :])
            with contextlib.suppress(TaelError):  # some numbers may be changed; nothing else may be raised
                read(path)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_value_that_is_no_importance_is_refused_by_name(tmp_path: Path, value: float) -> None:
    with pytest.raises(CorruptFileError, match="value 2 is") as caught:
        matrix(tmp_path, {ATTN: [1, 2, 3], GATE: [1, 2, value]})
    assert caught.value.tensor == GATE


def test_gguf_with_a_bad_sum_or_without_counts_is_refused(tmp_path: Path) -> None:
    sums = {f"{ATTN}.in_sum2": np.ones((1, 4), np.float32), f"{ATTN}.counts": np.ones((1, 1), np.float32)}
    for change, words in (
        ({f"{ATTN}.in_sum2": np.full((1, 4), np.nan, np.float32)}, "value 0 is nan"),
        ({f"{ATTN}.counts": np.full((1, 1), -1, np.float32)}, "value 0 is -1"),
        ({f"{ATTN}.counts": np.ones((3, 1), np.float32)}, "do not divide"),
        ({f"{ATTN}.counts": np.ones((1, 1), np.float16)}, "not F32"),
        ({f"{ATTN}.counts": None}, "no .counts"),
    ):
        content = {name: values for name, values in (sums | change).items() if values is not None}
        gguf(tmp_path / "m.gguf", content)
        with pytest.raises(CorruptFileError, match=words):
            read(tmp_path / "m.gguf")
    gguf(tmp_path / "m.gguf", {"x": np.ones(4, np.float32)})
    with pytest.raises(UnsupportedFormatError, match="no importance matrix"):
        read(tmp_path / "m.gguf")


def test_file_of_another_kind_is_no_matrix(tmp_path: Path) -> None:
    for content in (b"", b"abc", b"{" * 100, bytes(1000), b"PK\x03\x04" + bytes(100)):
        (tmp_path / "m").write_bytes(content)
        with pytest.raises(TaelError, match="no importance matrix"):
            read(tmp_path / "m")


# --- who weighs whom


def test_unmatched_on_both_sides_are_named(tmp_path: Path) -> None:
    found = match(
        matrix(tmp_path, {ATTN: [1, 2], "blk.9.other.weight": [1]}),
        [tensor(ATTN, 3, 2), tensor("blk.0.attn_v.weight", 3, 2), tensor("norm.weight", 2), tensor("x.bias", 3, 2)],
    )
    assert list(found.nodes) == [ATTN]
    assert (found.without_entry, found.without_tensor) == (["blk.0.attn_v.weight"], ["blk.9.other.weight"])


def test_split_experts_of_a_matrix_weigh_a_stacked_tensor(tmp_path: Path) -> None:
    entries = {f"blk.0.ffn_gate.{k}.weight": [k + 1, 10 * k + 1] for k in range(3)}
    found = match(matrix(tmp_path, entries, 2), [tensor(GATE, 3, 5, 2)])
    assert numbers(found.nodes[GATE]).tolist() == [[0.5, 0.5], [1, 5.5], [1.5, 10.5]]
    assert (found.without_entry, found.without_tensor) == ([], [])
    assert any("ffn_gate.0" in note for note in found.notes)


def test_stacked_experts_of_a_matrix_weigh_split_tensors(tmp_path: Path) -> None:
    tensors = [tensor(f"blk.0.ffn_gate.{k}.weight", 5, 2) for k in range(4)]
    found = match(matrix(tmp_path, {GATE: range(6)}), tensors)
    assert {name: numbers(node).tolist() for name, node in found.nodes.items()} == {
        f"blk.0.ffn_gate.{k}.weight": [[2 * k, 2 * k + 1]] for k in range(3)
    }
    assert found.without_entry == ["blk.0.ffn_gate.3.weight"]


def test_entry_of_another_size_is_named_but_passed_over_for_the_embedding(tmp_path: Path) -> None:
    small = matrix(tmp_path, {ATTN: [1, 2], "token_embd.weight": [1, 2]})
    with pytest.raises(TransformError, match="has 2 values for it, 3 are needed") as caught:
        match(small, [tensor(ATTN, 4, 3)])
    assert caught.value.tensor == ATTN
    found = match(small, [tensor("token_embd.weight", 4, 3)])
    assert not found.nodes
    assert found.without_entry == ["token_embd.weight"]
    assert found.notes


def test_names_from_before_layers_were_pruned(tmp_path: Path) -> None:
    """Layer 1 was layer 2 when it was measured."""
    found = match(
        matrix(tmp_path, {f"blk.{n}.attn_q.weight": [n, n] for n in range(3)}),
        [tensor(f"blk.{n}.attn_q.weight", 4, 2) for n in range(3)],
        {"blk.0.attn_q.weight": "blk.0.attn_q.weight", "blk.1.attn_q.weight": "blk.2.attn_q.weight"},
    )
    assert {name: numbers(node).tolist() for name, node in found.nodes.items()} == {
        "blk.0.attn_q.weight": [[0, 0]],
        "blk.1.attn_q.weight": [[2, 2]],
    }
    assert found.without_tensor == ["blk.1.attn_q.weight"]


def test_text_for_the_file_is_cut_by_bytes(tmp_path: Path) -> None:
    tail = struct.pack("<ii", 1, 200) + ("層" * 66 + "..").encode()
    about = match(matrix(tmp_path, {ATTN: [1]}, 1, tail), []).metadata
    assert about["quantize.imatrix.dataset"].encode("utf-8", "surrogateescape") == ("層" * 43).encode()[:127]


def test_zeros_never_make_a_value_that_is_not_finite(tmp_path: Path) -> None:
    """An input that was never active: 256 zeros, and zeros only in part of a block."""
    rows = np.random.default_rng(0).standard_normal((4, 512)).astype(np.float32)
    gguf(tmp_path / "model.gguf", {ATTN: rows}, **{"general.architecture": "llama"})
    weights = np.ones(512, np.float32)
    weights[:256], weights[300:340] = 0, 0
    matrix(tmp_path, {ATTN: weights})
    for kind in ("Q2_K", "Q3_K_S", "Q4_0", "Q4_1", "Q4_K_S", "Q5_0", "Q5_1", "Q5_K_S", "Q6_K", "IQ2_XXS", "IQ3_S"):
        tael.quantize(tmp_path / "model.gguf", tmp_path / "q.gguf", kind, imatrix=tmp_path / "m.dat", force=True)
        tael.convert(tmp_path / "q.gguf", tmp_path / "back.safetensors", dtype="F32", force=True)
        with tael.open(tmp_path / "back.safetensors") as back:
            values = back.tensors[ATTN].numpy()
        assert np.isfinite(values).all()
        assert np.abs(values[:, 340:] - rows[:, 340:]).mean() < 0.5
