# SPDX-License-Identifier: Apache-2.0
"""Reading GGUF: the format's rules one by one, all of its versions, split sets, and what the real tools wrote."""

from __future__ import annotations

import os
import shutil
import struct
import time
from pathlib import Path

import numpy as np
import pytest

import building
from tael.convert import convert
from tael.core.checkpoint import Checkpoint
from tael.core.limits import DEFAULT, Limits
from tael.core.location import locate
from tael.core.source import FileSource
from tael.errors import (
    CorruptFileError,
    LimitExceededError,
    NotAWeightFileError,
    TaelError,
    UnsupportedFormatError,
    UnsupportedTensorError,
)
from tael.formats import gguf, open_checkpoint
from tael.formats.detect import Probe
from tael.formats.gguf import FORMAT
from tael.formats.registry import Confidence
from tael.inspection.summary import to_json
from tael.testing import FormatConformance
from tael.testing.conformance import raw

VECTORS = Path(__file__).parents[1] / "vectors" / "gguf"


class TestConformance(FormatConformance):
    format = FORMAT


def opened(path: str | os.PathLike[str], limits: Limits = DEFAULT) -> Checkpoint:
    return gguf.open(locate(path), limits)


def said(checkpoint: Checkpoint) -> list[tuple[str, str]]:
    return [(problem.severity, problem.what) for problem in checkpoint.problems]


# --- malformed files: one vector per rule, the error and its words

MALFORMED: dict[str, tuple[type[TaelError], str]] = {
    "magic_only": (CorruptFileError, "ends at byte 4, inside of the version"),
    "version_cut": (CorruptFileError, "ends at byte 6, inside of the version"),
    "version_0": (UnsupportedFormatError, "this is GGUF version 0; 1 to 3 are read"),
    "version_4": (UnsupportedFormatError, "this is GGUF version 4; 1 to 3 are read"),
    "counts_cut": (CorruptFileError, "inside of the number of metadata keys"),
    "tensors_2_60": (CorruptFileError, "the number of tensors is 1,152,921,504,606,846,976, but only 40 bytes follow"),
    "tensors_all_ones": (CorruptFileError, "the number of tensors is 18,446,744,073,709,551,615, but only 40"),
    "keys_2_60": (CorruptFileError, "the number of metadata keys is 1,152,921,504,606,846,976, but only 32"),
    "keys_all_ones": (CorruptFileError, "the number of metadata keys is 18,446,744,073,709,551,615, but only 32"),
    "key_length_2_60": (CorruptFileError, "byte 24: the length of a key is 1,152,921,504,606,846,976"),
    "key_length_past_end": (CorruptFileError, "the length of a key is 100, but only 32 bytes follow"),
    "string_past_end": (CorruptFileError, "the length of the value of 'a' is 1,000, but only 35 bytes follow"),
    "string_length_all_ones": (CorruptFileError, "the length of the value of 'a' is 18,446,744,073,709,551,615"),
    "value_type_13": (CorruptFileError, "the type of 'a' is 13, which GGUF does not have"),
    "value_cut": (CorruptFileError, "inside of the value of 'a.long.enough.key'"),
    "array_type_13": (CorruptFileError, "the items of 'a' are of type 13"),
    "array_of_2_60": (CorruptFileError, "the number of items of 'a' is 1,152,921,504,606,846,976"),
    "strings_2_60": (CorruptFileError, "the number of items of 'a' is 1,152,921,504,606,846,976"),
    "strings_all_ones": (CorruptFileError, "the number of items of 'a' is 18,446,744,073,709,551,615"),
    "string_in_array_past_end": (CorruptFileError, "inside of an array of strings"),
    "string_in_array_all_ones": (CorruptFileError, "inside of an array of strings"),
    "arrays_too_deep": (LimitExceededError, "arrays in arrays more than 8 deep under 'a'"),
    "arrays_of_2_60": (CorruptFileError, "the number of items of 'a' is 1,152,921,504,606,846,976"),
    "key_twice": (CorruptFileError, "the key 'general.architecture' stands twice"),
    "alignment_0": (CorruptFileError, "general.alignment is 0 (u32), not a power of two"),
    "alignment_24": (CorruptFileError, "general.alignment is 24 (u32), not a power of two"),
    "alignment_2_31": (CorruptFileError, "general.alignment is 2,147,483,648 (u32)"),
    "alignment_u64": (CorruptFileError, "general.alignment is 32 (u64), not a power of two as u32"),
    "alignment_text": (CorruptFileError, "general.alignment is none (str)"),
    "axes_5": (CorruptFileError, "tensor 'w', byte 33: has 5 axes, of which GGUF allows 4"),
    "axes_all_ones": (CorruptFileError, "has 4,294,967,295 axes"),
    "name_past_end": (CorruptFileError, "the length of a name is 1,000, but only 125 bytes follow"),
    "info_cut": (CorruptFileError, "inside of a tensor's info"),
    "shape_2_63": (CorruptFileError, "tensor 'w': shape [9223372036854775808] is larger than any file"),
    "shape_overflows": (CorruptFileError, "is larger than any file"),
    "shape_wraps_to_4": (CorruptFileError, "shape [4294967296, 4294967297] is larger than any file"),
    "shape_empty_and_endless": (CorruptFileError, "is larger than any file"),
    "row_no_multiple": (CorruptFileError, "tensor 'w': a row of 48 elements is no multiple of Q8_0's block of 32"),
    "offset_2_63": (CorruptFileError, "the end at offset 9,223,372,036,854,775,808 is larger than any file"),
    "offset_misaligned": (CorruptFileError, "tensor 'x': starts at 16 of the data, which is no multiple of 32"),
    "offset_same": (CorruptFileError, "tensor 'x', byte 96: overlaps tensor 'w'"),
    "overlap": (CorruptFileError, "tensor 'x', byte 128: overlaps tensor 'w'"),
    "name_twice": (CorruptFileError, "tensor 'w': two tensors have this name"),
    "split_number_beyond": (CorruptFileError, "split.no is 2, but split.count 2"),
    "split_count_text": (CorruptFileError, "split.count is no integer"),
    "metadata_deep": (CorruptFileError, "tael.metadata is nested far too deeply"),
}


