# SPDX-License-Identifier: Apache-2.0
"""torch.save against torch.load: the same structure, names, geometry and plain values, at every protocol."""

from __future__ import annotations

import collections
import io
import pickle
import zipfile
from typing import Any

import pytest

from tael.pickle import Call, Reader, StubDict, TensorRef, TorchDevice, TorchDtype, load, storage_ref, walk

pytestmark = pytest.mark.peer


def data_pkl(value: Any, protocol: int = 2) -> bytes:
    import torch

    file = io.BytesIO()
    torch.save(value, file, pickle_protocol=protocol)
    with zipfile.ZipFile(file) as archive:
        return archive.read("archive/data.pkl")


def same(found: Any, real: Any) -> None:
    import torch

    if isinstance(real, torch.Tensor):
        assert type(found) is TensorRef
        assert found.size == tuple(real.shape)
        assert found.parameter == isinstance(real, torch.nn.Parameter)
        assert found.requires_grad == real.requires_grad
        if real.layout is torch.strided and real.device.type == "cpu":
            assert (found.stride, found.offset) == (real.stride(), real.storage_offset())
            dtype = found.dtype or found.storage.dtype
            assert f"torch.{dtype.name}" == str(real.dtype)
            width = real.element_size() if found.storage.dtype else 1
            assert found.storage.numel * width == real.untyped_storage().nbytes()
    elif isinstance(real, torch.dtype):
        assert TorchDtype(str(real).removeprefix("torch.")) == found
    elif isinstance(real, torch.device):
        assert TorchDevice(real.type, real.index) == found
    elif isinstance(real, dict):
        assert list(found) == list(real)
        assert type(found) is (dict if type(real) is dict else StubDict)
        for key in real:
            same(found[key], real[key])
    elif isinstance(real, (list, tuple)):
        assert len(found) == len(real)
        for one, other in zip(found, real, strict=True):
            same(one, other)
    else:
        assert found == real
        assert type(found) is (str if isinstance(real, str) else type(real))


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_dtype_and_layout(protocol: int) -> None:
    import torch

    values: dict[str, Any] = {}
    dtypes = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    for dtype in sorted(dtypes, key=str):
        values[f"dtype {dtype}"] = dtype
        if "quint" in str(dtype) or "qint" in str(dtype):
            continue
        try:
            tensor = torch.empty(2, 3, dtype=dtype)
            data_pkl(tensor)
        except (RuntimeError, KeyError, NotImplementedError, TypeError):
            continue
        values[str(dtype)] = tensor
    assert len(values) > 60
    base = torch.arange(24.0).reshape(2, 3, 4)
    values |= {
        "transposed": base.transpose(0, 2), "sliced": base[:, 1:, ::2], "expanded": torch.ones(1).expand(3, 4),
        "scalar": torch.tensor(1), "empty": torch.empty(0, 3), "grad": torch.ones(2, requires_grad=True),
        "channels": torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last), "device": torch.device("cpu"),
        "size": torch.Size([1, 2]), "parameter": torch.nn.Parameter(torch.ones(2), requires_grad=False),
        "nested": [{"a": (torch.ones(1), [None, True, 1.5, "x"])}], "version": torch.torch_version.TorchVersion("2.1"),
        "ordered": collections.OrderedDict(b=torch.ones(1), a=torch.zeros(1)), "meta": torch.empty(2, 3, device="meta"),
        "sparse": torch.eye(3).to_sparse(), "csr": torch.eye(3).to_sparse_csr(), 7: {8: torch.ones(1)},
    }  # fmt: skip
    loaded = load(Reader(data_pkl(values, protocol)), persistent=storage_ref)
    same(loaded.value, values)
    assert [use.qualified for use in loaded.globals if not use.known] == []


