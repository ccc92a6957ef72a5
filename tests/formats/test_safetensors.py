# SPDX-License-Identifier: Apache-2.0
"""The SafeTensors reader and writer: the format's rules one by one, and the real library both ways."""

from __future__ import annotations

import builtins
import hashlib
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import building
from tael.convert import convert, plan_conversion
from tael.convert.execute import execute
from tael.core.checkpoint import Checkpoint
from tael.core.dtypes import DTYPES
from tael.core.limits import DEFAULT, Limits
from tael.core.location import locate
from tael.errors import (
    CorruptFileError,
    LimitExceededError,
    TaelError,
    TransformError,
    UnsupportedFormatError,
    UnsupportedTensorError,
)
from tael.formats import open_checkpoint, safetensors, safetensors_files
from tael.formats.detect import Probe, detect
from tael.formats.registry import Confidence
from tael.formats.safetensors import FORMAT
from tael.testing import FormatConformance, torture

VECTORS = Path(__file__).parents[1] / "vectors" / "safetensors"


class TestConformance(FormatConformance):
    format = FORMAT


def opened(path: str | os.PathLike[str], limits: Limits = DEFAULT) -> Checkpoint:
    return safetensors.open(locate(path), limits)


def written(path: Path, contents: Mapping[str, Any], **fields: Any) -> Path:
    execute(plan_conversion(building.checkpoint(contents, **fields), path, to="safetensors"))
    return path


def header_of(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    return json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])


def raw_file(path: Path, header: bytes, payload: bytes = b"") -> Path:
    path.write_bytes(len(header).to_bytes(8, "little") + header + payload)
    return path


# --- malformed files: one vector per rule, the error and its words

MALFORMED: dict[str, tuple[type[TaelError], str]] = {
    "too_short": (CorruptFileError, "has 3 bytes, too few for the length of a header"),
    "header_beyond_end": (CorruptFileError, "the header should have 1,000 bytes, but the file ends after 2"),
    "header_length_2_63": (CorruptFileError, "should have 9,223,372,036,854,775,808 bytes"),
    "leading_space": (CorruptFileError, "the header starts with b' ', not with '{'"),
    "not_utf8": (CorruptFileError, "byte 10: the header is not UTF-8"),
    "not_json": (CorruptFileError, "the header is not JSON: Expecting value"),
    "zero_padding": (CorruptFileError, "byte 10: the header is not JSON: Extra data"),
    "nan": (CorruptFileError, "NaN is no number"),
    "nested": (CorruptFileError, "nested far too deeply"),
    "long_number": (CorruptFileError, "a number with thousands of digits"),
    "half_surrogate": (CorruptFileError, "half of a surrogate pair"),
    "name_twice": (CorruptFileError, "tensor 'a': this name stands twice in the header"),
    "field_twice": (CorruptFileError, "tensor 'x': 'dtype' stands twice in its entry"),
    "entry_is_a_number": (CorruptFileError, "tensor 'x': its entry is 1, not an object"),
    "no_shape": (CorruptFileError, "tensor 'x': its entry has no 'shape'"),
    "dtype_unknown": (UnsupportedTensorError, "tensor 'x': dtype 'Q4_K' is not one of SafeTensors 0.8"),
    "dtype_lower_case": (UnsupportedTensorError, "tensor 'x': dtype 'u8' is not one of"),
    "dtype_is_a_number": (CorruptFileError, "tensor 'x': dtype 3 is not a name"),
    "shape_is_a_number": (CorruptFileError, "tensor 'x': shape 1 is not a list of lengths"),
    "shape_negative": (CorruptFileError, "shape [-1, -1] is not a list of lengths"),
    "shape_float": (CorruptFileError, "shape [1.0] is not a list of lengths"),
    "shape_bool": (CorruptFileError, "shape [true] is not a list of lengths"),
    "shape_nested": (CorruptFileError, "shape a list is not a list of lengths"),
    "shape_2_63": (CorruptFileError, "shape [9223372036854775808] is larger than any file"),
    "shape_overflows": (CorruptFileError, "is larger than any file"),
    "shape_empty_and_endless": (CorruptFileError, "is larger than any file"),
    "shape_of_65_axes": (LimitExceededError, "tensor 'x': has 65 axes, the limit is 64"),
    "larger_than_its_bytes": (
        CorruptFileError,
        "tensor 'x': F32 [1000, 1000] takes 4,000,000 bytes, its data_offsets [0, 4] hold 4",
    ),
    "half_a_byte": (UnsupportedTensorError, "tensor 'x': 3 elements of F4_E2M1 do not fill whole bytes"),
    "offsets_of_three": (CorruptFileError, "data_offsets [0, 1, 2] is not [begin, end]"),
    "offsets_reversed": (CorruptFileError, "data_offsets [1, 0] is not [begin, end]"),
    "offsets_negative": (CorruptFileError, "data_offsets [-1, 0] is not [begin, end]"),
    "offsets_float": (CorruptFileError, "data_offsets [0.0, 1.0] is not [begin, end]"),
    "offsets_of_text": (CorruptFileError, 'data_offsets ["0", "1"] is not [begin, end]'),
    "hole_at_start": (CorruptFileError, "bytes 0 to 1 of the payload belong to no tensor"),
    "hole_between": (CorruptFileError, "tensor 'b', byte 130: bytes 1 to 2 of the payload belong to no tensor"),
    "overlap": (CorruptFileError, "tensor 'b', byte 130: overlaps tensor 'a'"),
    "same_offset": (CorruptFileError, "tensor 'b', byte 128: lies at the same bytes as tensor 'a'"),
    "trailing_bytes": (CorruptFileError, "4 bytes follow the last tensor"),
}


