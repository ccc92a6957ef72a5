# SPDX-License-Identifier: Apache-2.0
"""What torch 2.13 saves, in every way it can, is what we read."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tael.core.checkpoint import Checkpoint
from tael.formats import open_checkpoint
from tael.formats.torch.storage import FROM_TORCH
from tael.training.names import fold_weight_norm, rename_weight_norm
from tael.training.parts import select
from tael.training.prefixes import strip
from tael.training.summary import summarize

pytestmark = pytest.mark.peer

DTYPES = [
    "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16",
    "uint8", "bool", "complex32", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz",
    "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2",
]  # fmt: skip


def zipped(content: Any, path: Path, **options: Any) -> None:
    import torch

    torch.save(content, path, **options)


def legacy(content: Any, path: Path, **options: Any) -> None:
    zipped(content, path, _use_new_zipfile_serialization=False, **options)


def dumped(content: Any, path: Path) -> None:
    path.write_bytes(pickle.dumps(content))


def raw(checkpoint: Checkpoint, name: str) -> bytes:
    tensor = checkpoint.tensors[name]
    tensor.verify_checks()
    return b"".join(bytes(piece) for piece in tensor.chunks(7))


def bits(tensor: Any) -> bytes:
    import torch

    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


@pytest.mark.parametrize("save", [zipped, legacy, dumped])
@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_in_every_layout_and_geometry(name: str, save: Callable[..., None], tmp_path: Path) -> None:
    import torch

    dtype = getattr(torch, name)
    data = torch.randint(0, 256, (24 * dtype.itemsize,), dtype=torch.uint8)
    base = (data % 2 if dtype is torch.bool else data).view(dtype)
    content = {"base": base, "matrix": base.view(4, 6), "empty": base[:0].view(2, 0), "tied": base}
    if name != "float4_e2m1fn_x2":
        content |= {
            "t": base.view(4, 6).t(),
            "step": base[1::5],
            "scalar": base[3],
            "box": base.view(2, 3, 4)[:, 1:, ::2],
        }
    path = tmp_path / "model.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        save(content, path)
    packs = 2 if name == "float4_e2m1fn_x2" else 1
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.aliases == {"tied": "base"}
        for key, tensor in content.items():
            ours = checkpoint.tensors[key]
            assert ours.dtype.name == FROM_TORCH[name]
            assert ours.shape == (*tensor.shape[:-1], *[n * packs for n in tensor.shape[-1:]])
            # torch has no copy kernel for some young dtypes: through bytes of the right width
            plain = (
                tensor
                if packs == 2
                else tensor.view(
                    {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}.get(dtype.itemsize, dtype)
                )
            )
            assert raw(checkpoint, key) == bits(plain), key


@pytest.mark.parametrize(
    "options",
    [{"pickle_protocol": 2}, {"pickle_protocol": 4}, {"pickle_protocol": 5}, {"_disable_byteorder_record": True}],
)
@pytest.mark.parametrize("save", [zipped, legacy])
def test_the_options_of_saving(options: dict[str, Any], save: Callable[..., None], tmp_path: Path) -> None:
    import torch

    if save is legacy and "_disable_byteorder_record" in options:
        options = {}
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    save(model.state_dict(), tmp_path / "model.pt", **options)
    with open_checkpoint(tmp_path / "model.pt") as checkpoint:
        assert list(checkpoint.tensors) == list(model.state_dict())
        for name, tensor in model.state_dict().items():
            assert raw(checkpoint, name) == bits(tensor)


def test_another_storage_alignment(tmp_path: Path) -> None:
    import torch
    from torch.utils.serialization import config

    old = config.save.storage_alignment
    try:
        config.save.storage_alignment = 4096
        torch.save({"a": torch.arange(5.0), "b": torch.ones(3)}, tmp_path / "aligned.pt")
    finally:
        config.save.storage_alignment = old
    with open_checkpoint(tmp_path / "aligned.pt") as checkpoint:
        assert checkpoint.tensors["a"].span.offset % 4096 == 0  # type: ignore[union-attr]
        assert checkpoint.tensors["b"].numpy().tolist() == [1, 1, 1]


def test_subclasses_are_plain_or_refused(tmp_path: Path) -> None:
    import torch

    class Named(torch.Tensor):
        pass

    globals()["Named"] = Named
    Named.__module__, Named.__qualname__ = __name__, "Named"
    plain = torch.arange(3.0)
    torch.save(
        {"w": plain.as_subclass(Named), "p": torch.nn.Parameter(plain), "b": torch.nn.Buffer(plain)},
        tmp_path / "sub.pt",
    )
    with open_checkpoint(tmp_path / "sub.pt") as checkpoint:
        assert not checkpoint.fatal()
        assert checkpoint.tensors["w"].numpy().tolist() == [0, 1, 2]
        assert "subclass test_torch_files.Named" in "\n".join(map(str, checkpoint.problems))
        assert checkpoint.extras["torch.requires_grad"] == ("p",)


def test_a_distributed_tensor_is_refused(tmp_path: Path) -> None:
    import torch
    from torch.distributed import destroy_process_group, init_process_group
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import distribute_tensor

    init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        torch.save({"d": distribute_tensor(torch.ones(4), mesh), "w": torch.ones(1)}, tmp_path / "dt.pt")
    finally:
        destroy_process_group()
    with open_checkpoint(tmp_path / "dt.pt") as checkpoint:
        assert "DTensor" in (checkpoint.tensors["d"].damaged or "")
        assert checkpoint.tensors["w"].numpy().tolist() == [1]


@pytest.mark.parametrize("save", [zipped, legacy])
def test_a_training_run(save: Callable[..., None], tmp_path: Path) -> None:
    import torch
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4))
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    for _ in range(3):
        model(torch.ones(2, 3)).square().sum().backward()
        optimizer.step()
        averaged.update_parameters(model)
    scheduler.step()
    save(
        {
            "epoch": 4,
            "model": model.state_dict(),
            "model_ema": averaged.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
            "rng": torch.get_rng_state(),
        },
        tmp_path / "run.pt",
    )
    with open_checkpoint(tmp_path / "run.pt") as checkpoint:
        about = summarize(checkpoint)
        assert about is not None
        assert about["epoch"] == 4
        assert about["optimizers"][0]["class"] == "SGD"
        assert about["schedulers"][0]["class"] == "CosineAnnealingLR"
        weights, ema = select(checkpoint), select(checkpoint, "ema")
        assert list(weights.tensors) == list(ema.tensors) == list(model.state_dict())
        for name, tensor in model.state_dict().items():
            assert raw(weights, name) == bits(tensor)
            assert raw(ema, name) == bits(averaged.module.state_dict()[name])
        assert raw(weights, "0.weight") != raw(ema, "0.weight")


def test_wrappers_of_training(tmp_path: Path) -> None:
    import torch

    inner = torch.nn.Sequential(torch.nn.Linear(2, 2))
    wrapped = torch.nn.DataParallel(torch.compile(inner))
    torch.save(wrapped.state_dict(), tmp_path / "wrapped.pt")
    with open_checkpoint(tmp_path / "wrapped.pt") as checkpoint:
        assert list(strip("auto")(checkpoint).tensors) == list(inner.state_dict())


def test_n6_weight_norm_of_torch(tmp_path: Path) -> None:
    import numpy as np
    import torch

    conv = torch.nn.Conv1d(4, 8, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        old = torch.nn.utils.weight_norm(torch.nn.Conv1d(4, 8, 3))
    new = torch.nn.utils.parametrizations.weight_norm(conv)
    torch.save(old.state_dict(), tmp_path / "old.pt")
    torch.save(new.state_dict(), tmp_path / "new.pt")
    with open_checkpoint(tmp_path / "old.pt") as checkpoint:
        assert rename_weight_norm()(checkpoint).tensors.keys() == new.state_dict().keys()
    with open_checkpoint(tmp_path / "new.pt") as checkpoint:
        assert rename_weight_norm("weight_g")(checkpoint).tensors.keys() == old.state_dict().keys()
        folded = fold_weight_norm(checkpoint).tensors["weight"].numpy()
        assert np.allclose(folded, new.weight.detach().numpy(), rtol=1e-6, atol=1e-7)


def test_torchscript_of_every_shape(tmp_path: Path) -> None:
    import torch

    model = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2), torch.nn.GRU(2, 3))
    for name, program in (
        ("script", torch.jit.script(model)),
        ("trace", torch.jit.trace(model[:2], torch.ones(1, 1, 5, 5))),
    ):
        path = tmp_path / f"{name}.pt"
        program.save(str(path))
        state = program.state_dict()
        with open_checkpoint(path) as checkpoint:
            assert set(state) <= set(checkpoint.tensors)
            for key, tensor in state.items():
                assert raw(checkpoint, key) == bits(tensor)


def test_four_bit_quantized_tensors(tmp_path: Path) -> None:
    import torch

    scales, zeros = torch.ones(3), torch.tensor([0.0, 1.0, 2.0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        packed = torch.quantize_per_channel(torch.arange(12.0).view(3, 4), scales, zeros, 0, torch.quint4x2)
        torch.save({"q": packed}, tmp_path / "q.pt")
    with open_checkpoint(tmp_path / "q.pt") as checkpoint:
        tensor = checkpoint.tensors["q"]
        assert (tensor.dtype.name, tensor.shape) == ("U4", (3, 4))
        assert raw(checkpoint, "q") == bytes(packed.untyped_storage().tolist())
        values = tensor.numpy().astype(float) - checkpoint.tensors["q.zero_points"].numpy()[:, None]
        assert values.tolist() == packed.dequantize().tolist()
