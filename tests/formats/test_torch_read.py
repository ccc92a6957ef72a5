# SPDX-License-Identifier: Apache-2.0
"""The torch reader over files of real PyTorch (tests/vectors/torch), and over what other hands make of such."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import pathlib
import pickle
import struct
import sys
import types
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tael.convert import convert
from tael.core.checkpoint import Checkpoint
from tael.core.limits import DEFAULT, Limits
from tael.core.location import locate
from tael.core.node import Contiguous
from tael.errors import (
    ChecksumError,
    CorruptFileError,
    LimitExceededError,
    TaelError,
    UnsupportedFormatError,
    UnsupportedTensorError,
)
from tael.formats import open_checkpoint
from tael.formats.detect import Probe, detect
from tael.formats.registry import Confidence
from tael.formats.torch import FORMAT
from tael.formats.torch import open as open_torch
from tael.formats.torch.storage import FROM_TORCH
from tael.formats.torch.tree import TensorLeaf

VECTORS = Path(__file__).parent.parent / "vectors" / "torch"
EXPECTED: dict[str, dict[str, list[Any]]] = json.loads((VECTORS / "expected.json").read_text("utf-8"))
MAGIC = 0x1950A86A20F9469CFC6C


def opened(name: str | Path) -> Checkpoint:
    return open_torch(locate(VECTORS / name))


def raw(checkpoint: Checkpoint, name: str) -> bytes:
    return b"".join(bytes(piece) for piece in checkpoint.tensors[name].chunks())


def notes(checkpoint: Checkpoint, severity: str = "note") -> str:
    return "\n".join(str(problem) for problem in checkpoint.problems if problem.severity == severity)


# --- files of real PyTorch


@pytest.mark.parametrize("file", sorted(EXPECTED))
def test_every_tensor_of_real_files_bit_for_bit(file: str) -> None:
    with opened(file) as checkpoint:
        for name, (dtype, shape, data) in EXPECTED[file].items():
            tensor = checkpoint.tensors[name]
            packs = 2 if dtype == "float4_e2m1fn_x2" else 1
            assert tensor.dtype.name == FROM_TORCH[dtype], name
            assert tensor.shape == (*shape[:-1], *[n * packs for n in shape[-1:]]), name
            tensor.verify_checks()
            assert raw(checkpoint, name).hex() == data, name


LAYOUTS = {
    "zip.pt": "zip", "zip_1.4.pt": "zip", "big_endian.pt": "zip", "legacy.pt": "legacy", "legacy_1.4.pt": "legacy",
    "legacy_py2.pt": "legacy", "tar.pt": "tar", "script.pt": "torchscript", "script_1.4.pt": "torchscript",
    "tensors.pkl": "pickle", "text_py2.pkl": "pickle", "numpy_5.pkl": "pickle",
}  # fmt: skip


@pytest.mark.parametrize(("file", "layout"), LAYOUTS.items())
def test_layouts_are_told_apart_by_content(file: str, layout: str, tmp_path: Path) -> None:
    copy = tmp_path / "anything.xyz"
    copy.write_bytes((VECTORS / file).read_bytes())
    wanted = Confidence.LIKELY if layout == "pickle" else Confidence.CERTAIN
    assert FORMAT.match(Probe(locate(copy))) == wanted
    assert detect(locate(copy)).id == "torch"
    with open_torch(locate(copy)) as checkpoint:
        assert checkpoint.extras["torch.layout"] == layout


@pytest.mark.parametrize("file", ["zip.pt", "legacy.pt"])
def test_s2_ties_are_aliases_and_views_share_their_storage(file: str) -> None:
    with opened(file) as checkpoint:
        assert checkpoint.aliases == {"tied": "float32"}
        views = [checkpoint.tensors[name].data for name in ("transposed", "third")]
        assert len({node.storage.offset for node in views}) == 1
        overlap = checkpoint.tensors["overlap"].data
        assert isinstance(overlap, Contiguous)
        assert overlap.span.offset == views[0].storage.offset + 24 * 4
        assert checkpoint.extras["torch.expanded"] == ("expanded",)
        assert list(checkpoint.tensors)[:4] == ["float64", "float32", "float16", "bfloat16"]


def test_s4_channels_last_keeps_its_logical_values() -> None:
    with opened("zip.pt") as checkpoint:
        assert checkpoint.tensors["channels_last"].numpy().tolist() == np.arange(24.0).reshape(1, 2, 3, 4).tolist()


def test_names_of_nested_structures_and_the_tree() -> None:
    with opened("nested.pt") as checkpoint:
        assert list(checkpoint.tensors) == [
            "model.fc.weight", "model.fc.bias", "list.0", "list.1.0", "list.2.deep", "1", "array", "fortran",
        ]  # fmt: skip
        tree = checkpoint.extras["torch.tree"]
        assert tree["list"] == [TensorLeaf("list.0"), (TensorLeaf("list.1.0"), 3), {"deep": TensorLeaf("list.2.deep")}]
        assert tree[1] == TensorLeaf("1")
        assert tree["model"].origin == "collections.OrderedDict"
        assert tree["model"].state == {"_metadata": {"": {"version": 1}}}
        assert checkpoint.aliases == {
            "list.0": "model.fc.weight", "list.1.0": "model.fc.bias", "list.2.deep": "model.fc.weight",
        }  # fmt: skip
        assert checkpoint.extras["torch.requires_grad"] == ("model.fc.bias",)


def test_values_that_are_no_tensors_become_metadata_or_objects() -> None:
    with opened("nested.pt") as checkpoint:
        assert checkpoint.metadata == {
            "list.1.1": 3, "epoch": 3, "name": "tiny", "rate": 1e-3, "dtype": "torch.float16", "device": "cuda:1",
            "size": [2, 3], "none": None, "best": 1.5, "set": ["a", "b"],
        }  # fmt: skip
        assert checkpoint.extras["torch.objects"] == {"bytes": "2 bytes"}


def test_a5_strings_in_the_state_dict_are_metadata_and_reported() -> None:
    with opened("qtype.pt") as checkpoint:
        assert list(checkpoint.tensors) == ["w"]
        assert checkpoint.metadata == {"qtype": "nf4", "bits": 4, "absent": None, "dtype": "torch.bfloat16"}
        assert "4 values between the tensors" in notes(checkpoint)
        assert "qtype" in notes(checkpoint)


def test_quantized_tensors_are_their_integers_with_scales_beside_them() -> None:
    with opened("quantized.pt") as checkpoint:
        about = checkpoint.metadata["torch.quantization"]
        assert about["whole"] == {"scheme": "per_tensor_affine", "scale": 0.5, "zero_point": 10}
        assert about["rows"] == {
            "scheme": "per_channel_affine", "axis": 0, "scales": "rows.scales", "zero_points": "rows.zero_points",
        }  # fmt: skip
        whole = checkpoint.tensors["whole"].numpy().astype(np.float32)
        assert ((whole - 10) * 0.5).tolist() == [[-1.0, 0.5], [2.0, 3.5]]
        rows, scales = checkpoint.tensors["rows"].numpy(), checkpoint.tensors["rows.scales"].numpy()
        zeros = checkpoint.tensors["rows.zero_points"].numpy()
        assert ((rows - zeros[:, None]) * scales[:, None]).tolist() == [[-1.0, 0.5], [2.0, 3.5]]


REFUSED = {
    "coo": "sparse_coo", "csr": "sparse_csr", "nested": "nested tensor", "meta": "meta device", "fake": "FakeTensor",
    "conj": "pending conjugation", "neg": "pending negation", "bits": "torch.bits8",
}  # fmt: skip


def test_what_holds_no_plain_numbers_is_refused_by_name_and_the_rest_stays_readable() -> None:
    with opened("refused.pt") as checkpoint:
        fatal = {problem.tensor: problem.what for problem in checkpoint.fatal()}
        assert fatal.keys() == REFUSED.keys()
        for name, why in REFUSED.items():
            assert why in fatal[name]
            assert why in (checkpoint.tensors[name].damaged or "")
            with pytest.raises(UnsupportedTensorError, match="; "):
                checkpoint.tensors[name].numpy()
        assert checkpoint.tensors["meta"].shape == (4, 5)
        assert checkpoint.tensors["last"].numpy().tolist() == [0, 1, 2]


def test_s3_placeholders_are_weights_that_were_not_gathered() -> None:
    with opened("not_gathered.pt") as checkpoint:
        assert "not gathered: all 3 are placeholders" in notes(checkpoint, "fatal")
        with pytest.raises(CorruptFileError, match="not gathered"):
            checkpoint.require_intact()


def test_p5_torchscript_gives_tensors_only_and_keeps_constants_apart() -> None:
    with opened("script.pt") as checkpoint:
        assert checkpoint.aliases == {"layers.1.weight": "layers.0.weight"}
        assert "code/__torch__.py" in checkpoint.extras["torch.code"]
        assert checkpoint.extras["torch.attributes"]["rate"] == 16000
        assert "never" not in notes(checkpoint)
        assert "listed, not run" in notes(checkpoint)
        assert "torch.globals" not in checkpoint.extras


def test_p2_a_whole_module_of_a_vanished_package_gives_its_state_dict() -> None:
    with opened("module.pt") as checkpoint:
        assert list(checkpoint.tensors) == list(EXPECTED["module.pt"])
        assert "scratch" not in checkpoint.tensors  # a buffer that is not persistent
        assert checkpoint.aliases == {"tied.weight": "body.0.weight", "tied.bias": "body.0.bias"}
        assert checkpoint.extras["torch.modules"]["body"] == "vanished.models.Body"
        assert "vanished.models.Body" in checkpoint.extras["torch.globals"]
        assert "4 unknown classes or functions, listed, not run" in notes(checkpoint)
        assert "vanished" not in sys.modules


def test_a_graph_module_is_a_module_too() -> None:
    with opened("graph_module.pt") as checkpoint:
        assert list(checkpoint.tensors) == ["net.0.weight", "net.0.bias"]
        assert checkpoint.metadata == {"step": 1}


def test_p4_python_2_strings_are_read_as_latin_1_and_said() -> None:
    with opened("legacy_py2.pt") as checkpoint:
        assert checkpoint.metadata == {"epoch": 3, "name": "café"}
        assert "latin-1" in notes(checkpoint)


def test_p4_a_hand_written_python_2_pickle(tmp_path: Path) -> None:
    path = tmp_path / "old.ckpt"
    path.write_bytes(b"\x80\x02}(U\x04nameU\x01\x8cU\x01nK\x03u.")
    with open_torch(locate(path)) as checkpoint:
        assert checkpoint.metadata == {"name": "\x8c", "n": 3}
        assert "latin-1" in notes(checkpoint)


def test_p6_a_plain_pickle_named_pt_says_so(tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    path.write_bytes(pickle.dumps({"w": np.zeros(3)}))
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.tensors["w"].numpy().tolist() == [0, 0, 0]
        assert "plain pickle" in notes(checkpoint)


def test_p6_a_pth_tar_that_is_no_tar(tmp_path: Path) -> None:
    path = tmp_path / "model_best.pth.tar"
    path.write_bytes((VECTORS / "legacy.pt").read_bytes())
    with open_checkpoint(path) as checkpoint:
        assert "no tar archive" in notes(checkpoint)
        assert checkpoint.extras["torch.layout"] == "legacy"


def test_records_without_crc_are_a_note_not_damage() -> None:
    with opened("no_crc.pt") as checkpoint:
        assert checkpoint.tensors["w"].checks == ()
        assert "without CRC-32" in notes(checkpoint)
        assert not checkpoint.fatal()


# --- archives made by other hands


def rezip(source: str, target: Path, change: Callable[[str, bytes], bytes | None], **options: Any) -> Path:
    """The archive again by Python's zipfile, each record as `change` gives it (None: left out)."""
    with zipfile.ZipFile(VECTORS / source) as old, zipfile.ZipFile(target, "w", **options) as new:
        for name in old.namelist():
            data = change(name, old.read(name))
            if data is not None:
                new.writestr(name, data)
    return target


