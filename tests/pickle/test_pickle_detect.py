# SPDX-License-Identifier: Apache-2.0
"""Content detection: every pickle is one, and what merely starts like one is none."""

from __future__ import annotations

import json
import pickle
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tael.pickle import looks_like_pickle

VECTORS = Path(__file__).parents[1] / "vectors"

VALUES: list[Any] = [
    {"w": [1.0, 2.0]}, [1, 2, 3], (1, "a", None), {}, [], {"a": {"b": (1, 2)}}, {1: b"x" * 1000}, ["x" * 5000] * 3,
    {1, 2},
]  # fmt: skip


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("head", [64, 512, 1 << 20])
def test_pickles_are_detected(protocol: int, head: int) -> None:
    for value in VALUES:
        assert looks_like_pickle(pickle.dumps(value, protocol)[:head]), value


def test_vectors_are_detected() -> None:
    found = list((VECTORS / "pickle").glob("*.pkl"))
    assert len(found) >= 15
    for path in found:
        assert looks_like_pickle(path.read_bytes()[:256]), path.name


@pytest.mark.parametrize(
    "head",
    [
        b"", b"\x80", b"(", b".", b"\x80\x02", b"\x80\x02.", b"\x80\x06]q\x00.", b"\x80\x01]q\x00.",
        b"\x80\x02\xff\xff\xff", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
        b"<!DOCTYPE html><html>", b"PK\x03\x04" + bytes(60), b"(this is a text in brackets)\nand more of it\n",
        b"[1, 2, 3]\n", b"]]]]", b"cat is an animal\nnot a module\n", b"class Model:\n    pass\n", b"}\n", b"(((((((",
        b"GGUF\x03\x00\x00\x00" + bytes(40), b"\x93NUMPY\x01\x00v\x00{'descr'", b"\x1f\x8b\x08\x00" + bytes(40),
        b"\x80\x02" + b"R" * 40, b"\x80\x04\x95" + b"\xff" * 8 + b"}", b"((((((((" + b"\x00" * 8,
        struct.pack("<Q", 128) + b'{"a":{}}', b"\x80\x03" + bytes(100), b"I1\nI2\nI3\n.",
        b"\x80\x04K\x01K\x02\x87K\x03q\x00", b"\x80\x02]q\x00(K\x01\x86K\x01K\x02",  # more taken than there is
    ],
)  # fmt: skip
def test_others_are_not(head: bytes) -> None:
    assert not looks_like_pickle(head)


@given(st.binary(min_size=16, max_size=200))
def test_random_bytes_are_hardly_ever_pickles(head: bytes) -> None:
    assert not looks_like_pickle(b"\x00" + head)
    assert looks_like_pickle(head) in (True, False)


@given(
    st.recursive(
        st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_json_is_not(value: Any) -> None:
    assert not looks_like_pickle(json.dumps(value).encode())