def test_every_malformed_vector_has_its_error_here() -> None:
    assert {path.stem for path in (VECTORS / "malformed").iterdir()} == set(MALFORMED)


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_file_is_refused_with_the_cause(name: str) -> None:  # C7 among them
    kind, words = MALFORMED[name]
    with pytest.raises(TaelError) as caught:
        opened(VECTORS / "malformed" / f"{name}.gguf")
    text = str(caught.value)
    assert words in text
    assert type(caught.value) is kind
    assert f"{name}.gguf" in text
    assert len(text) < 1000
    assert text.count("\n") <= 2


def test_limits_hold_before_anything_is_built() -> None:
    path = VECTORS / "package.gguf"
    for limits, words in (
        (Limits(header_bytes=1000), "the header's length"),
        (Limits(tensors=4), "the number of tensors"),
        (Limits(name_bytes=4), "the length of a name"),
    ):
        with pytest.raises(LimitExceededError, match=words):
            opened(path, limits)


# --- odd but readable

ODD: dict[str, tuple[list[str], list[tuple[str, str]]]] = {  # names, problems
    "version_1": (["w", "m"], []),
    "version_2": (["w", "x"], []),
    "fugg": ([], []),
    "no_tensors": ([], []),
    "alignment_64": (["w", "x"], []),
    "last_not_padded": (["w", "x"], []),
    "any_order": (["w", "x"], []),
    "gap": (["w", "x"], [("warning", "32 bytes between the tensors belong to none")]),
    "trailing": (["w"], [("warning", "40 bytes follow the last tensor")]),
    "unknown_type": (
        ["w", "odd", "x"],
        [("warning", "types that tael does not know, copied as they are: GGML_99")],
    ),
    "unknown_type_last": (["w", "odd"], [("warning", "types that tael does not know, copied as they are: GGML_4")]),
    "axes_0": (["scalar"], []),
    "empty": (["e", "w"], []),
    "nested_arrays": (["w"], []),
    "empty_arrays": (["w"], []),
    "not_utf8": (["w\udcff"], []),
    "bool_2": (["w"], []),
    "long_name": (["n" * 80], [("note", "1 name is longer than the 63 bytes that llama.cpp takes")]),
    "metadata_foreign": (["w"], [("note", "'tael.metadata' is not what tael writes: kept")]),
    "shapes_foreign": (["w"], []),
}
DAMAGED = {"cut", "cut_in_the_middle", "unknown_type_cut"}


