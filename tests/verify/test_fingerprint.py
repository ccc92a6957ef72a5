# SPDX-License-Identifier: Apache-2.0
"""Ids: as docs/fingerprint.md defines them, the same however the bytes are laid out and cut."""

from __future__ import annotations

import re
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from building import checkpoint, tensor, view
from tael.convert import transforms
from tael.core import ops
from tael.core.source import BytesSource
from tael.errors import ChecksumError, UnsupportedTensorError
from tael.verify.fingerprint import combine, hash_checkpoint, hash_tensor

DOCS = Path(__file__).parents[2] / "docs" / "fingerprint.md"


def by_hand(dtype: str, shape: tuple[int, ...], raw: bytes) -> str:
    head = b"tael.tensor/1\0" + dtype.encode() + b"\0" + struct.pack("<Q", len(shape))
    return blake3(head + b"".join(struct.pack("<Q", n) for n in shape) + raw).hexdigest()


def whole_by_hand(ids: dict[str, str]) -> str:
    text = b"tael.checkpoint/1\0"
    for name in sorted(ids, key=str.encode):
        text += struct.pack("<Q", len(name.encode())) + name.encode() + bytes.fromhex(ids[name])
    return blake3(text).hexdigest()


def test_ids_are_what_the_definition_says() -> None:
    source = checkpoint(
        {
            "é.w": np.arange(6, dtype="<f4").reshape(2, 3),
            "scalar": np.array(1.5, "<f8"),
            "empty": np.zeros((0, 3), "<i2"),
            "q": ("Q8_0", (1, 32), bytes(range(34))),
            "u4": ("U4", (4,), b"\x21\x43"),
        },
    )
    found = hash_checkpoint(source)
    expected = {
        "é.w": by_hand("F32", (2, 3), np.arange(6, dtype="<f4").tobytes()),
        "scalar": by_hand("F64", (), np.float64(1.5).tobytes()),
        "empty": by_hand("I16", (0, 3), b""),
        "q": by_hand("Q8_0", (1, 32), bytes(range(34))),
        "u4": by_hand("U4", (4,), b"\x21\x43"),
    }
    assert found.tensors == expected
    assert list(found.tensors) == list(source.tensors)
    assert found.whole == whole_by_hand(expected)


def test_the_documented_example_is_right() -> None:
    text = DOCS.read_text()
    found = hash_checkpoint(checkpoint({"w": np.array([[1, 2, 3]], np.float32), "b": np.array([-0.0], np.float16)}))
    documented = re.findall(r"^([0-9a-f]{64})  (\S+)$", text, re.MULTILINE)
    assert documented == [*((id, name) for name, id in found.tensors.items()), (found.whole, "whole")]
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert code
    names: dict[str, object] = {}
    exec(compile(code[1], str(DOCS), "exec"), names)  # noqa: S102
    assert names["whole"] == found.whole


def test_shape_dtype_and_every_bit_count() -> None:
    zero = np.zeros(4, np.float32)
    nan = np.array([0x7FC00001, 0x7FC00000], np.uint32).view(np.float32)
    variants = [zero, zero.reshape(2, 2), zero.reshape(4, 1), zero.view(np.int32), -zero, nan[:1], nan[1:]]
    assert len({hash_tensor(tensor("x", array)) for array in variants}) == len(variants)


def test_the_name_is_not_in_a_tensors_id_but_in_the_wholes() -> None:
    one, other = (hash_checkpoint(checkpoint({name: np.ones(3)})) for name in ("a", "b"))
    assert list(one.tensors.values()) == list(other.tensors.values())
    assert one.whole != other.whole
    assert combine({"ab": one.tensors["a"]}) != combine({"a": one.tensors["a"]})


