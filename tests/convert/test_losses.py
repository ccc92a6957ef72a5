# SPDX-License-Identifier: Apache-2.0
"""What a target cannot hold; which views overlap, compared with a count of every byte."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from building import checkpoint, tensor, view
from tael.convert import transforms
from tael.convert.losses import losses
from tael.convert.sharing import MOST_PAIRS, overlapping
from tael.core import ops
from tael.core.dtypes import DTYPES
from tael.core.node import Contiguous, Span, Strided, Tiled, strided
from tael.core.source import BytesSource
from tael.core.tensor import Tensor, TensorInfo
from tael.formats.registry import Confidence, Format
from tael.formats.torch.tree import TensorLeaf


def fmt(*capabilities: str, id: str = "plain") -> Format:
    return Format(id, "Plain", (), frozenset(DTYPES), frozenset(capabilities), lambda probe: Confidence.NONE)


def kinds(found: list) -> list[tuple[str, int]]:  # type: ignore[type-arg]
    return [(loss.kind, loss.count) for loss in found]


def test_nothing_is_lost_of_plain_tensors() -> None:
    assert losses(checkpoint({"w": np.zeros(3)}), fmt()) == []


def test_metadata_needs_a_place() -> None:
    source = checkpoint({"w": np.zeros(3)}, metadata={"a": 1, "b": "x"})
    assert kinds(losses(source, fmt())) == [("metadata", 2)]
    assert "a, b" in losses(source, fmt())[0].detail
    assert losses(source, fmt("metadata")) == []


def test_ties_need_aliases_or_metadata() -> None:
    source = checkpoint({"w": np.zeros(3)}, aliases={"x": "w", "y": "w"})
    assert kinds(losses(source, fmt())) == [("alias", 2)]
    assert losses(source, fmt("metadata")) == losses(source, fmt("aliases")) == []


def test_extras_of_another_format_are_lost() -> None:
    extras = {"keras.config": {"name": "x"}, "keras.empty": {}, "keras.none": None, "plain.own": 1, "npz.comment": "hi"}
    found = losses(checkpoint({"w": np.zeros(3)}, extras=extras), fmt())
    assert kinds(found) == [("extras", 1), ("extras", 1)]
    assert [loss.detail for loss in found] == [
        "not part of a Plain file: keras.config: name",
        "not part of a Plain file: npz.comment",
    ]


def test_side_files_stay_with_a_folder() -> None:
    files = {"config.json": 1, "tokenizer.json": 2}
    source = checkpoint(
        {"w": np.zeros(3)}, extras={"hf.side_files": files, "hf.config": {"a": 1}, "hf.weights": "model"}
    )
    assert kinds(losses(source, fmt())) == [("extras", 2)]
    assert losses(source, fmt("folder")) == []


def test_of_a_torch_file_its_objects_are_lost_and_its_structure_is_not() -> None:
    extras = {
        "torch.tree": {"model": {"w": TensorLeaf("model.w")}, "epoch": 3},
        "torch.layout": "zip",
        "torch.records": {"version": "3"},
        "torch.globals": ("sched.Cosine",),
        "torch.expanded": ("model.w",),
    }
    source = checkpoint({"model.w": np.zeros(3)}, extras=extras)
    assert losses(source, fmt("metadata")) == []
    source = replace(source, extras={**extras, "torch.objects": {"scheduler": "a sched.Cosine"}})
    (loss,) = losses(source, fmt("metadata"))
    assert (loss.kind, loss.detail) == ("extras", "not part of a Plain file: torch.objects: scheduler")
    assert losses(source, fmt("metadata", id="torch")) == []


def test_requires_grad_is_an_attribute() -> None:
    source = checkpoint({"w": np.zeros(3)}, extras={"torch.requires_grad": ("w",)})
    assert [(loss.kind, loss.detail) for loss in losses(source, fmt())] == [("attributes", "requires_grad of w")]


# --- views that overlap


def views(storage: np.ndarray, *arrays: np.ndarray) -> list[Tensor]:
    source = BytesSource(storage.tobytes())
    return [tensor(f"v{number}", view(storage, source, array)) for number, array in enumerate(arrays)]


def test_s3_slices_of_one_flat_buffer_do_not_share() -> None:
    flat = np.zeros(100, np.float32)
    assert overlapping(views(flat, flat[:40].reshape(8, 5), flat[40:41], flat[41:])) == []
    assert overlapping(views(flat, flat[:41], flat[40:41], flat[41:])) == ["v0", "v1"]


def test_columns_of_a_fused_matrix_do_not_share() -> None:
    qkv = np.zeros((64, 96), np.float32)
    assert overlapping(views(qkv, qkv[:, :32], qkv[:, 32:64], qkv[:, 64:])) == []
    assert overlapping(views(qkv, qkv[:, :33], qkv[:, 32:64], qkv[:, 64:])) == ["v0", "v1"]
    assert overlapping(views(qkv, qkv[:, ::2], qkv[:, 1::2], qkv[10:11, 5:7])) == ["v0", "v1", "v2"]
    assert overlapping(views(qkv, qkv.T[:32], qkv[:, 32:])) == []
    octets = np.zeros(9, np.uint8)
    assert overlapping(views(octets, octets[::2], octets[1::2])) == []


def test_a_matrix_and_its_transpose_share() -> None:
    square = np.zeros((5, 5), np.float32)
    assert overlapping(views(square, square, square.T)) == ["v0", "v1"]


def test_other_dtypes_of_the_same_bytes_share_and_copies_on_purpose_do_not() -> None:
    flat = np.zeros(8, np.float32)
    assert overlapping(views(flat, flat, flat.view(np.int32))) == ["v0", "v1"]
    source = checkpoint({"w": flat}, aliases={"x": "w"})
    assert losses(transforms.untie()(source), fmt()) == []
    (loss,) = losses(checkpoint({"a": views(flat, flat)[0], "b": views(flat, flat[1:])[0]}), fmt()) or [None]
    assert loss is None  # two sources


def test_other_sources_do_not_share() -> None:
    flat = np.zeros(8, np.float32)
    assert overlapping([*views(flat, flat), *views(flat, flat[:4])]) == []


def test_the_loss_names_who_shares() -> None:
    flat = np.zeros(8, np.float32)
    contents = {t.name: t for t in views(flat, flat[:5], flat[5:], flat[4:6])}
    (loss,) = losses(checkpoint(contents), fmt("metadata", "aliases"))
    assert (loss.kind, loss.count) == ("shared-storage", 3)
    assert "v0, v1, v2" in loss.detail


def test_pieces_made_by_transforms_do_not_share() -> None:
    source = checkpoint({"w": np.zeros((4, 6), np.float32), "b": np.zeros(2, np.float32)})
    for before in ([], [transforms.cast("F16")], [transforms.transpose(["w"])]):
        cut = transforms.chain([*before, transforms.split("w", ["q", "k"], axis=1)])(source)
        assert losses(cut, fmt()) == []
    stacked = transforms.stack(["w", "x"], "s")(checkpoint({"w": np.zeros(3), "x": np.zeros(3)}))
    assert losses(stacked, fmt()) == []


def test_tiles_of_one_tensor_may_overlap_each_other_but_not_another_tensor() -> None:
    kind, source = DTYPES["F32"], BytesSource(bytes(64))
    part = Contiguous(kind, (4,), Span(source, 0, 16))
    tiled = Tiled(kind, (8,), ((((0, 4),), part), (((4, 8),), part)))
    alone = [tensor("t", tiled), tensor("far", Contiguous(kind, (4,), Span(source, 16, 16)))]
    assert overlapping(alone) == []
    assert overlapping([*alone, tensor("near", Contiguous(kind, (1,), Span(source, 12, 4)))]) == ["t", "near"]


BYTE = st.integers(0, 23)


@st.composite
def windows(draw: st.DrawFn) -> tuple[int, tuple[int, ...], tuple[int, ...], int]:
    """start, shape, strides and item size, in elements, of a view that fits 200 bytes."""
    rank = draw(st.integers(0, 3))
    shape = tuple(draw(st.integers(0, 4)) for _ in range(rank))
    strides = tuple(draw(st.integers(0, 9)) for _ in range(rank))
    return draw(st.integers(0, 20)), shape, strides, draw(st.sampled_from([1, 2, 4]))


def bytes_of(start: int, shape: tuple[int, ...], strides: tuple[int, ...], item: int) -> set[int]:
    touched = set()
    for index in product(*map(range, shape)):
        first = (start + sum(i * step for i, step in zip(index, strides, strict=True))) * item
        touched |= set(range(first, first + item))
    return touched


@settings(max_examples=300)
@given(st.lists(windows(), min_size=1, max_size=5))
def test_overlap_is_what_counting_bytes_says(
    given_views: list[tuple[int, tuple[int, ...], tuple[int, ...], int]],
) -> None:
    source = BytesSource(bytes(1000))
    kind = {1: DTYPES["U8"], 2: DTYPES["F16"], 4: DTYPES["F32"]}
    tensors, touched, same = [], [], []
    for number, (start, shape, strides, item) in enumerate(given_views):
        node = strided(kind[item], shape, Span(source, 0, 1000), start, strides)
        tensors.append(Tensor(TensorInfo(f"v{number}", kind[item], shape), node))
        touched.append(bytes_of(start, shape, strides, item))
        same.append((item, shape, start, tuple((n, s) for n, s in zip(shape, strides, strict=True) if n > 1)))
    expected = [
        f"v{i}"
        for i in range(len(tensors))
        if any(i != j and same[i] != same[j] and touched[i] & touched[j] for j in range(len(tensors)))
    ]
    assert overlapping(tensors) == expected


@settings(max_examples=200)
@given(st.lists(st.lists(st.tuples(BYTE, st.integers(1, 6)), min_size=1, max_size=3), min_size=1, max_size=6))
def test_overlap_of_tensors_in_several_pieces(pieces: list[list[tuple[int, int]]]) -> None:
    kind, source = DTYPES["U8"], BytesSource(bytes(64))
    tensors = []
    for number, parts in enumerate(pieces):
        nodes = [Contiguous(kind, (size,), Span(source, at, size)) for at, size in parts]
        tensors.append(tensor(f"v{number}", ops.concat(nodes, 0) if len(nodes) > 1 else nodes[0]))
    touched = [{byte for at, size in parts for byte in range(at, at + size)} for parts in pieces]
    keys = [tuple(parts) for parts in pieces]
    expected = [
        f"v{i}"
        for i in range(len(pieces))
        if any(keys[i] != keys[j] and touched[i] & touched[j] for j in range(len(pieces)))
    ]
    assert overlapping(tensors) == expected


@pytest.mark.parametrize("layout", ["disjoint", "nested", "columns"])
def test_a_hundred_thousand_views_take_seconds(layout: str) -> None:
    kind, count = DTYPES["F32"], 100_000
    source = BytesSource(bytes(4 * count))
    whole = Span(source, 0, source.size)
    match layout:
        case "disjoint":
            nodes = [Contiguous(kind, (1,), Span(source, 4 * k, 4)) for k in range(count)]
        case "nested":
            nodes = [Contiguous(kind, (count - k,), Span(source, 4 * k, 4 * (count - k))) for k in range(count)]
        case _:
            nodes = [Strided(kind, (10,), whole, k, (count // 10,)) for k in range(count // 10)] * 10
    tensors = [Tensor(TensorInfo(f"v{k}", kind, node.shape), node) for k, node in enumerate(nodes)]
    start = time.perf_counter()
    found = overlapping(tensors)
    assert time.perf_counter() - start < 10
    assert len(found) == (0 if layout == "disjoint" else count)


def test_more_pairs_than_can_be_looked_at_count_as_sharing() -> None:
    side = int(np.sqrt(2 * MOST_PAIRS)) + 10
    matrix = np.zeros((2, side), np.float32)
    assert len(overlapping(views(matrix, *(matrix[:, k : k + 1] for k in range(side))))) == side
    few = 50
    assert overlapping(views(matrix, *(matrix[:, k : k + 1] for k in range(few)))) == []