def test_every_odd_vector_is_tested_here() -> None:
    assert {path.stem for path in (VECTORS / "odd").iterdir()} == ODD.keys() | DAMAGED


@pytest.mark.parametrize("name", ODD)
def test_oddities_are_read_and_said(name: str, tmp_path: Path) -> None:
    names, problems = ODD[name]
    with opened(VECTORS / "odd" / f"{name}.gguf") as checkpoint:
        assert list(checkpoint.tensors) == names
        assert said(checkpoint) == problems
        if not names:
            return
        convert(VECTORS / "odd" / f"{name}.gguf", tmp_path / "again.gguf")
        with opened(tmp_path / "again.gguf") as again:
            assert raw(again) == raw(checkpoint) or "unknown" in name
            assert again.metadata == checkpoint.metadata
            assert [words for _, words in said(again)] in ([], [problems[-1][1]] if problems else [])


def test_version_1_has_short_lengths() -> None:
    with opened(VECTORS / "odd" / "version_1.gguf") as checkpoint:
        assert checkpoint.metadata == {"general.architecture": "llama", "words": ["a", "bc"]}
        assert checkpoint.tensors["w"].numpy().tolist() == [1, 2, 3, 4]
        assert checkpoint.tensors["m"].shape == (3, 2)
        assert building.raw_bytes(checkpoint.tensors["m"]) == bytes(range(12))


def test_offsets_are_followed_in_any_order() -> None:
    data = (VECTORS / "odd" / "any_order.gguf").read_bytes()
    with opened(VECTORS / "odd" / "any_order.gguf") as checkpoint:
        first, second = (checkpoint.tensors[name].span for name in "wx")
        assert (first.offset, second.offset) == (len(data) - 32, len(data) - 64)


def test_the_alignment_that_the_file_names_counts() -> None:
    with opened(VECTORS / "odd" / "alignment_64.gguf") as checkpoint:
        assert [tensor.span.offset % 64 for tensor in checkpoint.tensors.values()] == [0, 0]
        assert checkpoint.tensors["x"].numpy().tolist() == [1, 2, 3, 4]


def test_unknown_types_are_copied_and_not_decoded(tmp_path: Path) -> None:
    with opened(VECTORS / "odd" / "unknown_type.gguf") as checkpoint:
        tensor = checkpoint.tensors["odd"]
        assert (tensor.dtype.name, tensor.shape, tensor.nbytes) == ("GGML_99", (3, 64), 96)
        assert building.raw_bytes(tensor) == bytes(range(96))
        assert to_json(checkpoint)["dtypes"]
        with pytest.raises(UnsupportedTensorError, match="GGML_99"):
            tensor.numpy()
    convert(VECTORS / "odd" / "unknown_type.gguf", tmp_path / "copy.gguf")
    assert (tmp_path / "copy.gguf").read_bytes() == (VECTORS / "odd" / "unknown_type.gguf").read_bytes()
    with pytest.raises(UnsupportedTensorError, match="GGML_99"):
        convert(VECTORS / "odd" / "unknown_type.gguf", tmp_path / "x.npz")


def test_an_unknown_type_at_the_end_reaches_to_the_end() -> None:
    with opened(VECTORS / "odd" / "unknown_type_last.gguf") as checkpoint:
        assert building.raw_bytes(checkpoint.tensors["odd"]) == bytes(range(40)) + bytes(24)


def test_nested_arrays_keep_their_types(tmp_path: Path) -> None:
    with opened(VECTORS / "odd" / "nested_arrays.gguf") as checkpoint:
        metadata = {key: value for key, value in checkpoint.metadata.items() if key != "gguf.types"}
        assert metadata == {"n": [[1, 2], ["x"]], "same": [[1], [1]], "none": []}
        assert checkpoint.metadata["gguf.types"] == {"n": "[[u32],[str]]", "same": "[[u8]]", "none": "[[u8]]"}
    convert(VECTORS / "odd" / "nested_arrays.gguf", tmp_path / "copy.gguf")
    assert (tmp_path / "copy.gguf").read_bytes() == (VECTORS / "odd" / "nested_arrays.gguf").read_bytes()
    convert(VECTORS / "odd" / "nested_arrays.gguf", tmp_path / "x.safetensors")
    convert(tmp_path / "x.safetensors", tmp_path / "back.gguf")
    assert (tmp_path / "back.gguf").read_bytes() == (VECTORS / "odd" / "nested_arrays.gguf").read_bytes()


