# SPDX-License-Identifier: Apache-2.0
"""Writing GGUF: layout, ranks, metadata and their types through other containers, split sets, slack."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import building
from tael.convert import convert, plan_conversion
from tael.convert.execute import execute
from tael.convert.plan import Target
from tael.core.checkpoint import Checkpoint
from tael.core.limits import DEFAULT
from tael.core.location import locate
from tael.core.source import BytesSource
from tael.errors import TaelError, TransformError, UnsupportedFormatError, UnsupportedTensorError
from tael.formats import gguf, open_checkpoint
from tael.formats.gguf.header import Info, encode_header, parse
from tael.formats.gguf.metadata import to_metadata, to_values
from tael.formats.gguf.values import Array, Value, encode, fits, infer, is_kind
from tael.testing.conformance import raw

VECTORS = Path(__file__).parents[1] / "vectors" / "gguf"


def written(path: Path, contents: Mapping[str, Any], **fields: Any) -> Path:
    execute(plan_conversion(building.checkpoint(contents, **fields), path, to="gguf"))
    return path


def planned(folder: Path, checkpoint: Checkpoint, **options: Any) -> list[Path]:
    """The files written with `options` of the target."""
    size = options.pop("shard_size", None)
    plan = gguf.layout(checkpoint, Target(str(folder / "m.gguf"), size, False, options))
    execute(plan)
    return [folder / file.name for file in plan.files]


def opened(path: Path) -> Checkpoint:
    return gguf.open(locate(path), DEFAULT)


def header_of(path: Path) -> Any:
    return parse(locate(path).source(), DEFAULT)


# --- one file


def test_the_bytes_are_those_of_the_specification(tmp_path: Path) -> None:
    contents = {"a": np.array([[1, 2, 3]], np.float32), "b": np.array([7], np.int8)}
    path = written(tmp_path / "x.gguf", contents, metadata={"n": 5, "s": "hé"})
    head = b"GGUF" + struct.pack("<IQQ", 3, 2, 2)
    head += struct.pack("<Q", 1) + b"n" + struct.pack("<II", 4, 5)
    head += struct.pack("<Q", 1) + b"s" + struct.pack("<IQ", 8, 3) + "hé".encode()
    head += struct.pack("<Q", 1) + b"a" + struct.pack("<IQQIQ", 2, 3, 1, 0, 0)
    head += struct.pack("<Q", 1) + b"b" + struct.pack("<IQIQ", 1, 1, 24, 32)
    head += bytes(-len(head) % 32)
    assert path.read_bytes() == head + struct.pack("<3f", 1, 2, 3) + bytes(20) + b"\7" + bytes(31)


@pytest.mark.parametrize("name", ["package", "llama-split/whole", "llama-split/merged"])
def test_a_rewrite_without_change_is_the_same_file(name: str, tmp_path: Path) -> None:
    convert(VECTORS / f"{name}.gguf", tmp_path / "again.gguf")
    assert (tmp_path / "again.gguf").read_bytes() == (VECTORS / f"{name}.gguf").read_bytes()


@pytest.mark.parametrize("between", ["safetensors", "npz", "pt"])
def test_metadata_keep_their_types_through_other_containers(between: str, tmp_path: Path) -> None:
    """By way of one that has none of them: the header, byte for byte."""
    convert(VECTORS / "package.gguf", tmp_path / f"x.{between}", drop=["block.Q*"])
    convert(tmp_path / f"x.{between}", tmp_path / "back.gguf")
    before, after = header_of(VECTORS / "package.gguf"), header_of(tmp_path / "back.gguf")
    assert {key: value.kind for key, value in after.values.items()} == {k: v.kind for k, v in before.values.items()}
    assert after.values == before.values


@pytest.mark.parametrize("alignment", [1, 8, 64, 4096])
def test_the_alignment_asked_for_is_kept(alignment: int, tmp_path: Path) -> None:
    contents = {"a": np.ones(3, np.float32), "b": np.full(5, 2, np.float32)}
    path = written(tmp_path / "x.gguf", contents, metadata={"general.alignment": alignment})
    with opened(path) as back:
        assert [tensor.span.offset % alignment for tensor in back.tensors.values()] == [0, 0]
        assert [tensor.numpy().max() for tensor in back.tensors.values()] == [1, 2]
    assert path.stat().st_size % alignment == 0


@pytest.mark.parametrize("alignment", [0, 24, -32, 1 << 40, "32", 32.0])
def test_an_alignment_that_is_none_is_refused(alignment: object, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedFormatError, match=r"general\.alignment"):
        written(tmp_path / "x.gguf", {"a": np.ones(3, np.float32)}, metadata={"general.alignment": alignment})


SHAPES = [(1, 6, 4), (1,), (), (2, 1, 3, 1, 2), (1, 1, 1, 1), (2, 0, 3), (1, 2, 1, 2, 1, 2, 1)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("between", ["gguf", "safetensors"])
def test_q5_every_rank_comes_back(shape: tuple[int, ...], between: str, tmp_path: Path) -> None:
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    path = written(tmp_path / "x.gguf", {"w": values, "other": np.ones(2, np.float32)})
    stored = header_of(path).infos[0].shape
    assert 1 <= len(stored) <= 4
    convert(path, tmp_path / f"y.{between}")
    with open_checkpoint(tmp_path / f"y.{between}") as back:
        assert back.tensors["w"].shape == shape
        assert (back.tensors["w"].numpy() == values).all()
        assert dict(back.metadata) == {}


def test_blocks_of_more_than_four_axes_come_back_too(tmp_path: Path) -> None:
    data = bytes(range(34)) * 12
    path = written(tmp_path / "x.gguf", {"q": ("Q8_0", (2, 1, 3, 2, 32), data)})
    assert header_of(path).infos[0].shape == (2, 3, 2, 32)
    with opened(path) as back:
        assert raw(back) == {"q": ("Q8_0", (2, 1, 3, 2, 32), data)}


def test_ties_come_back(tmp_path: Path) -> None:
    path = written(tmp_path / "x.gguf", {"a": np.ones((), np.float32)}, aliases={"b": "a"}, metadata={"k": "v"})
    assert [info.name for info in header_of(path).infos] == ["a"]
    with opened(path) as back:
        assert back.aliases == {"b": "a"}
        assert back.tensors["b"].shape == ()
        assert back.metadata == {"k": "v"}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (np.ones(3, np.uint8), "GGUF has no dtype U8"),
        (np.ones(3, np.complex64), "GGUF has no dtype C64"),
        (np.ones(3, bool), "GGUF has no dtype BOOL"),
    ],
)
def test_what_gguf_has_no_type_for_is_an_error_that_names_it(content: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedTensorError, match=words) as caught:
        written(tmp_path / "x.gguf", {"the.tensor": content})
    assert caught.value.tensor == "the.tensor"
    assert not list(tmp_path.iterdir())


def test_rows_that_blocks_do_not_divide_are_an_error() -> None:
    node = building.tensor("w", ("Q8_0", (2, 32), bytes(68))).data
    broken = building.tensor("w", replace(node, shape=(4, 16)))
    with pytest.raises(UnsupportedTensorError, match="a row of 16 elements") as caught:
        gguf.layout(Checkpoint("memory", "m", {"w": broken}), Target("x.gguf"))
    assert caught.value.tensor == "w"


def test_a_name_that_is_no_bytes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedTensorError, match="cannot have a tensor of this name"):
        written(tmp_path / "x.gguf", {"\ud800": np.ones(1, np.float32)})


# --- metadata


def test_what_gguf_has_no_type_for_rides_as_json(tmp_path: Path) -> None:
    metadata = {
        "none": None,
        "object": {"a": [1, 2.5, None]},
        "mixed": [1, "a"],
        "ints and floats": [1, 2.5],
        "huge": 1 << 70,
        "half": "\ud800",
        "looks like bytes": "\udcc3\udca9",
        "": "no name",
        "k" * 70_000: 1,
        "tael.metadata": "mine",
        "lists": [[1], [2]],
    }
    path = written(tmp_path / "x.gguf", {"a": np.ones(1, np.float32)}, metadata={**metadata, "plain": 1})
    assert list(header_of(path).values) == ["plain", "tael.metadata"]
    with opened(path) as back:
        assert back.metadata == {**metadata, "plain": 1}


def test_notes_about_types_that_do_not_fit_are_not_followed(tmp_path: Path) -> None:
    types = {"a": "u8", "b": "u64", "c": "no type", "d": 7, "e": "[i8]", "f": "[[u8],[str]]", "gone": "u8"}
    metadata = {"a": 300, "b": 300, "c": 1, "d": 1, "e": [1, -2], "f": [[1], ["x"]], "gguf.types": types}
    path = written(tmp_path / "x.gguf", {"a": np.ones(1, np.float32)}, metadata=metadata)
    kinds = {key: value.kind for key, value in header_of(path).values.items()}
    assert kinds == {"a": "u32", "b": "u64", "c": "u32", "d": "u32", "e": "[i8]", "f": "[[u8],[str]]"}
    for odd in ("text", ["a"], None):
        values = to_values({"a": 1, "gguf.types": odd}, {}, {})
        assert values == {"a": Value("u32", 1)}


INFERRED: list[tuple[str, Any, str | None]] = [
    ("k", True, "bool"),
    ("k", 0, "u32"),
    ("k", 2**32 - 1, "u32"),
    ("k", -1, "i32"),
    ("k", 2**32, "u64"),
    ("k", -(2**31) - 1, "i64"),
    ("k", 2**64, None),
    ("k", 0.5, "f32"),
    ("k", 1e-5, "f64"),
    ("llama.eps", 1e-5, "f32"),
    ("llama.eps", 1e300, "f64"),
    ("k", float("nan"), "f32"),
    ("k", float("-inf"), "f32"),
    ("llama.rope.freq_base", 10000, "f32"),
    ("k", "text", "str"),
    ("k", None, None),
    ("k", [], "[str]"),
    ("k", [1, 2], "[u32]"),
    ("k", [1, -2], "[i32]"),
    ("k", [2**40, -2], "[i64]"),
    ("k", [2**63, -2], None),
    ("k", [0.5, 1e-5], "[f64]"),
    ("k", [True, 1], None),
    ("tokenizer.ggml.token_type", [1, 2], "[i32]"),
    ("tokenizer.ggml.scores", [], "[f32]"),
]


@pytest.mark.parametrize(("key", "value", "kind"), INFERRED, ids=str)
def test_types_that_values_are_given(key: str, value: Any, kind: str | None) -> None:
    assert infer(key, value) == kind


SCALARS = {
    **{f"u{bits}": st.integers(0, 2**bits - 1) for bits in (8, 16, 32, 64)},
    **{f"i{bits}": st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)},
    "f32": st.floats(width=32, allow_nan=False),
    "f64": st.floats(allow_nan=False),
    "bool": st.booleans(),
    "str": st.text(st.characters(exclude_categories=["Cs"])),
}
TYPED = st.sampled_from(sorted(SCALARS)).flatmap(
    lambda kind: st.one_of(
        SCALARS[kind].map(lambda value: Value(kind, value)),
        st.lists(SCALARS[kind], max_size=4).map(lambda value: Value(f"[{kind}]", value)),
        st.lists(st.lists(SCALARS[kind], max_size=2), min_size=1, max_size=3).map(
            lambda value: Value(f"[[{kind}]]", value)
        ),
    )
)


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=4), TYPED, max_size=4))
def test_every_type_of_every_value_survives(values: dict[str, Value]) -> None:
    infos = [Info("w", (2, 3), 0, 0), Info("v", (), 1, 32)]
    data = encode_header(values, infos)
    header = parse(BytesSource(data), DEFAULT)
    assert header.values == values
    assert header.infos == infos
    assert header.end == len(data)
    metadata, _, _ = to_metadata(header.values, "x")
    plain = {key: listed(value) for key, value in metadata.items()}
    for given_back in (metadata, plain):
        assert encode_header(to_values(given_back, {}, {}), infos) == data


def listed(value: Any) -> Any:
    return [listed(item) for item in value] if isinstance(value, list | Array) else value


@pytest.mark.parametrize("kind", ["u8", "[u8]", "[[u8]]", "[[u8],[str]]", "[[[f32]]]"])
def test_names_of_types(kind: str) -> None:
    assert is_kind(kind)


@pytest.mark.parametrize(
    "kind", ["", "u7", "[", "[]", "[u8", "u8]", "[u8,u8]", "[[u8],u8]", "[" * 20 + "u8" + "]" * 20, 7]
)
def test_no_names_of_types(kind: object) -> None:
    assert not is_kind(kind)


def test_arrays_are_sequences() -> None:
    strings = Array("str", 3, encode("[str]", ["a", "", "ccc"])[12:])
    assert (len(strings), strings[0], strings[-1], strings[1:], list(strings)) == (
        3,
        "a",
        "ccc",
        ["", "ccc"],
        ["a", "", "ccc"],
    )
    assert strings == ["a", "", "ccc"]
    assert strings != ["a", "", "cc"]
    assert strings != ["a"]
    assert strings != "a"
    with pytest.raises(IndexError):
        strings[3]
    swapped = Array("i16", 2, b"\1\0\2\0", ">")
    assert (list(swapped), swapped[1], swapped.encoded()) == ([256, 512], 512, b"\0\1\0\2")
    assert swapped == Array("i16", 2, b"\0\1\0\2")
    assert not fits("[i8]", swapped)
    assert repr(swapped) == "<2 x i16>"


# --- split sets


def seven() -> Checkpoint:
    tensors = {f"blk.{n}.weight": np.full((3, 4 + n), n, np.float32) for n in range(7)}
    metadata = {"general.architecture": "llama", "a.list": [1, 2, 3], "gguf.types": {"a.list": "[i32]"}}
    return building.checkpoint(tensors, metadata=metadata)


def test_a_set_is_the_one_that_llama_gguf_split_writes(tmp_path: Path) -> None:
    with opened(VECTORS / "llama-split" / "whole.gguf") as whole:
        files = planned(tmp_path, whole, shard_tensors=3)
    assert [file.name for file in files] == [f"m-{n:05d}-of-00003.gguf" for n in (1, 2, 3)]
    for file in files:
        assert file.read_bytes() == (VECTORS / "llama-split" / file.name.replace("m-", "tensors-")).read_bytes()


@pytest.mark.parametrize(("size", "wanted"), [(1, [1] * 7), (64, [1] * 7), (160, [2, 1, 1, 1, 1, 1]), (10**6, [7])])
def test_files_are_cut_by_size_in_order(size: int, wanted: list[int], tmp_path: Path) -> None:
    files = planned(tmp_path, seven(), shard_size=size)
    assert [len(header_of(file).infos) for file in files] == wanted
    with open_checkpoint(files[-1]) as back:
        assert raw(back) == raw(seven())
        assert back.metadata == seven().metadata


def test_what_fits_in_one_file_keeps_its_name(tmp_path: Path) -> None:
    assert planned(tmp_path, seven(), shard_size=10**6) == [tmp_path / "m.gguf"]
    assert "split.count" not in header_of(tmp_path / "m.gguf").values


def test_every_file_of_a_set_has_its_alignment(tmp_path: Path) -> None:
    checkpoint = seven()
    checkpoint.metadata["general.alignment"] = 128
    files = planned(tmp_path, checkpoint, shard_tensors=4)
    assert [header_of(file).alignment for file in files] == [128, 128]
    with open_checkpoint(files[0]) as back:
        assert raw(back) == raw(seven())
        assert back.metadata == checkpoint.metadata
        assert not back.problems


def test_keys_of_another_set_are_replaced_or_dropped(tmp_path: Path) -> None:
    checkpoint = seven()
    checkpoint.metadata.update({"split.no": 4, "split.count": 9, "split.tensors.count": 100})
    files = planned(tmp_path, checkpoint, shard_tensors=4)
    with open_checkpoint(files[1]) as back:
        assert raw(back) == raw(seven())
        assert back.metadata == seven().metadata
    (one,) = planned(tmp_path, checkpoint)
    assert not {key for key in header_of(one).values if key.startswith("split.")}


def test_ranks_and_ties_come_back_from_a_set(tmp_path: Path) -> None:
    contents = {"a": np.ones((2, 1, 1, 2, 2), np.float32), "b": np.ones((), np.float32)}
    checkpoint = building.checkpoint(contents, aliases={"c": "b"}, metadata={"x": None})
    files = planned(tmp_path, checkpoint, shard_tensors=1)
    with open_checkpoint(files[1]) as back:
        assert raw(back) == raw(checkpoint)
        assert back.aliases == {"c": "b"}
        assert back.metadata == {"x": None}


@pytest.mark.parametrize("options", [{"shard_tensors": 0}, {"shard_size": 0}, {"shard_tensors": "3"}, {"reserve": -1}])
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(TransformError):
        planned(Path("nowhere"), seven(), **options)


# --- slack


def test_reserve_keeps_bytes_free_and_is_no_metadata(tmp_path: Path) -> None:
    (path,) = planned(tmp_path, seven(), reserve=5000)
    assert header_of(path).values["tael.reserved"] == Value("str", " " * 5000)
    assert header_of(path).data_start > 5000
    with opened(path) as back:
        assert back.metadata == seven().metadata
        assert raw(back) == raw(seven())


def test_nothing_is_written_for_a_bad_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(TaelError):
        written(tmp_path / "x.gguf", {"a": np.ones(1, np.float32), "b": np.ones(1, np.uint8)})
    assert not list(tmp_path.iterdir())