def test_every_malformed_vector_has_its_error_here() -> None:
    assert {path.stem for path in (VECTORS / "malformed").iterdir()} == set(MALFORMED)


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_file_is_refused_with_the_cause(name: str) -> None:
    kind, words = MALFORMED[name]
    with pytest.raises(TaelError) as caught:
        opened(VECTORS / "malformed" / f"{name}.safetensors")
    text = str(caught.value)
    assert words in text
    assert type(caught.value) is kind
    assert f"{name}.safetensors" in text
    assert len(text) < 1000
    assert text.count("\n") <= 2


@pytest.mark.peer
@pytest.mark.parametrize("name", MALFORMED)
def test_the_library_refuses_it_too(name: str) -> None:
    from safetensors import SafetensorError, deserialize

    accepted = {
        "leading_space",  # against the specification
        "name_twice",  # takes the last
        "shape_empty_and_endless",  # no array library can make it
        "shape_of_65_axes",  # nor this
    }
    data = (VECTORS / "malformed" / f"{name}.safetensors").read_bytes()
    if name in accepted:
        deserialize(data)
    else:
        with pytest.raises(SafetensorError):
            deserialize(data)


def test_two_names_at_one_offset_are_explained() -> None:  # S7
    with pytest.raises(CorruptFileError, match="tied tensors are stored once"):
        opened(VECTORS / "malformed" / "same_offset.safetensors")


def test_a_shape_larger_than_its_bytes_allocates_nothing(tmp_path: Path) -> None:  # C3
    header = b'{"x":{"dtype":"F32","shape":[%d],"data_offsets":[0,%d]}}' % (1 << 50, 1 << 52)
    with opened(raw_file(tmp_path / "x.safetensors", header, b"abcd")) as checkpoint:
        (tensor,) = checkpoint.tensors.values()
        with pytest.raises(UnsupportedTensorError, match="needs the file up to byte"):
            tensor.numpy()