def test_bytes_that_are_no_utf8_survive(tmp_path: Path) -> None:
    source = VECTORS / "odd" / "not_utf8.gguf"
    convert(source, tmp_path / "copy.gguf")
    assert (tmp_path / "copy.gguf").read_bytes() == source.read_bytes()
    with opened(source) as checkpoint:
        assert checkpoint.metadata["l"] == ["\udc80"]


def test_every_nonzero_bool_is_true() -> None:
    with opened(VECTORS / "odd" / "bool_2.gguf") as checkpoint:
        assert checkpoint.metadata == {"b": True, "c": [False, True, True]}


@pytest.mark.parametrize(
    ("name", "damaged"), [("cut", "x"), ("cut_in_the_middle", "bx"), ("unknown_type_cut", ["odd"])]
)
def test_a_file_cut_short_keeps_its_intact_tensors(name: str, damaged: str, tmp_path: Path) -> None:
    source = VECTORS / "odd" / f"{name}.gguf"
    with opened(source) as checkpoint:
        whole, *each = checkpoint.fatal()
        total = len(checkpoint.tensors)
        assert f"{total - len(damaged)} of {total} tensors are intact" in whole.what
        assert [problem.tensor for problem in each] == list(damaged)
        assert [tensor.name for tensor in checkpoint.tensors.values() if tensor.damaged] == list(damaged)
        assert checkpoint.tensors["w"].numpy().tolist() == [1, 2, 3, 4]
    with pytest.raises(CorruptFileError, match="tensors are intact"):
        convert(source, tmp_path / "out.gguf")
    convert(source, tmp_path / "out.gguf", skip_damaged=True)
    with opened(tmp_path / "out.gguf") as back:
        assert not back.fatal()


# --- what the gguf package writes


def test_every_type_of_value_and_tensor_that_the_package_writes() -> None:
    values = np.random.default_rng(0).standard_normal((2, 64)).astype(np.float32)
    with opened(VECTORS / "package.gguf") as checkpoint:
        assert said(checkpoint) == []
        for name in ("float32", "float16", "float64", "int8", "int16", "int32", "int64"):
            found = checkpoint.tensors[f"plain.{name}"].numpy()
            assert found.dtype == name
            assert (found == values.astype(name)).all()
        assert [checkpoint.tensors[f"block.{kind}"].dtype.name for kind in ("Q4_0", "Q8_0", "BF16")] == [
            "Q4_0", "Q8_0", "BF16",
        ]  # fmt: skip
        shapes = {name: checkpoint.tensors[name].shape for name in ("block.Q4_0", "vector", "leading.ones", "three")}
        assert shapes == {"block.Q4_0": (2, 64), "vector": (64,), "leading.ones": (1, 1, 2, 64), "three": (2, 5, 2)}
        assert (checkpoint.tensors["three"].numpy() == values[:, :10].reshape(2, 5, 2)).all()
        check_metadata(checkpoint)


def check_metadata(checkpoint: Checkpoint) -> None:
    metadata = dict(checkpoint.metadata)
    assert metadata.pop("gguf.types") == {
        "a.u8": "u8", "a.i8": "i8", "a.u16": "u16", "a.i16": "i16", "small.u64": "u64", "small.f64": "f64",
        "a.f64": "f64",
    }  # fmt: skip
    wanted = {
        "general.architecture": "llama",
        "a.u8": 255, "a.i8": -128, "a.u16": 65535, "a.i16": -32768, "a.u32": 2**32 - 1, "a.i32": -(2**31),
        "a.f32": float(np.float32(1e-5)), "a.u64": 2**64 - 1, "a.i64": -(2**63), "a.f64": 1e-300,
        "a.bool": True, "a.str": "naïve 层 🦙",
        "a.strings": ["", "a", "bc", "层"], "a.ints": [-1, 0, 1], "a.floats": [0.5, -1.25], "a.bools": [True, False],
        "small.u64": 7, "small.f64": 0.5,
        "tokenizer.ggml.tokens": [f"token{n}" for n in range(100)],
        "tokenizer.ggml.scores": [-float(n) for n in range(100)],
        "tokenizer.ggml.token_type": [1] * 100,
    }  # fmt: skip
    assert metadata == wanted
    assert {key: type(value) for key, value in metadata.items() if isinstance(value, bool | int | float | str)} == {
        key: type(value) for key, value in wanted.items() if not isinstance(value, list)
    }