def test_order_container_and_ties_make_no_difference() -> None:
    arrays = {f"t{k}": np.arange(k + 3, dtype=np.float32) for k in range(9)}
    plain = hash_checkpoint(checkpoint(arrays))
    assert hash_checkpoint(checkpoint(dict(reversed(arrays.items())))).whole == plain.whole
    assert hash_checkpoint(checkpoint(arrays, flat=True)).whole == plain.whole
    tied = checkpoint(arrays, aliases={"x": "t0"})
    assert hash_checkpoint(tied).whole == hash_checkpoint(transforms.untie()(tied)).whole
    assert hash_checkpoint(tied).tensors["x"] == plain.tensors["t0"]


def test_strides_and_byte_order_make_no_difference() -> None:
    storage = np.arange(12, dtype=np.float32).reshape(3, 4)
    turned = tensor("x", view(storage, BytesSource(storage.tobytes()), storage.T))
    assert hash_tensor(turned) == hash_tensor(tensor("x", np.ascontiguousarray(storage.T)))
    swapped = tensor("x", ops.byteswap(tensor("x", ("F32", (3, 4), storage.byteswap().tobytes())).data))
    assert hash_tensor(swapped) == hash_tensor(tensor("x", storage))


@given(st.binary(max_size=400), st.integers(1, 64))
def test_chunks_make_no_difference(raw: bytes, budget: int) -> None:
    source = tensor("x", ("U8", (len(raw),), raw))
    assert hash_tensor(source, budget=budget) == by_hand("U8", (len(raw),), raw)


def test_a_tied_tensor_is_read_once() -> None:
    class Counting(BytesSource):
        reads = 0

        def read_into(self, offset: int, buffer: memoryview) -> None:
            self.reads += 1
            super().read_into(offset, buffer)

    source = checkpoint({"w": np.ones(5)}, aliases={"x": "w", "y": "w"})
    counting = Counting(np.ones(5).tobytes())
    spy = source.with_tensors(
        replace(t, data=replace(t.data, span=replace(t.data.span, source=counting))) for t in source.tensors.values()
    )
    hash_checkpoint(spy)
    assert counting.reads == 1


def test_stored_checksums_are_compared_in_the_same_pass() -> None:
    good = tensor("w", np.ones(1000), check=True)
    assert hash_checkpoint(checkpoint({"w": good})).whole
    assert hash_tensor(good, budget=64) == hash_tensor(good)
    bad = tensor("w", np.ones(1000), check=True)
    bad.checks[0].crc32 ^= 1
    with pytest.raises(ChecksumError, match=r"tensor 'w'.*record of w: stored CRC-32"):
        hash_checkpoint(checkpoint({"w": bad}))
    part = replace(bad, data=ops.cast(bad.data, tensor("f", np.ones(1, np.float32)).dtype))
    with pytest.raises(ChecksumError, match="tensor 'w'"):
        hash_tensor(replace(part, info=replace(part.info, dtype=part.data.dtype)))


def test_damage_has_no_id() -> None:
    with pytest.raises(UnsupportedTensorError, match="torn"):
        hash_checkpoint(checkpoint({"w": tensor("w", np.ones(3), damaged="torn")}))


def test_progress_tells_every_byte_and_ends() -> None:
    class Recorder:
        events: list[tuple[str, int]]

        def start(self, total_bytes: int, label: str) -> None:
            self.events = [("start", total_bytes)]

        def advance(self, nbytes: int) -> None:
            self.events.append(("advance", nbytes))

        def finish(self) -> None:
            self.events.append(("finish", 0))

    recorder = Recorder()
    hash_checkpoint(checkpoint({f"w{k}": np.ones(k, np.uint8) for k in range(50)}), recorder)
    assert recorder.events[0] == ("start", 1225)
    assert sum(count for event, count in recorder.events if event == "advance") == 1225
    assert recorder.events[-1] == ("finish", 0)
    with pytest.raises(UnsupportedTensorError):
        hash_checkpoint(checkpoint({"w": tensor("w", np.ones(3), damaged="torn")}), recorder)
    assert recorder.events[-1] == ("finish", 0)