def test_limits_hold_before_anything_is_built(tmp_path: Path) -> None:
    path = written(tmp_path / "x.safetensors", {f"t{n}": np.zeros(1, np.uint8) for n in range(9)})
    for limits, words in (
        (Limits(header_bytes=100), "the header's length"),
        (Limits(tensors=4), "the number of tensors"),
        (Limits(name_bytes=1), "a name of 2 characters"),
    ):
        with pytest.raises(LimitExceededError, match=words):
            opened(path, limits)


def test_a_deep_header_is_no_stack_overflow(tmp_path: Path) -> None:
    for opener, closer in ((b"[", b"]"), (b'{"a":', b"}")):
        for field in (b'"__metadata__"', b'"x"'):
            middle = opener * 50_000 + b"1" + closer * 50_000
            with pytest.raises(CorruptFileError):
                opened(raw_file(tmp_path / "x", b"{" + field + b":" + middle + b"}"))


def test_deep_metadata_of_ours_is_refused_too(tmp_path: Path) -> None:
    inner = '{"values":{"a":' + "[" * 100 + "]" * 100 + "}}"
    header = json.dumps({"__metadata__": {"tael.metadata": inner}}).encode()
    with pytest.raises(CorruptFileError, match="nested far too deeply"):
        opened(raw_file(tmp_path / "x.safetensors", header))


# --- odd but readable

ODD = {
    "metadata_0": ({}, "should be an object of strings, is 0"),
    "metadata_null": ({}, "is null instead of absent"),
    "metadata_empty": ({}, None),
    "metadata_list": ({}, 'should be an object of strings, is ["a"]'),
    "metadata_number": ({"step": 12, "format": "pt"}, "has values that are no strings: step"),
    "metadata_nested": ({"a": {"b": [1, None]}}, "has values that are no strings: a"),
    "metadata_twice": ({"a": "2"}, "names 'a' twice"),
    "metadata_foreign": ({"tael.metadata": "[1]"}, "is not what tael writes"),
    "unknown_field": ({}, "1 entries hold fields that no reader knows"),
    "any_order": ({}, None),
}


@pytest.mark.parametrize("name", ODD)
def test_oddities_survive_and_are_said(name: str) -> None:  # C4
    metadata, words = ODD[name]
    with opened(VECTORS / "odd" / f"{name}.safetensors") as checkpoint:
        assert checkpoint.metadata == metadata
        assert [problem.severity for problem in checkpoint.problems] in ([], ["warning"], ["note"])
        assert [words in problem.what for problem in checkpoint.problems] == ([True] if words else [])
        assert all(building.raw_bytes(tensor) for tensor in checkpoint.tensors.values())


@pytest.mark.parametrize("name", [name for name in ODD if name.startswith("metadata")])
def test_converting_repairs_the_metadata(name: str, tmp_path: Path) -> None:  # C4
    metadata, _ = ODD[name]
    convert(VECTORS / "odd" / f"{name}.safetensors", tmp_path / "repaired.safetensors")
    with opened(tmp_path / "repaired.safetensors") as back:
        assert back.metadata == metadata
    assert all(isinstance(value, str) for value in header_of(tmp_path / "repaired.safetensors").get("__metadata__", {}))


def test_ranges_may_come_in_any_order() -> None:
    with opened(VECTORS / "odd" / "any_order.safetensors") as checkpoint:
        assert {name: building.raw_bytes(t) for name, t in checkpoint.tensors.items()} == {"a": b"d", "b": b"abc"}


@pytest.mark.parametrize("extra", range(8))
def test_the_payload_starts_right_behind_the_header(extra: int, tmp_path: Path) -> None:  # C5
    header = b'{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}' + b" " * extra
    payload = np.array([1.5, -2.0], np.float32)
    with opened(raw_file(tmp_path / "x.safetensors", header, payload.tobytes())) as checkpoint:
        assert checkpoint.tensors["x"].span.offset == 8 + len(header)
        assert checkpoint.tensors["x"].numpy().tolist() == [1.5, -2.0]