def test_a_big_endian_file_gives_the_same_values(tmp_path: Path) -> None:  # Z2
    values = np.arange(128, dtype=np.float32).reshape(2, 64) / 3
    source = VECTORS / "package-big-endian.gguf"
    with opened(source) as checkpoint:
        assert said(checkpoint) == []
        for name in ("float32", "float16", "float64", "int8", "int16", "int32", "int64"):
            found = checkpoint.tensors[f"plain.{name}"].numpy()
            assert found.dtype == name
            assert (found == values.astype(name)).all()
        check_metadata(checkpoint)
        convert(source, tmp_path / "little.gguf")
        with opened(tmp_path / "little.gguf") as little:
            assert raw(little) == raw(checkpoint)
            check_metadata(little)


def test_big_endian_blocks_are_refused_by_name(tmp_path: Path) -> None:
    name = struct.pack(">Q", 1) + b"q"
    info = name + struct.pack(">IQIQ", 1, 32, 8, 0)
    head = b"GGUF" + struct.pack(">IQQ", 3, 1, 0) + info
    path = tmp_path / "q.gguf"
    path.write_bytes(head + bytes(-len(head) % 32) + bytes(64))
    with opened(path) as checkpoint:
        assert [problem.what for problem in checkpoint.fatal()] == ["big-endian blocks of Q8_0 are not supported"]
        with pytest.raises(UnsupportedTensorError, match="big-endian blocks of Q8_0"):
            building.raw_bytes(checkpoint.tensors["q"])


# --- split sets


@pytest.mark.parametrize("number", [1, 2, 3])
def test_any_file_of_a_set_opens_the_set(number: int) -> None:
    with open_checkpoint(VECTORS / "package-split" / f"set-{number:05d}-of-00003.gguf") as checkpoint:
        assert list(checkpoint.tensors) == [f"blk.{n}.weight" for n in range(7)]
        assert [tensor.numpy().max() for tensor in checkpoint.tensors.values()] == list(range(7))
        assert len(checkpoint.sources) == 3
        assert said(checkpoint) == []
        check_metadata(checkpoint)


def test_a_pattern_that_matches_the_set_opens_it_once() -> None:
    with open_checkpoint(VECTORS / "package-split" / "set-*.gguf") as checkpoint:
        assert list(checkpoint.tensors) == [f"blk.{n}.weight" for n in range(7)]
        assert said(checkpoint) == []


def test_what_llama_gguf_split_splits_is_one_again(tmp_path: Path) -> None:
    folder = VECTORS / "llama-split"
    convert(folder / "tensors-00002-of-00003.gguf", tmp_path / "one.gguf")
    assert (tmp_path / "one.gguf").read_bytes() == (folder / "whole.gguf").read_bytes()
    with opened(folder / "merged.gguf") as merged, opened(folder / "whole.gguf") as whole:
        assert raw(merged) == raw(whole)
        assert merged.metadata["split.count"] == 0


SETS = {
    "number": ("says it is part 1 of 2, which is not what its name says", "split.no is 0, by its name 1"),
    "count": ("says it is part 2 of 3", "split.count is 3, and 2 in another file of the set"),
    "tensors": ("the files hold 2 tensors, but split.tensors.count is 3",) * 2,
    "tensors_differ": ("split.tensors.count is 2, and 3", "split.tensors.count is 3, and 2"),
    "name_twice": ("tensor 'a': is in ",) * 2,  # C7
}


@pytest.mark.parametrize("name", SETS)
def test_files_that_make_no_set_are_refused(name: str) -> None:
    second, first = SETS[name]
    for number, words in ((1, first), (2, second)):
        with pytest.raises(CorruptFileError) as caught:
            open_checkpoint(VECTORS / "sets" / name / f"m-{number:05d}-of-00002.gguf")
        assert words in str(caught.value)


