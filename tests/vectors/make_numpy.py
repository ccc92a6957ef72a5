# SPDX-License-Identifier: Apache-2.0
"""Writes tests/vectors/numpy: arrays and archives of numpy itself, and one malformed file per rule of the format.

python tests/vectors/make_numpy.py        (needs numpy, ml_dtypes)
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.lib import format as npy_format

HERE = Path(__file__).parent / "numpy"
BY_HAND = "bytes laid out by this script from the specification"
BY_NUMPY = f"numpy {version('numpy')}"
BY_ML_DTYPES = f"{BY_NUMPY}, ml_dtypes {version('ml_dtypes')}"

PLAIN = ("f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "b1", "c8", "c16")


def pattern(kind: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Every byte pattern, the same each time."""
    dtype = np.dtype(kind)
    count = int(np.prod(shape)) * dtype.itemsize
    raw = (np.arange(count) * 37 + 11).astype(np.uint8)
    return (raw & 1 if dtype.kind == "b" else raw).view(dtype).reshape(shape)


def arrays() -> dict[str, np.ndarray]:
    found = {f"plain/{kind}": pattern(kind, (2, 3)) for kind in PLAIN}
    found |= {f"big/{kind}": pattern(kind, (2, 3)).astype(np.dtype(kind).newbyteorder(">")) for kind in PLAIN}
    found |= {f"fortran/{kind}": np.asfortranarray(pattern(kind, (2, 3))) for kind in ("f4", "c16", "b1")}
    found["fortran/big"] = np.asfortranarray(pattern("f8", (2, 3, 4)).astype(">f8"))
    found |= {"scalar": np.array(7.25), "empty": np.zeros((2, 0), np.float32), "empty.flat": np.zeros(0)}
    found |= {"层/é.weight": pattern("f4", (1, 1, 2)), "dotted.npy": pattern("i4", (1,)), "": pattern("u1", (1,))}
    return found


def native(array: np.ndarray) -> list[Any]:
    """[dtype, shape, row-major little-endian bytes]."""
    kind = array.dtype.newbyteorder("<") if array.dtype.byteorder == ">" else array.dtype
    return [kind.str.lstrip("<|="), list(array.shape), np.ascontiguousarray(array, kind).tobytes().hex()]


def single(folder: Path) -> dict[str, str]:
    made = {
        "fortran.npy": np.asfortranarray(pattern("f4", (3, 4))),
        "big_endian.npy": pattern("f8", (2, 2)).astype(">f8"),
        "scalar.npy": np.array(1.5, np.float32),
        "empty.npy": np.zeros((3, 0), np.int16),
        "bool.npy": np.array([True, False]),
        "text.npy": np.array(["ab", "層"]),
        "bytes.npy": np.asfortranarray(np.array([[b"abc", b"d"], [b"", b"ef"]])),
        "datetime.npy": np.array(["2024-01-01", "1970-01-02"], "M8[D]"),
        "longdouble.npy": np.zeros(2, np.longdouble),
        "structured.npy": np.zeros(2, [("x", "<f4"), ("y", "<i2", (2,))]),
        "objects.npy": np.array([{"a": 1}, None], object),
        "void3.npy": np.zeros(2, "V3"),
    }
    for name, array in made.items():
        np.save(folder / name, array, allow_pickle=True)
    bf16 = np.array([0x7FC1, 0x8000, 0x0001, 0x3F80], np.uint16).view(ml_dtypes.bfloat16)
    np.save(folder / "bf16.npy", bf16.reshape(2, 2))
    for name in ("float8_e4m3fn", "float8_e5m2", "int4", "complex32"):
        size = np.dtype(getattr(ml_dtypes, name)).itemsize
        np.save(folder / f"{name}.npy", np.arange(4 * size, dtype=np.uint8).view(getattr(ml_dtypes, name)))
    for major in (2, 3):
        with (folder / f"v{major}.npy").open("wb") as out:
            npy_format.write_array(out, pattern("i2", (2, 3)), version=(major, 0))
    with (folder / "two.npy").open("wb") as out:
        np.save(out, pattern("u1", (3,)))
        np.save(out, pattern("f4", (2,)))
    by_ml_dtypes = {f"{name}.npy" for name in ("bf16", "float8_e4m3fn", "float8_e5m2", "int4", "complex32")}
    return {path.name: BY_ML_DTYPES if path.name in by_ml_dtypes else BY_NUMPY for path in sorted(folder.glob("*.npy"))}