def test_a_file_cut_short_keeps_its_intact_tensors() -> None:  # T5
    with opened(VECTORS / "odd" / "cut.safetensors") as checkpoint:
        whole, *each = checkpoint.fatal()
        assert "should have 136 bytes and has 134; 1 of 2 tensors are intact" in whole.what
        assert [(problem.tensor, problem.what) for problem in each] == [
            ("b", "needs the file up to byte 136, which ends at 134")
        ]
        assert building.raw_bytes(checkpoint.tensors["a"]) == b"abcd"
        assert checkpoint.tensors["b"].damaged


@pytest.mark.parametrize(("missing", "damaged"), [(1, ["b"]), (4, ["b"]), (5, ["a", "b"]), (8, ["a", "b"])])
def test_a_tensor_is_damaged_from_its_last_byte_on(missing: int, damaged: list[str], tmp_path: Path) -> None:  # T5
    path = written(tmp_path / "x.safetensors", {"a": np.zeros(4, np.uint8), "b": np.zeros(4, np.uint8)})
    path.write_bytes(path.read_bytes()[:-missing])
    with opened(path) as checkpoint:
        assert [tensor.name for tensor in checkpoint.tensors.values() if tensor.damaged] == damaged


def test_a_cut_file_converts_only_when_told_to(tmp_path: Path) -> None:  # T5
    source = VECTORS / "odd" / "cut.safetensors"
    with pytest.raises(CorruptFileError, match="1 of 2 tensors are intact"):
        convert(source, tmp_path / "out.safetensors")
    assert not list(tmp_path.iterdir())
    result = convert(source, tmp_path / "out.safetensors", skip_damaged=True)
    assert [loss.kind for loss in result.plan.losses] == ["damaged"]
    with opened(tmp_path / "out.safetensors") as back:
        assert list(back.tensors) == ["a"]


def test_one_file_of_a_set_says_so(tmp_path: Path) -> None:
    path = written(tmp_path / "m.safetensors", {"a": np.zeros(2, np.float32)})
    alone = path.rename(tmp_path / "m-00002-of-00003.safetensors")
    with open_checkpoint(alone) as checkpoint:
        assert checkpoint.format == "safetensors"
        assert ["this is part 2 of 3" in problem.what for problem in checkpoint.problems] == [True]


