# SPDX-License-Identifier: Apache-2.0
"""Metadata and ties as strings, and back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import building
from tael.core.portable import KEY, pack, restore_aliases, unpack

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(st.text(max_size=8) | st.just(KEY), VALUES, max_size=5),
    st.dictionaries(st.text(), st.text(), max_size=3),
)
def test_round_trip(metadata: dict[str, object], aliases: dict[str, str]) -> None:
    stored = pack(metadata, aliases)
    assert all(isinstance(key, str) and isinstance(value, str) for key, value in stored.items())
    again, sections, problems = unpack(stored, "x")
    assert again == metadata
    assert {key: type(value) for key, value in again.items()} == {key: type(value) for key, value in metadata.items()}
    assert sections.get("aliases", {}) == aliases
    assert problems == []


def test_strings_keep_their_own_keys() -> None:
    assert pack({"format": "pt", "note": ""}, {}) == {"format": "pt", "note": ""}
    assert pack({"epoch": 3}, {}) == {KEY: '{"values":{"epoch":3}}'}
    assert pack({}, {"b": "a"}, opaque={"c": "F6"}) == {KEY: '{"aliases":{"b":"a"},"opaque":{"c":"F6"}}'}
    assert pack({}, {}, opaque={}) == {}


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "3", '"x"', "null", '{"values": []}', '{"values": [["a", 1]]}', '{"values": "ab"}',
     '{"aliases": []}', '{"aliases": {"a": 1}}', '{"aliases": null}', "[" * 100_000,
     '{"values": {"n": ' + "9" * 10_000 + "}}"],
)  # fmt: skip
def test_foreign_text_is_kept_and_noted(text: str) -> None:
    stored = {"format": "pt", KEY: text}
    metadata, sections, problems = unpack(stored, "file")
    assert metadata == stored
    assert sections == {}
    assert [(problem.severity, problem.where) for problem in problems] == [("note", "file")]
    assert unpack(pack(metadata, {}), "file")[0] == stored


def test_aliases_are_restored_behind_the_owners() -> None:
    a, b = (building.tensor(name, np.zeros(2, np.float32)) for name in "ab")
    restored = restore_aliases([a, b], {"tied": "a", "b": "a", "lost": "none", "again": "tied"})
    assert [(tensor.name, tensor.info.alias_of) for tensor in restored] == [
        ("a", None), ("b", None), ("tied", "a"), ("again", "a"),
    ]  # fmt: skip
    assert restored[2].data is a.data


def test_strings_that_utf_8_cannot_hold_survive_as_escapes() -> None:
    metadata = {"a": "x\udfff", "\ud800": "b", "plain": "naïve ✓"}
    packed = pack(metadata, {})
    assert packed["plain"] == "naïve ✓"
    assert "".join(packed).encode()
    assert "".join(packed.values()).encode()
    assert unpack(packed, "x")[0] == metadata