def keep(name: str, data: bytes) -> bytes:
    return data


@pytest.mark.parametrize("root", ["archive", "other/deeper", "模型", ""])
def test_any_root_folder(root: str, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    with zipfile.ZipFile(VECTORS / "zip.pt") as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            new.writestr("/".join(filter(None, [root, name.partition("/")[2]])), old.read(name))
    with open_checkpoint(path) as checkpoint:
        assert raw(checkpoint, "float32").hex() == EXPECTED["zip.pt"]["float32"][2]


def test_deflated_members_are_sequential_and_right(tmp_path: Path) -> None:
    path = rezip("zip.pt", tmp_path / "packed.pt", keep, compression=zipfile.ZIP_DEFLATED)
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.tensors["transposed"].access == "sequential"
        assert raw(checkpoint, "transposed").hex() == EXPECTED["zip.pt"]["transposed"][2]


def test_p7_streamed_descriptors_and_zip64(tmp_path: Path) -> None:
    path = tmp_path / "streamed.ckpt"

    class Pipe(io.RawIOBase):  # cannot seek: zipfile writes descriptors, and zip64 where told to
        def __init__(self) -> None:
            self.data = bytearray()

        def writable(self) -> bool:
            return True

        def write(self, piece: Any) -> int:
            self.data += piece
            return len(piece)

    pipe = Pipe()
    with zipfile.ZipFile(VECTORS / "zip.pt") as old, zipfile.ZipFile(pipe, "w") as new:
        for name in old.namelist():
            with new.open(zipfile.ZipInfo(name), "w", force_zip64=True) as member:
                member.write(old.read(name))
    path.write_bytes(pipe.data)
    assert struct.unpack_from("<H", pipe.data, 6)[0] & 8
    with open_checkpoint(path) as checkpoint:
        for name, (_, _, data) in EXPECTED["zip.pt"].items():
            assert raw(checkpoint, name).hex() == data


def test_a_missing_record_damages_its_tensors_only(tmp_path: Path) -> None:
    path = rezip("zip.pt", tmp_path / "lost.pt", lambda name, data: None if name.endswith("data/1") else data)
    with open_checkpoint(path) as checkpoint:
        assert {problem.tensor for problem in checkpoint.fatal()} == {"float32", "tied"}
        assert "'data/1' is missing" in notes(checkpoint, "fatal")
        assert raw(checkpoint, "float16").hex() == EXPECTED["zip.pt"]["float16"][2]


def test_a_record_shorter_than_its_storage(tmp_path: Path) -> None:
    path = rezip("zip.pt", tmp_path / "short.pt", lambda name, data: data[:-1] if name.endswith("data/1") else data)
    with open_checkpoint(path) as checkpoint:
        assert "its record has 23 bytes, the pickle says 24" in notes(checkpoint, "fatal")


def test_a_flipped_bit_is_found_when_the_bytes_are_read(tmp_path: Path) -> None:
    path = tmp_path / "flipped.pt"
    data = bytearray((VECTORS / "zip.pt").read_bytes())
    data[data.index(bytes.fromhex(EXPECTED["zip.pt"]["odd"][2]))] ^= 1
    path.write_bytes(data)
    with open_checkpoint(path) as checkpoint, pytest.raises(ChecksumError, match="CRC-32"):
        checkpoint.tensors["odd"].numpy()


def test_a_broken_data_pkl_and_a_strange_byte_order(tmp_path: Path) -> None:
    cut = rezip("zip.pt", tmp_path / "cut.pt", lambda name, data: data[:-9] if name.endswith("data.pkl") else data)
    with pytest.raises(CorruptFileError, match="the pickle"):
        open_checkpoint(cut)
    odd = rezip("zip.pt", tmp_path / "odd.pt", lambda name, data: b"middle" if name.endswith("byteorder") else data)
    with pytest.raises(CorruptFileError, match="byte order is 'middle'"):
        open_checkpoint(odd)


def test_a_file_without_a_byteorder_record_is_little_endian(tmp_path: Path) -> None:
    path = rezip("zip.pt", tmp_path / "old.pt", lambda name, data: None if name.endswith("byteorder") else data)
    with open_checkpoint(path) as checkpoint:
        assert raw(checkpoint, "float64").hex() == EXPECTED["zip.pt"]["float64"][2]


@pytest.mark.parametrize(
    ("record", "what"),
    [
        ("model/model.json", "PyTorch 1.0"),
        ("p/.data/extern_modules", "torch.package"),
        ("e/archive_format", "torch.export"),
    ],
)
def test_archives_of_other_kinds_are_called_by_name(record: str, what: str, tmp_path: Path) -> None:
    path = tmp_path / "other.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(record, b"{}")
    with pytest.raises(UnsupportedFormatError, match=what):
        open_checkpoint(path, format="torch")


# --- streams


@pytest.mark.parametrize("file", ["legacy.pt", "legacy_1.4.pt", "tar.pt", "zip.pt"])
def test_every_cut_is_a_clear_error_or_damage_to_some(file: str, tmp_path: Path) -> None:
    whole = (VECTORS / file).read_bytes()
    for cut in sorted({*range(0, min(len(whole), 200), 9), *range(200, len(whole), 151), len(whole) - 1}):
        path = tmp_path / "cut.pt"
        path.write_bytes(whole[:cut])
        with contextlib.suppress(TaelError), open_checkpoint(path) as checkpoint:
            assert file == "tar.pt" or checkpoint.fatal()
            for tensor in checkpoint.tensors.values():
                assert tensor.damaged or list(tensor.chunks()) is not None


def test_a_truncated_stream_keeps_what_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "cut.pt"
    path.write_bytes((VECTORS / "legacy.pt").read_bytes()[:-3])
    with open_checkpoint(path) as checkpoint:
        damaged = {problem.tensor for problem in checkpoint.fatal()}
        assert len({checkpoint.tensors[name].info.alias_of or name for name in damaged}) >= 1
        assert "truncated: 3 of" in notes(checkpoint, "fatal")
        for name in checkpoint.tensors.keys() - damaged:
            assert raw(checkpoint, name).hex() == EXPECTED["legacy.pt"][name][2]


def test_a_count_that_is_not_what_the_pickle_says(tmp_path: Path) -> None:
    data = (VECTORS / "legacy_1.4.pt").read_bytes()
    at = data.index(struct.pack("<q6f", 6, 0, 1, 2, 3, 4, 5))
    path = tmp_path / "odd.pt"
    path.write_bytes(data[:at] + struct.pack("<q", 7) + data[at + 8 :])
    with pytest.raises(CorruptFileError, match="7 elements, the pickle says 6"):
        open_checkpoint(path)


def stream(*objects: Any, tail: bytes = b"") -> bytes:
    return b"".join(pickle.dumps(item, 2) for item in (MAGIC, 1001, {"little_endian": True}, *objects)) + tail


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (pickle.dumps(MAGIC, 2), "ends before its protocol"),
        (pickle.dumps(MAGIC, 2) + pickle.dumps(1002, 2), "protocol 1002"),
        (stream({}), "ends before the list of its storages"),
        (stream({}, {"0": 1}), "list of storages is none"),
        (stream({}, ["0"]), "used by no tensor"),
    ],
)  # fmt: skip
def test_malformed_streams(data: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.pt"
    path.write_bytes(data)
    with pytest.raises(TaelError, match=message):
        open_checkpoint(path)


def storage_id(key: str, numel: int, view: tuple[str, int, int] | None) -> bytes:
    """A persistent id with view metadata, as torch before 0.4 wrote it."""
    text = lambda value: b"X" + struct.pack("<i", len(value)) + value.encode()  # noqa: E731
    head = b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text(key) + text("cpu") + b"K%c" % numel
    return head + (b"N" if view is None else b"(" + text(view[0]) + b"K%cK%ct" % view[1:]) + b"tQ"


def tensor_of(storage: bytes, size: int, offset: int = 0) -> bytes:
    return b"ctorch._utils\n_rebuild_tensor\n(" + storage + b"K%cK%c\x85K\1\x85tR" % (offset, size)


def test_views_of_storages_in_old_streams(tmp_path: Path) -> None:
    whole, part = storage_id("7", 6, None), storage_id("7", 6, ("8", 2, 3))
    body = b"\x80\x02}(U\1a" + tensor_of(whole, 6) + b"U\1b" + tensor_of(part, 2, 1) + b"u."
    head = b"".join(pickle.dumps(item, 2) for item in (MAGIC, 1001, {}))
    path = tmp_path / "views.pt"
    path.write_bytes(head + body + pickle.dumps(["7"], 2) + struct.pack("<q6f", 6, *range(6)))
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.tensors["a"].numpy().tolist() == [0, 1, 2, 3, 4, 5]
        assert checkpoint.tensors["b"].numpy().tolist() == [3, 4]
    path.write_bytes(
        head + body.replace(b"K\2K\3t", b"K\4K\3t") + pickle.dumps(["7"], 2) + struct.pack("<q6f", 6, *range(6))
    )
    with pytest.raises(CorruptFileError, match="beyond its end"):
        open_checkpoint(path)


def test_a_view_beyond_its_storage_is_damaged(tmp_path: Path) -> None:
    body = b"\x80\x02}(U\1a" + tensor_of(storage_id("7", 6, None), 7) + b"u."
    path = tmp_path / "beyond.pt"
    head = b"".join(pickle.dumps(item, 2) for item in (MAGIC, 1001, {}))
    path.write_bytes(head + body + pickle.dumps(["7"], 2) + struct.pack("<q6f", 6, *range(6)))
    with open_checkpoint(path) as checkpoint:
        assert "reaches to element 6 of a storage that holds 6" in notes(checkpoint, "fatal")


# --- what pickles hold besides tensors


class Canary:
    """Pickles as a call that would leave a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)


def test_dangerous_calls_are_named_and_not_run(tmp_path: Path) -> None:
    path, canary = tmp_path / "evil.pt", tmp_path / "was_run"
    path.write_bytes(pickle.dumps({"w": np.arange(3), "x": Canary(canary)}))
    with open_checkpoint(path) as checkpoint:
        warning = notes(checkpoint, "warning")
        assert f"unpickling this would run {os.name}.system; tael did not" in warning
        assert checkpoint.extras["torch.globals"] == (f"{os.name}.system",)
        assert checkpoint.extras["torch.objects"] == {"x": f"an object of {os.name}.system"}
        assert checkpoint.tensors["w"].numpy().tolist() == [0, 1, 2]
    assert not canary.exists()


def test_p1_numpy_scalars_in_both_spellings(tmp_path: Path) -> None:
    new = pickle.dumps({"model": {"w": np.ones(2, np.float32)}, "best": np.float64(1.5)}, 2)
    assert b"numpy._core.multiarray" in new
    for number, data in enumerate((new, new.replace(b"numpy._core.multiarray", b"numpy.core.multiarray"))):
        path = tmp_path / f"{number}.pt"
        path.write_bytes(data)
        with open_checkpoint(path) as checkpoint:
            assert checkpoint.metadata == {"best": 1.5}
            assert checkpoint.tensors["model.w"].numpy().tolist() == [1, 1]
            assert "torch.globals" not in checkpoint.extras


@pytest.mark.parametrize("protocol", [0, 2, 3, 4, 5])
@pytest.mark.parametrize("size", [5, 40_000])  # below and above what is held in memory
def test_numpy_arrays_of_every_protocol(protocol: int, size: int, tmp_path: Path) -> None:
    path = tmp_path / "arrays.pkl"
    arrays = {
        "plain": np.arange(size, dtype=np.float64) * 1.7,
        "swapped": np.arange(size, dtype=">i4"),
        "fortran": np.asfortranarray(np.arange(size * 2, dtype=np.int16).reshape(2, size)),
        "flags": np.arange(size) % 3 == 0,
    }
    path.write_bytes(pickle.dumps({**arrays, "again": arrays["plain"]}, protocol))
    with open_checkpoint(path) as checkpoint:
        for name, array in arrays.items():
            assert np.array_equal(checkpoint.tensors[name].numpy(), array), name
        assert checkpoint.aliases == {"again": "plain"}
        plain = checkpoint.tensors["plain"]
        assert plain.access == ("sequential" if size > 5 and protocol in (0, 2) else "random")
        if plain.access == "sequential":  # backwards too
            last, first = bytearray(8), bytearray(8)
            plain.read_into(size - 1, 1, memoryview(last))
            plain.read_into(1, 1, memoryview(first))
            assert struct.unpack("<2d", last + first) == ((size - 1) * 1.7, 1.7)


def test_large_numpy_arrays_are_not_read_at_the_opening_and_convert(tmp_path: Path) -> None:
    array = np.arange(300_000, dtype=np.float32)
    for protocol in (2, 4):
        path, out = tmp_path / f"{protocol}.pkl", tmp_path / f"{protocol}.safetensors"
        path.write_bytes(pickle.dumps({"w": array}, protocol))
        convert(path, out)
        with open_checkpoint(out) as back:
            assert np.array_equal(back.tensors["w"].numpy(), array)


def test_arrays_that_are_no_numbers_are_listed(tmp_path: Path) -> None:
    path = tmp_path / "odd.pkl"
    record = np.zeros(2, [("a", "f4"), ("b", "i2")])
    content = {"w": np.ones(1), "text": np.array(["ab"]), "record": record, "object": np.array([{}, None], object)}
    path.write_bytes(pickle.dumps({**content, "when": np.array(["2020-01-01"], "M8[D]")}))
    with open_checkpoint(path) as checkpoint:
        assert list(checkpoint.tensors) == ["w"]
        assert checkpoint.extras["torch.objects"].keys() == {"text", "record", "object", "when"}


def test_hyperparameters_of_harmless_classes_are_metadata(tmp_path: Path) -> None:
    path = tmp_path / "args.pkl"
    args = argparse.Namespace(lr=0.1, data=pathlib.PurePosixPath("/data/set"), layers=(1, 2))
    path.write_bytes(pickle.dumps({"args": args, "w": np.ones(1), "huge": 1 << 4000}))
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.metadata == {"args": {"lr": 0.1, "data": "/data/set", "layers": [1, 2]}}
        assert checkpoint.extras["torch.objects"] == {"huge": "an integer of 4,001 bits"}


class Holder:
    """An object of a class nobody has, with tensors in it, that refers to itself."""


def test_tensors_inside_of_unknown_objects_are_found(tmp_path: Path) -> None:
    holder = Holder()
    holder.weight, holder.inner, holder.me = np.ones(2), [np.zeros(1)], holder  # type: ignore[attr-defined]
    path = tmp_path / "holder.pkl"
    path.write_bytes(pickle.dumps({"ema": holder, "again": holder}))
    with open_checkpoint(path) as checkpoint:
        assert list(checkpoint.tensors) == ["ema.weight", "ema.inner.0"]
        assert "Holder" in checkpoint.extras["torch.objects"]["ema"]


def test_containers_that_hold_themselves_are_cut(tmp_path: Path) -> None:
    loop: dict[str, Any] = {"w": np.ones(1)}
    loop["self"] = loop
    loop["list"] = [loop]
    path = tmp_path / "loop.pkl"
    path.write_bytes(pickle.dumps(loop))
    with open_checkpoint(path) as checkpoint:
        assert list(checkpoint.tensors) == ["w"]
        assert checkpoint.extras["torch.objects"]["self"] == "a container that holds itself"


def test_billion_laughs_end_at_the_limit(tmp_path: Path) -> None:
    value: list[Any] = [np.ones(1)]
    for _ in range(40):
        value = [value, value]
    path = tmp_path / "laughs.pkl"
    path.write_bytes(pickle.dumps(value))
    with pytest.raises(LimitExceededError, match="number of values"):
        open_checkpoint(path)


def test_names_that_would_be_equal_stay_apart(tmp_path: Path) -> None:
    path = tmp_path / "dots.pkl"
    content = {"a.b": np.zeros(1), "a": {"b": np.ones(1), "c": np.ones(1)}, 1: np.ones(2), "1": np.zeros(2)}
    path.write_bytes(pickle.dumps(content))
    with open_checkpoint(path) as checkpoint:
        assert len(checkpoint.tensors) == 5
        assert "a.c" in checkpoint.tensors
        values = {name: tensor.numpy()[0] for name, tensor in checkpoint.tensors.items()}
        assert sorted(values.values()) == [0, 0, 1, 1, 1]


def test_a_state_dict_survives_torch_to_torch_with_its_structure(tmp_path: Path) -> None:
    convert(VECTORS / "nested.pt", tmp_path / "again.pt", keep_all=True)
    with opened("nested.pt") as first, open_checkpoint(tmp_path / "again.pt") as second:
        assert list(second.tensors) == list(first.tensors)
        assert second.extras["torch.tree"]["model"].state == {"_metadata": {"": {"version": 1}}}
        assert second.metadata == first.metadata
        assert [raw(second, name) for name in second.tensors] == [raw(first, name) for name in first.tensors]


def test_limits_hold(tmp_path: Path) -> None:
    with pytest.raises(LimitExceededError):
        open_torch(locate(VECTORS / "zip.pt"), Limits(tensors=5))
    with pytest.raises(LimitExceededError):
        open_torch(locate(VECTORS / "zip.pt"), Limits(name_bytes=3))
    with pytest.raises(LimitExceededError):
        open_torch(locate(VECTORS / "zip.pt"), Limits(header_bytes=100))
    assert DEFAULT.tensors >= 1_000_000


def test_opening_reads_no_payload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tael.core.source import FileSource

    head = b"".join(pickle.dumps(item, 2) for item in (MAGIC, 1001, {}))
    body = b"\x80\x02}(U\1a" + tensor_of(storage_id("7", 200, None), 200) + b"u."
    small = tmp_path / "small.pt"
    small.write_bytes(head + body + pickle.dumps(["7"], 2) + struct.pack("<q", 200) + bytes(800))
    taken: list[tuple[int, int]] = []
    real = FileSource.read_into

    def count(self: FileSource, offset: int, buffer: memoryview) -> None:
        taken.append((offset, buffer.nbytes))
        real(self, offset, buffer)

    big = tmp_path / "big.pkl"
    big.write_bytes(pickle.dumps({"w": np.zeros(4_000_000, np.float32), "n": 1}, 4))
    monkeypatch.setattr(FileSource, "read_into", count)
    with open_torch(locate(big)) as checkpoint:
        assert checkpoint.tensors["w"].nbytes == 16_000_000
    assert sum(size for _, size in taken) < 1 << 18


def test_state_dict_metadata_is_kept_out_of_the_names() -> None:
    sample = OrderedDict(a=np.ones(1))
    sample._metadata = {"": {"version": 2}}  # type: ignore[attr-defined]
    assert isinstance(types.SimpleNamespace(), object)
    with opened("nested.pt") as checkpoint:
        assert not any("_metadata" in name for name in checkpoint.tensors)
        assert not any("_metadata" in name for name in checkpoint.metadata)


# --- sources that are far away


class Far:
    """Bytes that are neither a local file nor in memory; counts the reads."""

    def __init__(self, path: Path) -> None:
        self.data, self.name, self.reads = path.read_bytes(), str(path), 0
        self.size = len(self.data)
        self.identity = (self.size,)
        self.ref = {"file": self.name}

    def read_into(self, offset: int, buffer: memoryview) -> None:
        self.reads += 1
        buffer[:] = self.data[offset : offset + len(buffer)]

    def check_unchanged(self) -> None: ...

    def close(self) -> None: ...


class FarLocation:
    is_dir = False

    def __init__(self, path: Path) -> None:
        self.path, self.name = str(path), path.name
        self.far = Far(path)

    def source(self) -> Far:
        return self.far


@pytest.mark.parametrize("file", ["zip.pt", "legacy.pt", "script.pt", "big_endian.pt"])
def test_opening_far_files_takes_few_reads(file: str) -> None:
    location = FarLocation(VECTORS / file)
    with open_torch(location) as checkpoint:  # type: ignore[arg-type]
        assert location.far.reads < 16
        assert len(checkpoint.tensors) > 4
        for name, (_, _, data) in EXPECTED[file].items():
            assert raw(checkpoint, name).hex() == data, name


def test_an_encoded_array_is_found_again_by_its_reference(tmp_path: Path) -> None:
    from tael.core.source import open_ref, read

    path = tmp_path / "array.pkl"
    array = np.arange(60_000, dtype=np.uint16)
    path.write_bytes(pickle.dumps({"w": array}, 2))
    with open_checkpoint(path) as checkpoint:
        span = checkpoint.tensors["w"].span
        assert span is not None
        assert checkpoint.tensors["w"].access == "sequential"
        again = open_ref(json.loads(json.dumps(span.source.ref)))
        assert again.identity == span.source.identity
        assert read(again, 100_000, 4) == array.tobytes()[100_000:100_004]
        assert read(again, 2, 4) == array.tobytes()[2:6]