# --- detection


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        (b"\2\0\0\0\0\0\0\0{}", Confidence.CERTAIN),
        (b"\x08\0\0\0\0\0\0\0{}      ", Confidence.CERTAIN),
        (b"\xff\xff\0\0\0\0\0\0" + b'{"a":', Confidence.LIKELY),
        (b'var a = {"x":1}', Confidence.NONE),
        (b"\2\0\0\0\0\0\0\0{a", Confidence.NONE),
        (b"\2\0\0\0\0\0\0\0[]", Confidence.NONE),
        (b"", Confidence.NONE),
        (b"\2\0\0", Confidence.NONE),
    ],
)
def test_match_goes_by_content(data: bytes, wanted: Confidence, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(data)
    assert safetensors.match(Probe(locate(path))) == wanted


# --- ties


def test_ties_come_back_and_follow_renames(tmp_path: Path) -> None:  # S2
    shared = np.arange(4, dtype=np.float32)
    path = written(tmp_path / "a.safetensors", {"shared.weight": shared}, aliases={"encoder.weight": "shared.weight"})
    assert [name for name in header_of(path) if name != "__metadata__"] == ["shared.weight"]
    convert(path, tmp_path / "b.safetensors", rename=["shared.weight=common.weight"])
    with opened(tmp_path / "b.safetensors") as back:
        assert back.aliases == {"encoder.weight": "common.weight"}
        assert back.tensors["encoder.weight"].numpy().tolist() == [0, 1, 2, 3]


def test_the_ties_of_save_model_are_read() -> None:
    with opened(VECTORS / "save_model.safetensors") as checkpoint:
        assert checkpoint.aliases == {"head.weight": "embed.weight"}
        assert checkpoint.metadata == {}


def test_metadata_that_only_looks_like_a_tie_stays(tmp_path: Path) -> None:
    contents = {"pt": np.zeros(1, np.float32), "b": np.zeros(1, np.float32)}
    metadata = {"format": "pt", "b": "pt", "note": "none of the names"}
    with opened(written(tmp_path / "x.safetensors", contents, metadata=metadata)) as back:
        assert back.aliases == {}
        assert back.metadata == metadata


# --- the writer


def test_metadata_is_carried(tmp_path: Path) -> None:  # M5
    metadata = {"format": "pt", "x": "y"}
    path = written(tmp_path / "a.safetensors", {"a": np.zeros(1, np.float32)}, metadata=metadata)
    convert(path, tmp_path / "b.safetensors")
    assert header_of(tmp_path / "b.safetensors")["__metadata__"] == metadata


@pytest.mark.parametrize(
    ("source", "metadata", "wanted"),
    [
        ("torch", {}, {"format": "pt"}),
        ("hf", {"format": "flax"}, {"format": "flax"}),
        ("safetensors", {}, None),
        ("npz", {}, None),
        ("npz", {"step": 1}, {"tael.metadata": '{"values":{"step":1}}'}),
    ],
)
def test_nothing_is_added_to_the_metadata_but_the_format_of_torch(
    source: str, metadata: dict[str, Any], wanted: object, tmp_path: Path
) -> None:
    contents = {"a": np.zeros(1, np.float32)}
    path = written(tmp_path / "x.safetensors", contents, format=source, metadata=metadata)
    assert header_of(path).get("__metadata__") == wanted


def test_the_largest_alignment_comes_first(tmp_path: Path) -> None:
    kinds = ("uint8", "float32", "int64", "bool", "float16", "float64")
    arrays = {f"{kind}.{n}": np.ones(3, kind) for n in (1, 0) for kind in kinds}
    path = written(tmp_path / "x.safetensors", arrays)
    with opened(path) as back:
        for tensor in back.tensors.values():
            assert tensor.span.offset % tensor.dtype.block_bytes == 0
    names = list(header_of(path))
    assert names[:4] == ["int64.0", "int64.1", "float64.0", "float64.1"]
    assert path.stat().st_size % 8 == sum(array.nbytes for array in arrays.values()) % 8


@pytest.mark.parametrize("name", ["I4", "U2", "C128", "C32", "Q4_K"])
def test_a_dtype_that_it_lacks_is_refused_with_the_way_out(name: str, tmp_path: Path) -> None:
    kind = DTYPES[name]
    shape = (1, max(kind.block, 4))
    checkpoint = building.checkpoint({"x": (name, shape, bytes(kind.nbytes(shape)))})
    with pytest.raises(UnsupportedTensorError, match=rf"(?s)tensor 'x': SafeTensors has no dtype {name}.*--dtype"):
        plan_conversion(checkpoint, tmp_path / "x.safetensors")


@pytest.mark.parametrize("name", ["__metadata__", "half\ud800"])
def test_a_name_that_it_cannot_spell_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedTensorError, match="cannot have a tensor of this name"):
        plan_conversion(building.checkpoint({name: np.zeros(1, np.uint8)}), tmp_path / "x.safetensors")


def test_no_name_is_written_that_the_reader_refuses(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    fits, too_long = "é" * 65_536, "é" * 65_537
    plan_conversion(building.checkpoint({fits: np.zeros(1, np.uint8)}), path)
    with pytest.raises(UnsupportedTensorError, match=r"its name has 65,537 characters, the limit is 65,536"):
        plan_conversion(building.checkpoint({too_long: np.zeros(1, np.uint8)}), path)
    with pytest.raises(UnsupportedTensorError, match="its name has 65,537"):
        plan_conversion(building.checkpoint({"a": np.zeros(1, np.uint8)}, aliases={too_long: "a"}), path)


def test_a_header_that_readers_refuse_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safetensors_files, "LARGEST_HEADER", 1000)
    checkpoint = building.checkpoint({"a": np.zeros(1, np.uint8)}, metadata={"long": "x" * 1000})
    with pytest.raises(UnsupportedFormatError, match="readers take 1,000 at most"):
        plan_conversion(checkpoint, tmp_path / "x.safetensors")