@pytest.mark.parametrize(
    ("name", "words"), [("missing", "this file of the set is missing"), ("damaged", "but only 14")]
)
def test_a_set_with_a_file_missing_lists_the_rest(name: str, words: str, tmp_path: Path) -> None:
    first = VECTORS / "sets" / name / "m-00001-of-00002.gguf"
    with open_checkpoint(first) as checkpoint:
        assert list(checkpoint.tensors) == ["a"]
        (problem,) = checkpoint.fatal()
        assert words in problem.what
        assert "m-00002-of-00002.gguf" in (problem.where or "")
    with pytest.raises(CorruptFileError, match=words):
        convert(first, tmp_path / "out.gguf")


def test_names_of_a_set_without_its_keys_are_only_said() -> None:
    with open_checkpoint(VECTORS / "sets" / "no_keys" / "m-00001-of-00002.gguf") as checkpoint:
        assert said(checkpoint) == [("warning", "by its name this is part 1 of 2, and it is read alone")]


def test_a_renamed_file_of_a_set_is_not_taken_for_the_whole(tmp_path: Path) -> None:
    shutil.copy(VECTORS / "package-split" / "set-00002-of-00003.gguf", tmp_path / "model.gguf")
    with open_checkpoint(tmp_path / "model.gguf") as checkpoint:
        assert [problem.what for problem in checkpoint.fatal()] == [
            "is part 2 of 3; the others are looked for only beside names like NAME-00002-of-00003.gguf"
        ]


# --- detection, D3, D9


def test_match_goes_by_content(tmp_path: Path) -> None:
    for data, wanted in ((b"GGUF\3\0\0\0", 3), (b"FUGG", 3), (b"GGU", 0), (b"GGML....", 0), (b"", 0)):
        (tmp_path / "x").write_bytes(data)
        assert FORMAT.match(Probe(locate(tmp_path / "x"))) == Confidence(wanted)


def test_d3_a_header_of_zeros_is_an_unfinished_file(tmp_path: Path) -> None:
    data = (VECTORS / "package.gguf").read_bytes()
    path = tmp_path / "model.gguf"
    path.write_bytes(bytes(4096) + data[4096:])
    with pytest.raises(NotAWeightFileError, match="the header is empty, the writer did not finish"):
        open_checkpoint(path)


def vocabulary(path: Path, count: int) -> Path:
    """A file with two arrays of `count` strings, one of numbers, and a tensor of four."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    strings = struct.pack("<IIQ", 9, 8, count) + b"".join(text(f"token{n}") for n in range(count))
    numbers = struct.pack("<IIQ", 9, 6, count) + bytes(4 * count)
    keys = [("tokenizer.ggml.tokens", strings), ("tokenizer.ggml.merges", strings), ("tokenizer.ggml.scores", numbers)]
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, len(keys)) + b"".join(text(key) + value for key, value in keys)
    head += text("w") + struct.pack("<IQIQ", 1, 4, 0, 0)
    path.write_bytes(head + bytes(-len(head) % 32) + struct.pack("<4f", 1, 2, 3, 4) + bytes(16))
    return path


def test_d9_a_large_vocabulary_costs_a_few_reads_and_no_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = vocabulary(tmp_path / "v.gguf", 256_000)
    reads = 0
    real = FileSource.read_into

    def count(self: FileSource, offset: int, buffer: memoryview) -> None:
        nonlocal reads
        reads += 1
        real(self, offset, buffer)

    monkeypatch.setattr(FileSource, "read_into", count)
    times = []
    for _ in range(5):
        reads, start = 0, time.process_time()
        with opened(path) as checkpoint:
            times.append(time.process_time() - start)
            tokens = checkpoint.metadata["tokenizer.ggml.tokens"]
            assert (len(tokens), tokens[-1], tokens[1000:1002]) == (256_000, "token255999", ["token1000", "token1001"])
            assert checkpoint.tensors["w"].numpy().tolist() == [1, 2, 3, 4]
    assert reads < 20
    assert min(times) < 0.06  # 15 ms measured; building the strings takes several times this


def test_inspecting_shows_the_first_of_a_long_array(tmp_path: Path) -> None:
    with opened(vocabulary(tmp_path / "v.gguf", 1000)) as checkpoint:
        shown = to_json(checkpoint)["metadata"]["tokenizer.ggml.tokens"]
    assert shown == {"items": 1000, "first": [f"token{n}" for n in range(8)]}
