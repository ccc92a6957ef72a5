# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tael.cli import text
from tael.errors import TaelError


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        ("model.layers.0.weight", "model.layers.0.weight"),
        ("权重", "权重"),
        ("\x1b[2Jgone", "\\x1b[2Jgone"),
        ("a\nb\rc\td\0e", "a\\nb\\rc\\td\\0e"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("zero\u200bwidth", "zero\\u200bwidth"),
        ("\x9b31m", "\\x9b31m"),
        ("\udc80", "\\udc80"),
        ("\U000e0041", "\\U000e0041"),
        ("line\u2028break", "line\\u2028break"),
    ],
)
def test_hostile_names_are_escaped(hostile: str, shown: str) -> None:
    assert text.safe(hostile) == shown


@given(st.text(alphabet=st.characters(exclude_categories=())))
def test_json_shows_nothing_that_acts_on_a_terminal(raw: str) -> None:
    shown = text.json_line(json.dumps({"name": raw}, ensure_ascii=False))
    assert shown.isprintable()
    assert json.loads(shown) == json.loads(json.dumps({"name": raw}))


def test_json_keeps_what_is_visible_and_its_own_line_breaks() -> None:
    assert text.json_line('{\n  "权重\x7f\x9b\u202e\U000e0041"}') == '{\n  "权重\\u007f\\u009b\\u202e\\udb40\\udc41"}'


@given(st.text(alphabet=st.characters(exclude_categories=())))
def test_nothing_unprintable_gets_through(raw: str) -> None:
    shown = text.safe(raw)
    assert shown.isprintable()
    assert not any(unicodedata.category(char) in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"} for char in shown)
    shown.encode("utf-8")


def test_a_name_of_megabytes_is_cut_and_keeps_both_ends() -> None:
    shown = text.safe("a" * 5_000_000, 60)
    assert len(shown) <= 60
    assert text.clip("model.layers.0.self_attn.q_proj.weight", 20) == "model.laye…oj.weight"


@given(st.text(), st.integers(1, 30))
def test_clipped_text_fits(raw: str, width: int) -> None:
    assert text.cells(text.clip(text.safe(raw), width)) <= width


def test_wide_characters_take_two_cells() -> None:
    assert text.cells("权重") == 4
    assert text.clip("权重权重", 5) == "权…重"


@pytest.mark.parametrize(
    ("nbytes", "shown"),
    [
        (0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (538_090_408, "538.1 MB"), (999_949, "999.9 kB"),
        (999_950, "1.0 MB"), (4_200_000_000, "4.2 GB"), (10**21, "1000.0 EB"),
    ],
)  # fmt: skip
def test_sizes(nbytes: int, shown: str) -> None:
    assert text.size(nbytes) == shown


@pytest.mark.parametrize(
    ("number", "shown"),
    [(0, "0"), (576, "576"), (9999, "9,999"), (49_152, "49.2K"), (134_515_008, "134.5M"), (7_241_732_096, "7.24B")],
)
def test_counts(number: int, shown: str) -> None:
    assert text.count(number) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "1 ms"),
        (0.04, "40 ms"),
        (0.9996, "1.0 s"),
        (1.26, "1.3 s"),
        (59.4, "59 s"),
        (185, "3 min 05 s"),
        (7800, "2 h 10 min"),
    ],
)
def test_durations(value: float, shown: str) -> None:
    assert text.seconds(value) == shown


@pytest.mark.parametrize(
    ("typed", "nbytes"),
    [
        ("5GB", 5_000_000_000), ("4.2GiB", int(4.2 * 2**30)), ("500MB", 500_000_000), ("500 mb", 500_000_000),
        ("1000000", 1_000_000), ("64k", 64_000), ("1kib", 1024), (".5GB", 500_000_000), ("2T", 2 * 10**12),
    ],
)  # fmt: skip
def test_sizes_as_people_write_them(typed: str, nbytes: int) -> None:
    assert text.parse_size(typed) == nbytes


@pytest.mark.parametrize("typed", ["", "GB", "-5GB", "5 PBB", "0", "0.0001B", "5GB5", "1e9", "5,000", "٣GB", "inf"])
def test_what_is_no_size_is_refused(typed: str) -> None:
    with pytest.raises(TaelError, match="is no size"):
        text.parse_size(typed)


def test_plurals() -> None:
    assert [text.plural(n, "tensor") for n in (0, 1, 3072)] == ["0 tensors", "1 tensor", "3,072 tensors"]
    assert text.plural(2, "entry") == "2 entries"