# --- shards


def sizes(tmp_path: Path, limit: int, *bytes_of: int) -> list[list[str]]:
    arrays = {f"t{n}": np.zeros(size, np.uint8) for n, size in enumerate(bytes_of)}
    plan = plan_conversion(building.checkpoint(arrays), tmp_path / "m.safetensors", shard_size=limit)
    return [[part.tensor for part in file.parts if hasattr(part, "tensor")] for file in plan.files]


def test_shards_are_filled_in_order_and_a_large_tensor_stands_alone(tmp_path: Path) -> None:
    assert sizes(tmp_path, 10, 6, 6, 2, 6, 2, 2) == [["t0"], ["t1", "t2"], ["t3", "t4", "t5"], []]
    assert sizes(tmp_path, 10, 6, 20, 4, 1) == [["t1"], ["t0", "t2"], ["t3"], []]
    assert sizes(tmp_path, 10, 20) == [["t0"]]
    assert sizes(tmp_path, 10, 5, 5) == [["t0", "t1"]]


def test_a_set_has_its_index_last_and_reads_back(tmp_path: Path) -> None:
    case = torture(sorted(FORMAT.dtypes))
    plan = plan_conversion(case, tmp_path / "m.safetensors", shard_size=300)
    execute(plan)
    names = [file.name for file in plan.files]
    assert names[-1] == "m.safetensors.index.json"
    assert names[0] == f"m-00001-of-{len(names) - 1:05d}.safetensors"
    index = json.loads((tmp_path / names[-1]).read_text("utf-8"))
    assert index["metadata"] == {"total_size": case.nbytes}
    assert set(index["weight_map"]) == {tensor.name for tensor in case.owners}
    with open_checkpoint(tmp_path / names[-1]) as back:
        assert back.aliases == case.aliases
        assert back.metadata == case.metadata
        assert not back.problems
        assert {t.name: building.raw_bytes(t) for t in back.tensors.values()} == {
            t.name: building.raw_bytes(t) for t in case.tensors.values()
        }


def test_a_tie_is_noted_in_the_shard_that_holds_the_tensor(tmp_path: Path) -> None:
    contents = {"a": np.zeros(4, np.uint8), "b": np.zeros(4, np.uint8)}
    checkpoint = building.checkpoint(contents, aliases={"tied": "b"})
    execute(plan_conversion(checkpoint, tmp_path / "m.safetensors", shard_size=4))
    assert "__metadata__" not in header_of(tmp_path / "m-00001-of-00002.safetensors")
    with open_checkpoint(tmp_path / "m-00002-of-00002.safetensors", "safetensors") as alone:
        assert alone.aliases == {"tied": "b"}


def test_a_shard_size_must_be_positive(tmp_path: Path) -> None:
    with pytest.raises(TransformError, match="a shard cannot have 0 bytes"):
        sizes(tmp_path, 0, 1)


# --- saving over what is open (D4, D5), file modes (D6)


def test_the_target_may_not_be_the_input(tmp_path: Path) -> None:  # D4
    path = written(tmp_path / "x.safetensors", {"a": np.arange(3.0)})
    before = path.read_bytes()
    with pytest.raises(TaelError):
        convert(path, path, force=True)
    assert path.read_bytes() == before


