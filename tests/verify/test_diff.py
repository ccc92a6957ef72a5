# SPDX-License-Identifier: Apache-2.0
"""Diff: what was added, removed, renamed, retyped, reshaped, moved; and metadata."""

from __future__ import annotations

import math

import numpy as np
import pytest

from building import checkpoint, tensor
from tael.verify.diff import Renamed, Retyped, diff


def f32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def test_nothing_changed() -> None:
    a = checkpoint({"w": f32(1, math.nan), "i": np.arange(3)}, aliases={"x": "w"}, metadata={"k": [1, math.nan]})
    found = diff(a, a)
    assert found.equal
    assert found.same == 3


def test_every_kind_of_change() -> None:
    a = checkpoint(
        {
            "same": f32(1),
            "gone": f32(1, 2, 3),
            "old.name": f32(5, 6),
            "half": f32(1, 2, 2.001),
            "int": np.array([1, 2], np.int32),
            "shape": f32(1, 2, 3, 4),
            "moved": f32(1, 2, 3, 4),
        }
    )
    b = checkpoint(
        {
            "same": f32(1),
            "new": f32(9, 9, 9),
            "new.name": f32(5, 6),
            "half": np.array([1, 2, 2.001], np.float16),
            "int": np.array([1, 2], np.int64),
            "shape": f32(1, 2, 3, 4).reshape(2, 2),
            "moved": f32(1, 2, 3, 8),
        }
    )
    found = diff(a, b)
    assert not found.equal
    assert found.same == 1
    assert [info.name for info in found.added] == ["new"]
    assert [info.name for info in found.removed] == ["gone"]
    assert found.renamed == (Renamed("old.name", "new.name"),)
    half, integer = found.retyped
    error = abs(float(np.float32(2.001)) - float(np.float16(2.001)))
    assert (half.before, half.after, half.max_abs) == ("F32", "F16", pytest.approx(error))
    assert half.rms == pytest.approx(error / math.sqrt(3))
    assert integer == Retyped("int", "I32", "I64")
    (shape,) = found.reshaped
    assert (shape.name, shape.before.shape, shape.after.shape) == ("shape", (4,), (2, 2))
    (moved,) = found.changed
    assert (moved.name, moved.count, moved.max_abs, moved.rms) == ("moved", 1, 4, 2)


def test_renames_pair_one_to_one_in_order() -> None:
    a = checkpoint({"a1": f32(1), "a2": f32(1), "a3": f32(1), "a4": f32(2)})
    b = checkpoint({"b1": f32(1), "b2": f32(1), "b3": f32(3)})
    found = diff(a, b)
    assert found.renamed == (Renamed("a1", "b1"), Renamed("a2", "b2"))
    assert [info.name for info in found.removed] == ["a3", "a4"]
    assert [info.name for info in found.added] == ["b3"]


def test_another_dtype_is_no_rename() -> None:
    found = diff(checkpoint({"a": f32(1)}), checkpoint({"b": f32(1).view(np.int32)}))
    assert found.renamed == ()


def test_a_change_of_a_tied_tensor_is_told_of_every_name() -> None:
    a = checkpoint({"w": f32(1), "s": f32(1, 2)}, aliases={"x": "w", "t": "s"})
    b = checkpoint({"w": f32(2), "s": f32(1, 2).reshape(1, 2)}, aliases={"x": "w", "t": "s"})
    found = diff(a, b)
    assert [change.name for change in found.changed] == ["w", "x"]
    assert [change.name for change in found.reshaped] == ["s", "t"]


def test_damage_is_told_apart() -> None:
    torn = tensor("w", f32(1), damaged="torn")
    found = diff(checkpoint({"w": torn, "only": torn}), checkpoint({"w": f32(1), "other": f32(1)}))
    assert [(d.name, d.kind) for d in found.unreadable] == [("w", "unreadable")]
    assert (found.same, len(found.removed), len(found.added)) == (0, 1, 1)
    half = np.array([1], np.float16)
    assert diff(checkpoint({"w": torn}), checkpoint({"w": half})).unreadable


def test_metadata_changes() -> None:
    a = checkpoint({"w": f32(1)}, metadata={"same": {"x": [1]}, "gone": 1, "type": 1, "value": "a"})
    b = checkpoint({"w": f32(1)}, metadata={"same": {"x": [1]}, "new": 2, "type": 1.0, "value": "b"})
    found = diff(a, b)
    assert not found.equal
    assert found.metadata.added == {"new": 2}
    assert found.metadata.removed == {"gone": 1}
    assert found.metadata.changed == {"type": (1, 1.0), "value": ("a", "b")}
