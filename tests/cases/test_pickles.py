# SPDX-License-Identifier: Apache-2.0
"""Pickles and torch files: P1 to P7, A5, S2 S3 S4. Inputs are made by pickle, zipfile and the real torch."""

from __future__ import annotations

import io
import os
import pickle
import struct
import sys
import types
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cases.files import converted, said, values
from tael.convert import convert
from tael.errors import TaelError
from tael.formats import open_checkpoint
from tael.training.parts import parts

W = np.arange(6, dtype=np.float32).reshape(2, 3)


def pickled(path: Path, content: Any, protocol: int = 2) -> Path:
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    return path


@pytest.mark.parametrize("module", [b"numpy.core", b"numpy._core"])
@pytest.mark.parametrize("protocol", [2, 4])
def test_p1_numpy_scalars_do_not_stop_the_tensors(tmp_path: Path, module: bytes, protocol: int) -> None:
    data = pickle.dumps({"model": {"w": W}, "best": np.float64(1.5)}, protocol=protocol)
    here = b"numpy._core" if b"numpy._core" in data else b"numpy.core"
    if protocol == 2:
        data = data.replace(b"c" + here + b".", b"c" + module + b".")
    (tmp_path / "x.pt").write_bytes(data)
    with open_checkpoint(tmp_path / "x.pt") as checkpoint:
        assert (checkpoint.tensors["model.w"].numpy() == W).all()
        assert checkpoint.metadata["best"] == 1.5
    assert (converted(tmp_path / "x.pt", tmp_path / "y.safetensors")["w"] == W).all()


def test_p2_classes_of_a_framework_that_is_not_installed_are_stubs(tmp_path: Path) -> None:
    module = types.ModuleType("vanished_framework")
    hparams = type("HParams", (), {"__module__": "vanished_framework"})
    module.HParams = hparams  # type: ignore[attr-defined]
    sys.modules["vanished_framework"] = module
    try:
        made = hparams()
        made.lr = 0.1
        source = pickled(tmp_path / "x.ckpt", {"state_dict": {"w": W}, "hyper_parameters": made})
    finally:
        del sys.modules["vanished_framework"]
    assert (converted(source, tmp_path / "y.safetensors")["w"] == W).all()
    assert "vanished_framework" in said(source)
    assert "vanished_framework" not in sys.modules


def test_p3_optimizer_state_is_told_apart_and_left_out(tmp_path: Path) -> None:
    moments = {k: {"exp_avg": W.copy(), "exp_avg_sq": W.copy()} for k in range(2)}
    optimizer = {"state": moments, "param_groups": [{"lr": 1e-3}]}
    weights = {"a": W.copy(), "b": W.copy()}
    source = pickled(tmp_path / "x.ckpt", {"state_dict": weights, "optimizer_states": [optimizer]})
    with open_checkpoint(source) as checkpoint:
        sizes = {part.kind: part.nbytes for part in parts(checkpoint)}
    assert sizes["weights"] == 2 * W.nbytes
    assert sizes["optimizer"] == 4 * W.nbytes
    result = convert(source, tmp_path / "y.safetensors")
    assert values(tmp_path / "y.safetensors").keys() == {"a", "b"}
    assert any("optimizer" in str(loss) for loss in result.plan.losses)
    convert(source, tmp_path / "all.safetensors", keep_all=True)
    assert len(values(tmp_path / "all.safetensors")) == 6


def test_p4_python_2_pickles_are_read_and_it_is_said(tmp_path: Path) -> None:
    # {'w\x8c': [1, 2]} as Python 2 wrote it: a byte string that is no ASCII
    array = pickle.dumps(W, protocol=2)[2:-1]
    (tmp_path / "x.ckpt").write_bytes(b"\x80\x02}q\x50U\x02w\x8cq\x51" + array + b"s.")
    assert (values(tmp_path / "x.ckpt")["w\x8c"] == W).all()
    assert "Python 2" in said(tmp_path / "x.ckpt")


def test_p6_a_plain_pickle_called_pt_is_called_so(tmp_path: Path) -> None:
    for name in ("x.pt", "x.pth.tar"):
        source = pickled(tmp_path / name, {"w": np.zeros(3)})
        assert "pickle" in said(source)
        assert (values(source)["w"] == 0).all()
        assert converted(source, tmp_path / "y.safetensors", force=True)["w"].shape == (3,)


def zip64_with_descriptors(path: Path, members: dict[str, bytes]) -> None:
    """A zip as a streaming writer makes it: bit 3, sizes of zero in the local headers, 8-byte sizes in descriptors."""
    import zlib

    body, directory = io.BytesIO(), io.BytesIO()
    for name, data in members.items():
        encoded, at, crc = name.encode(), body.tell(), zlib.crc32(data)
        extra = struct.pack("<HHQQ", 1, 16, 0, 0)
        body.write(
            struct.pack("<IHHHHHIIIHH", 0x04034B50, 45, 8, 0, 0, 0, 0, 0xFFFFFFFF, 0xFFFFFFFF, len(encoded), len(extra))
        )
        body.write(encoded + extra + data)
        body.write(struct.pack("<IIQQ", 0x08074B50, crc, len(data), len(data)))
        extra = struct.pack("<HHQQQ", 1, 24, len(data), len(data), at)
        fields = (
            0x02014B50,
            45,
            45,
            8,
            0,
            0,
            0,
            crc,
            0xFFFFFFFF,
            0xFFFFFFFF,
            len(encoded),
            len(extra),
            0,
            0,
            0,
            0,
            0xFFFFFFFF,
        )
        directory.write(struct.pack("<IHHHHHHIIIHHHHHII", *fields) + encoded + extra)
    start, size, count = body.tell(), directory.tell(), len(members)
    end = struct.pack("<IQHHIIQQQQ", 0x06064B50, 44, 45, 45, 0, 0, count, count, size, start)
    locator = struct.pack("<IIQI", 0x07064B50, 0, start + size, 1)
    last = struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    path.write_bytes(body.getvalue() + directory.getvalue() + end + locator + last)