def test_a_mapped_target_is_replaced_and_never_opened_for_writing(tmp_path: Path) -> None:  # D5
    import mmap

    old = written(tmp_path / "x.safetensors", {"a": np.arange(3.0)})
    new = written(tmp_path / "y.safetensors", {"a": np.arange(3.0) + 1})
    before = old.read_bytes()
    with builtins.open(old, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        old.chmod(stat.S_IRUSR)  # opening it for writing would fail, unless root
        inode = old.stat().st_ino
        convert(new, old, force=True)
        assert bytes(mapped) == before
        assert old.stat().st_ino != inode
    assert old.read_bytes() == new.read_bytes()


def test_the_mode_is_the_umasks(tmp_path: Path) -> None:  # D6
    previous = os.umask(0o022)
    try:
        path = written(tmp_path / "x.safetensors", {"a": np.arange(3.0)})
        assert stat.S_IMODE(path.stat().st_mode) == 0o644
        path.chmod(0o640)
        convert(written(tmp_path / "y.safetensors", {"a": np.arange(4.0)}), path, force=True)
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
    finally:
        os.umask(previous)


# --- golden files of the library

RENAMED = {"F4": "F4_E2M1"}


def test_the_vectors_are_those_that_were_recorded() -> None:
    recorded = json.loads((VECTORS / "PROVENANCE.json").read_text("utf-8"))["files"]
    found = {
        path.relative_to(VECTORS).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in VECTORS.rglob("*")
        if path.is_file() and path.name != "PROVENANCE.json"
    }
    assert {name: entry["sha256"] for name, entry in recorded.items()} == found


def test_what_the_library_wrote_is_read_bit_for_bit() -> None:  # Y1 Y4
    wanted = json.loads((VECTORS / "library.json").read_text("utf-8"))
    with opened(VECTORS / "library.safetensors") as checkpoint:
        assert checkpoint.metadata == {"format": "pt"}
        assert not checkpoint.problems
        found = {t.name: [list(t.shape), building.raw_bytes(t).hex()] for t in checkpoint.tensors.values()}
    assert found == wanted


def test_packed_elements_keep_their_logical_shape() -> None:
    with opened(VECTORS / "f4.safetensors") as checkpoint:
        tensor = checkpoint.tensors["packed"]
        assert (tensor.dtype.name, tensor.shape) == ("F4_E2M1", (2, 4))
        assert tensor.numpy().astype(np.float32).tolist() == [[0.5, 1.0, 1.5, 2.0], [3.0, 4.0, 6.0, -0.0]]


def test_our_file_of_the_same_tensors_is_the_librarys_byte_for_byte(tmp_path: Path) -> None:
    for name in ("library", "f4"):
        convert(VECTORS / f"{name}.safetensors", tmp_path / f"{name}.safetensors")
        assert (tmp_path / f"{name}.safetensors").read_bytes() == (VECTORS / f"{name}.safetensors").read_bytes()


# --- the library itself


@pytest.mark.peer
def test_the_library_knows_the_same_dtypes_in_the_same_order(tmp_path: Path) -> None:
    from safetensors import deserialize

    plan = plan_conversion(torture(sorted(FORMAT.dtypes), views=False, ties=False), tmp_path / "x.safetensors")
    execute(plan)
    read = deserialize((tmp_path / "x.safetensors").read_bytes())
    assert {entry["dtype"] for _, entry in read} == set(safetensors.DTYPES)
    with opened(tmp_path / "x.safetensors") as ours:
        assert {name: (entry["dtype"], tuple(entry["shape"]), bytes(entry["data"])) for name, entry in read} == {
            t.name: (
                next(spec for spec, kind in safetensors.DTYPES.items() if kind is t.dtype),
                t.shape,
                building.raw_bytes(t),
            )
            for t in ours.tensors.values()
        }


@pytest.mark.peer
def test_torch_loads_what_we_wrote(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    held = sorted(FORMAT.dtypes - {"F4_E2M1", "F6_E2M3", "F6_E3M2", "F8_E8M0"})
    case = torture(held)
    execute(plan_conversion(case, tmp_path / "x.safetensors"))
    loaded = load_file(tmp_path / "x.safetensors")
    assert loaded.keys() == {tensor.name for tensor in case.owners}
    for tensor in case.owners:
        mine = loaded[tensor.name]
        assert tuple(mine.shape) == tensor.shape
        assert mine.reshape(-1).view(torch.uint8).numpy().tobytes() == building.raw_bytes(tensor)


@pytest.mark.peer
def test_numpy_loads_what_we_wrote(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    held = [name for name in sorted(FORMAT.dtypes) if hasattr(np, DTYPES[name].numpy_name or "-")]
    case = torture(held)
    execute(plan_conversion(case, tmp_path / "x.safetensors"))
    loaded = load_file(tmp_path / "x.safetensors")
    for tensor in case.owners:
        assert loaded[tensor.name].shape == tensor.shape
        assert loaded[tensor.name].tobytes() == building.raw_bytes(tensor)


@pytest.mark.peer
def test_load_model_takes_our_ties(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_model

    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = torch.nn.Embedding(4, 2)
            self.head = torch.nn.Linear(2, 4, bias=False)
            self.head.weight = self.embed.weight

    convert(VECTORS / "save_model.safetensors", tmp_path / "x.safetensors")
    model = Tied()
    assert load_model(model, str(tmp_path / "x.safetensors")) == (set(), [])
    with opened(tmp_path / "x.safetensors") as checkpoint:
        assert model.head.weight.detach().numpy().tolist() == checkpoint.tensors["head.weight"].numpy().tolist()


@pytest.mark.peer
def test_what_the_library_has_loaded_survives_a_conversion_onto_its_file(tmp_path: Path) -> None:  # D4
    from safetensors.numpy import load_file

    path = written(tmp_path / "x.safetensors", {"a": np.arange(3.0)})
    loaded = load_file(path)
    convert(written(tmp_path / "y.safetensors", {"a": np.arange(3.0) + 1}), path, force=True)
    assert loaded["a"].tolist() == [0.0, 1.0, 2.0]


# --- any bytes at all


@given(st.binary(max_size=200), st.integers(0, 300))
def test_bytes_are_opened_or_refused_by_a_tael_error(data: bytes, length: int) -> None:
    import tempfile

    with tempfile.NamedTemporaryFile(suffix=".safetensors") as file:
        file.write(length.to_bytes(8, "little") + b"{" + data)
        file.flush()
        try:
            with opened(file.name) as checkpoint:
                assert checkpoint.tensors is not None
        except TaelError:
            pass


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
entries = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from(["F32", "U8", "F4", "F6_E2M3", "X"]) | json_values,
        "shape": st.lists(st.integers(-1, 4), max_size=3) | json_values,
        "data_offsets": st.lists(st.integers(-1, 9), min_size=1, max_size=3) | json_values,
    },
)


@given(
    st.dictionaries(st.sampled_from(["a", "b", "__metadata__"]), entries | json_values, max_size=3),
    st.binary(max_size=16),
)
def test_headers_of_any_shape_are_opened_or_refused_by_a_tael_error(header: dict[str, Any], payload: bytes) -> None:
    import tempfile

    text = json.dumps(header).encode()
    with tempfile.NamedTemporaryFile(suffix=".safetensors") as file:
        file.write(len(text).to_bytes(8, "little") + text + payload)
        file.flush()
        try:
            with opened(file.name) as checkpoint:
                total = 0
                for tensor in checkpoint.owners:
                    total += tensor.nbytes
                    if not tensor.damaged:
                        assert len(building.raw_bytes(tensor)) == tensor.nbytes
                assert checkpoint.fatal() or total == len(payload)
        except TaelError:
            pass


def test_detection_names_it(tmp_path: Path) -> None:
    assert detect(locate(VECTORS / "library.safetensors")) is FORMAT