def test_a_training_checkpoint() -> None:
    import torch

    model = torch.nn.TransformerEncoderLayer(16, 2, 32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model(torch.ones(2, 1, 16)).sum().backward()
    optimizer.step()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    value = {
        "state_dict": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3,
        "rng": torch.get_rng_state(), "scheduler": scheduler.state_dict(),
    }  # fmt: skip
    for protocol in (2, 4):
        loaded = load(Reader(data_pkl(value, protocol)), persistent=storage_ref)
        same(loaded.value, value)


def test_whole_modules_give_the_names_of_their_state_dict() -> None:
    import torch

    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = torch.nn.Embedding(4, 3)
            self.head = torch.nn.Linear(3, 4, bias=False)
            self.head.weight = self.embed.weight
            self.twice = torch.nn.ModuleList([self.embed, self.embed])
            self.blocks = torch.nn.ModuleDict({"a_b": torch.nn.BatchNorm1d(3)})
            self.register_buffer("shown", torch.ones(1))
            self.register_buffer("hidden", torch.ones(1), persistent=False)
            self.register_parameter("absent", None)
            self.table = torch.nn.ParameterList([torch.ones(2)])

    Tied.__qualname__ = "Tied"
    globals()["Tied"] = Tied
    try:
        for model in (Tied(), torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(8, 2, 8), 2)):
            for protocol in (2, 5):
                found = load(Reader(data_pkl(model, protocol)), persistent=storage_ref).value
                names = {".".join(path): leaf for path, leaf in walk(found)}
                wanted = model.state_dict()
                assert sorted(names) == sorted(wanted)
                for name, tensor in wanted.items():
                    assert names[name].size == tuple(tensor.shape)
    finally:
        del globals()["Tied"]


def test_a_graph_module_gives_the_names_of_its_state_dict() -> None:
    import torch

    model = torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3)))
    found = load(Reader(data_pkl(model)), persistent=storage_ref).value
    assert sorted(".".join(path) for path, _ in walk(found)) == sorted(model.state_dict())


def test_legacy_files_are_read_pickle_by_pickle() -> None:
    import torch

    file = io.BytesIO()
    base = torch.arange(6.0)
    torch.save({"w": base, "view": base[2:4]}, file, _use_new_zipfile_serialization=False)
    data = file.getvalue()
    reader = Reader.over(lambda offset, size: data[offset : offset + size], len(data))
    magic, protocol, system, value, keys = (load(reader, persistent=storage_ref).value for _ in range(5))
    assert (magic, protocol) == (0x1950A86A20F9469CFC6C, 1001)
    assert system["little_endian"] is True
    assert keys == [value["w"].storage.key]
    assert value["view"].offset == 2
    count = int.from_bytes(reader.read(reader.position, 8), "little")
    assert count == 6
    assert reader.read(reader.position + 8, 24) == base.numpy().tobytes()
    assert reader.left == 32


def test_a_lightning_checkpoint_opens_without_its_classes() -> None:
    """P2: hyperparameters of a class that is gone, beside the weights."""
    import torch

    class HParams(dict[str, Any]):
        pass

    HParams.__qualname__ = "HParams"
    globals()["HParams"] = HParams
    try:
        data = data_pkl({"state_dict": {"w": torch.ones(2)}, "hyper_parameters": HParams(lr=0.1)})
    finally:
        del globals()["HParams"]
    found = load(Reader(data), persistent=storage_ref).value
    assert type(found["hyper_parameters"]) is Call
    assert dict(walk(found))["hyper_parameters", "lr"] == 0.1
    assert found["state_dict"]["w"].size == (2,)


def test_tensors_in_a_plain_pickle() -> None:
    import torch

    values = {"w": torch.ones(3), "p": torch.nn.Parameter(torch.ones(2, dtype=torch.float16))}
    for protocol in range(6):
        found = load(Reader(pickle.dumps(values, protocol))).value
        assert found["w"].size == (3,)
        assert found["p"].parameter
        inner = Reader(found["w"].storage.data)
        parts = [load(inner, persistent=storage_ref).value for _ in range(5)]
        assert parts[3].numel == 3
        assert inner.read(inner.position + 8, 12) == torch.ones(3).numpy().tobytes()