def archives(folder: Path) -> dict[str, str]:
    np.savez(folder / "stored.npz", **arrays())
    np.savez_compressed(folder / "deflated.npz", **arrays())
    np.savez(folder / "objects.npz", w=pattern("f4", (2,)), o=np.array({"lr": 0.1}, object), z=pattern("i8", (1,)))
    write_json(folder / "arrays.json", {name: native(array) for name, array in arrays().items()})
    return dict.fromkeys(["stored.npz", "deflated.npz", "objects.npz", "arrays.json"], BY_NUMPY)


# --- malformed files: each breaks one rule


def npy(header: bytes, data: bytes = b"", major: int = 1, length: int | None = None) -> bytes:
    size = len(header) if length is None else length
    return b"\x93NUMPY" + bytes([major, 0]) + size.to_bytes(2 if major == 1 else 4, "little") + header + data


def header(descr: str = "'<f4'", order: str = "False", shape: str = "(2,)") -> bytes:
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n".encode("latin-1")


EIGHT = bytes(8)

MALFORMED: dict[str, bytes] = {
    "only_magic": b"\x93NUMPY",
    "version_9": npy(header(), EIGHT, major=9),
    "header_beyond_end": npy(header(), EIGHT, length=60_000),
    "header_of_4_gib": npy(header(), EIGHT, major=2, length=0xFFFFFFFF),
    "not_utf8": npy(header("[('\xff', '<f4')]"), EIGHT, major=3),
    "empty_header": npy(b"", EIGHT),
    "not_a_dict": npy(b"('descr',)", EIGHT),
    "a_call": npy(header("__import__('os').system('true')"), EIGHT),
    "an_escape": npy(header("'\\x3cf4'"), EIGHT),
    "no_shape": npy(b"{'descr': '<f4', 'fortran_order': False}", EIGHT),
    "a_key_more": npy(header()[:-2] + b"'x': 1}", EIGHT),
    "a_key_twice": npy(header()[:-2] + b"'shape': (1,)}", EIGHT),
    "no_comma": npy(b"{'descr': '<f4' 'fortran_order': False, 'shape': (2,)}", EIGHT),
    "text_behind": npy(header() + b"{}", EIGHT),
    "nested": npy(header("[" * 1000 + "]" * 1000), EIGHT),
    "order_is_a_number": npy(header(order="0"), EIGHT),
    "shape_is_a_list": npy(header(shape="[2]"), EIGHT),
    "shape_is_a_number": npy(header(shape="(2)"), EIGHT),
    "shape_negative": npy(header(shape="(-2,)"), EIGHT),
    "shape_of_text": npy(header(shape="('2',)"), EIGHT),
    "shape_2_63": npy(header(shape=f"({1 << 63},)"), EIGHT),
    "shape_bool": npy(header(shape="(True, 2)"), EIGHT),
    "shape_of_65_axes": npy(header(shape="(" + "1, " * 65 + ")"), EIGHT),
    "descr_is_a_number": npy(header("4"), EIGHT),
}

ODD: dict[str, bytes] = {
    "python_2": npy(header(shape="(1L, 2L)"), EIGHT),
    "native_order": npy(header("'=f4'"), EIGHT),
    "any_key_order": npy(b'{"shape": (2,), "fortran_order": False, "descr": "<f4"}', EIGHT),
    "unaligned": npy(header()[:-1], EIGHT),
    "cut": npy(header(shape="(1000, 1000)"), EIGHT),
    "bytes_behind": npy(header(), EIGHT + b"more"),
    "unknown_type": npy(header("'<q9'"), EIGHT),
    "huge_and_empty": npy(header(shape=f"(0, {1 << 62}, {1 << 62})")),
}


def main() -> None:
    warnings.simplefilter("ignore", UserWarning)
    shutil.rmtree(HERE, ignore_errors=True)
    HERE.mkdir()
    made = {**single(HERE), **archives(HERE)}
    for kind, files in (("malformed", MALFORMED), ("odd", ODD)):
        (HERE / kind).mkdir()
        for name, data in files.items():
            (HERE / kind / f"{name}.npy").write_bytes(data)
            made[f"{kind}/{name}.npy"] = BY_HAND
    write_json(HERE / "PROVENANCE.json", {"made with": sys.argv[0].rpartition("/")[2], "files": provenance(made)})


def provenance(made: dict[str, str]) -> dict[str, dict[str, str]]:
    return {
        path: {"by": by, "sha256": hashlib.sha256((HERE / path).read_bytes()).hexdigest()}
        for path, by in sorted(made.items())
    }


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