def torch_zip(folder: Path) -> Path:
    """A torch file of {"w": W}, by tael's writer (which other tests compare with torch)."""
    np.savez(folder / "w.npz", w=W)
    convert(folder / "w.npz", folder / "w.pt")
    return folder / "w.pt"


def test_p7_zip64_with_descriptors_is_read(tmp_path: Path) -> None:
    with zipfile.ZipFile(torch_zip(tmp_path)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    zip64_with_descriptors(tmp_path / "x.ckpt", members)
    assert (values(tmp_path / "x.ckpt")["w"] == W).all()


def test_p7_an_archive_that_another_tool_rewrote_is_read(tmp_path: Path) -> None:
    with zipfile.ZipFile(torch_zip(tmp_path)) as archive, zipfile.ZipFile(tmp_path / "x.ckpt", "w") as other:
        other.writestr("added/notes.txt", "metadata")
        for name in archive.namelist():
            other.writestr(name, archive.read(name))
    assert (values(tmp_path / "x.ckpt")["w"] == W).all()


def test_a5_strings_in_the_state_dict_become_metadata(tmp_path: Path) -> None:
    source = pickled(tmp_path / "x.pt", {"w": W, "qtype": "nf4", "bits": 4, "none": None, "scale": 0.5})
    with open_checkpoint(source) as checkpoint:
        assert checkpoint.tensors.keys() == {"w"}
        assert {**checkpoint.metadata} | {"qtype": "nf4", "bits": 4, "none": None, "scale": 0.5} == checkpoint.metadata
    convert(source, tmp_path / "y.safetensors")
    with open_checkpoint(tmp_path / "y.safetensors") as back:
        assert back.metadata["qtype"] == "nf4"
        assert back.metadata["bits"] == 4


@pytest.mark.peer
def test_p5_torchscript_is_read_without_running_it(tmp_path: Path) -> None:
    import torch

    linear = torch.nn.Linear(3, 2)
    torch.jit.script(linear).save(str(tmp_path / "x.pt"))
    back = converted(tmp_path / "x.pt", tmp_path / "y.safetensors")
    assert back["weight"].tobytes() == linear.weight.detach().numpy().tobytes()
    assert "TorchScript" in said(tmp_path / "x.pt")


@pytest.mark.peer
def test_s2_tied_weights_keep_their_tie(tmp_path: Path) -> None:
    import torch

    t = torch.randn(4, 5)
    torch.save({"shared.weight": t, "encoder.embed_tokens.weight": t}, tmp_path / "x.pt")
    convert(tmp_path / "x.pt", tmp_path / "y.safetensors")
    assert os.path.getsize(tmp_path / "y.safetensors") < 2 * t.nbytes + 400
    convert(tmp_path / "y.safetensors", tmp_path / "z.pt")
    back = torch.load(tmp_path / "z.pt", weights_only=True)
    assert back["shared.weight"].data_ptr() == back["encoder.embed_tokens.weight"].data_ptr()
    assert torch.equal(back["shared.weight"], t)


@pytest.mark.peer
def test_s3_slices_of_one_buffer_are_not_shared(tmp_path: Path) -> None:
    import torch

    flat = torch.randn(100)
    torch.save({"a": flat[:40], "b": flat[40:].view(6, 10)}, tmp_path / "x.pt")
    result = convert(tmp_path / "x.pt", tmp_path / "y.safetensors", strict=True)
    assert not result.plan.losses
    assert values(tmp_path / "y.safetensors")["b"].tobytes() == flat[40:].numpy().tobytes()


@pytest.mark.peer
def test_s3_placeholders_of_weights_that_were_not_gathered_are_refused(tmp_path: Path) -> None:
    import torch

    torch.save({f"layer.{k}.weight": torch.empty(0) for k in range(4)}, tmp_path / "x.pt")
    with pytest.raises(TaelError, match="gathered"):
        convert(tmp_path / "x.pt", tmp_path / "y.safetensors")


@pytest.mark.peer
def test_s4_channels_last_is_packed(tmp_path: Path) -> None:
    import torch

    t = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    torch.save({"t": t, "u": torch.randn(3, 5).T}, tmp_path / "x.pt")
    back = converted(tmp_path / "x.pt", tmp_path / "y.safetensors")
    assert back["t"].tobytes() == t.contiguous().numpy().tobytes()
    assert back["u"].shape == (5, 3)
