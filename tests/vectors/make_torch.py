# SPDX-License-Identifier: Apache-2.0
"""Writes tests/vectors/torch: files of real PyTorch, old and new, and what it says is in them (expected.json).

    python tests/vectors/make_torch.py        (needs torch and pytorch-lightning)

The files of PyTorch 1.4 are made by Python 2.7 and 3.7 of pyenv; where those are missing, the ones that are there stay.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import struct
import subprocess
import sys
import tarfile
import tempfile
import warnings
import zipfile
from collections import OrderedDict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

HERE = Path(__file__).parent / "torch"
CACHE = Path(__file__).parent.parent.parent / ".cache" / "torch-1.4"
BY = f"torch {torch.__version__}"
OLD = {"py3.7": "zip_1.4.pt legacy_1.4.pt script_1.4.pt", "py2.7": "legacy_py2.pt numpy_py2.pkl text_py2.pkl"}

PLAIN = (
    "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64",
    "complex128",
)  # fmt: skip
YOUNG = (
    "uint16", "uint32", "uint64", "complex32", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz",
    "float8_e8m0fnu", "float4_e2m1fn_x2",
)  # fmt: skip


def of_bytes(name: str) -> torch.Tensor:
    """2 x 3 elements of a dtype, every byte another."""
    dtype = getattr(torch, name)
    raw = torch.arange(6 * dtype.itemsize, dtype=torch.uint8) * 37 + 3
    return (raw % 2 if dtype is torch.bool else raw).view(dtype).reshape(2, 3)


def state() -> dict[str, torch.Tensor]:
    base = torch.arange(96, dtype=torch.float32)
    found = {name: of_bytes(name) for name in PLAIN}
    return {
        **found,
        "odd": torch.tensor([float("nan"), -0.0, float("inf"), 1e-45]),
        "tied": found["float32"],
        "transposed": base.view(8, 12).t(),
        "overlap": base[24:48].view(6, 4),
        "third": base[::3],
        "channels_last": torch.arange(24.0).view(1, 2, 3, 4).to(memory_format=torch.channels_last),
        "expanded": torch.tensor([1.0, 2.0]).expand(5, 2),
        "scalar": torch.tensor(7.25),
        "empty": torch.zeros(2, 0),
        "层.weight": torch.ones(1, 2),
    }


class Scripted(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(2, 3)
        self.layers = torch.nn.ModuleList([torch.nn.Linear(3, 3, bias=False)])
        self.layers.append(self.layers[0])
        self.register_buffer("steps", torch.tensor([1, 2], dtype=torch.int64))
        self.rate = 16000

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(self.fc(x)[:, :3]) * torch.tensor([2.0, 3.0, 4.0])
        return x


EXPECTED: dict[str, dict[str, list[Any]]] = {}


def expect(file: str, tensors: dict[str, torch.Tensor]) -> None:
    EXPECTED[file] = {name: described(tensor) for name, tensor in tensors.items()}


def described(tensor: torch.Tensor) -> list[Any]:
    plain = tensor.detach().int_repr() if tensor.is_quantized else tensor.detach()
    raw = plain.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""
    return [str(plain.dtype).removeprefix("torch."), list(plain.shape), raw.hex()]


def save(file: str, content: Any, tensors: dict[str, torch.Tensor], **options: Any) -> None:
    torch.save(content, HERE / file, **options)
    expect(file, tensors)


def containers() -> None:
    young = {**state(), **{name: of_bytes(name) for name in YOUNG}}
    save("zip.pt", young, young)
    save("legacy.pt", state(), state(), _use_new_zipfile_serialization=False)
    torch.serialization.set_crc32_options(False)
    save("no_crc.pt", {"w": torch.arange(4.0)}, {"w": torch.arange(4.0)})
    torch.serialization.set_crc32_options(True)
    whole = torch.arange(3.0)
    save("tensor.pt", whole, {"tensor": whole})
    big_endian(HERE / "zip.pt", HERE / "big_endian.pt")
    expect("big_endian.pt", young)


def big_endian(source: Path, target: Path) -> None:
    """The same archive as a big-endian machine writes it: every number swapped, and the record that says so."""
    widths: dict[int, int] = {}  # of each storage, in the order of their records
    for tensor in torch.load(source, weights_only=True).values():
        size = tensor.dtype.itemsize // (2 if tensor.dtype.is_complex else 1)
        widths.setdefault(tensor.untyped_storage()._cdata, size)
    by_key = dict(enumerate(widths.values()))
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if "/data/" in name:
                width = by_key[int(name.rpartition("/")[2])]
                data = b"".join(data[at : at + width][::-1] for at in range(0, len(data), width))
            new.writestr(zipfile.ZipInfo(name), b"big" if name.endswith("byteorder") else data)


def structures() -> None:
    w, b = torch.arange(6.0).view(2, 3), torch.ones(3)
    model = OrderedDict([("fc.weight", w), ("fc.bias", torch.nn.Parameter(b))])
    model._metadata = OrderedDict([("", {"version": 1})])  # type: ignore[attr-defined]
    content = {
        "model": model,
        "list": [w, (b, 3), {"deep": w}],
        1: torch.zeros(1),
        "epoch": 3,
        "name": "tiny",
        "rate": 1e-3,
        "dtype": torch.float16,
        "device": torch.device("cuda:1"),
        "size": torch.Size([2, 3]),
        "none": None,
        "array": np.arange(4, dtype=">i2"),
        "fortran": np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)),
        "best": np.float64(1.5),
        "set": {"b", "a"},
        "bytes": b"\0\xff",
    }
    tensors = {
        "model.fc.weight": w,
        "model.fc.bias": b,
        "list.0": w,
        "list.1.0": b,
        "list.2.deep": w,
        "1": torch.zeros(1),
    }
    tensors["array"] = torch.arange(4, dtype=torch.int16)
    tensors["fortran"] = w
    save("nested.pt", content, tensors)
    save("qtype.pt", {"w": w, "qtype": "nf4", "bits": 4, "absent": None, "dtype": torch.bfloat16}, {"w": w})
    quantized()
    refused()
    save("not_gathered.pt", {f"layer.{n}.weight": torch.empty(0) for n in range(3)}, {})
    with open(HERE / "tensors.pkl", "wb") as file:
        pickle.dump({"w": w, "both": [w, b]}, file, protocol=4)
    expect("tensors.pkl", {"w": w, "both.0": w, "both.1": b})
    for protocol in (2, 5):
        with open(HERE / f"numpy_{protocol}.pkl", "wb") as file:
            pickle.dump(
                {"w": np.zeros(3), "best": np.float64(1.5), "b": np.arange(200, 204, dtype=np.uint8)}, file, protocol
            )
        expect(
            f"numpy_{protocol}.pkl",
            {"w": torch.zeros(3, dtype=torch.float64), "b": torch.arange(200, 204).to(torch.uint8)},
        )


def quantized() -> None:
    values = torch.tensor([[-1.0, 0.5], [2.0, 3.5]])
    whole = torch.quantize_per_tensor(values, 0.5, 10, torch.quint8)
    scales, zeros = torch.tensor([0.5, 0.25], dtype=torch.float64), torch.tensor([0, 1])
    rows = torch.quantize_per_channel(values, scales, zeros, 0, torch.qint8)
    content = {"whole": whole, "wide": torch.quantize_per_tensor(values, 0.1, 0, torch.qint32), "rows": rows}
    save("quantized.pt", content, {**content, "rows.scales": scales, "rows.zero_points": zeros})


def refused() -> None:
    from torch._subclasses.fake_tensor import FakeTensor

    class Fake:
        """What a FakeTensor's own __reduce_ex__ gives; its attributes do not pickle."""

        def __reduce__(self) -> Any:
            args = (FakeTensor, torch.float32, (2, 3), (3, 1), 0, torch.strided, torch.device("cpu"), False)
            return torch._utils._rebuild_wrapper_subclass, args

    good = torch.arange(3.0)
    content = {
        "first": good,
        "coo": torch.eye(2).to_sparse(),
        "csr": torch.eye(2).to_sparse_csr(),
        "nested": torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]),
        "meta": torch.empty(4, 5, device="meta"),
        "fake": Fake(),
        "conj": torch.tensor([1 + 2j]).conj(),
        "neg": torch.tensor([1 + 2j]).conj().imag,
        "bits": torch.arange(4, dtype=torch.uint8).view(torch.bits8),
        "last": good,
    }
    save("refused.pt", content, {"first": good, "last": good})


def programs() -> None:
    torch.manual_seed(0)
    module = Scripted()
    torch.jit.script(module).save(str(HERE / "script.pt"))
    expect("script.pt", dict(torch.jit.load(str(HERE / "script.pt")).state_dict()))

    torch.manual_seed(0)
    net = torch.nn.Sequential(OrderedDict(body=torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))))
    net.register_buffer("scratch", torch.zeros(1), persistent=False)
    net.tied = net.body[0]
    elsewhere(net.body)
    save("module.pt", net, net.state_dict())
    traced = torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(2, 1)))
    save("graph_module.pt", {"net": traced, "step": 1}, {f"net.{k}": v for k, v in traced.state_dict().items()})


def elsewhere(module: torch.nn.Module) -> None:
    """Give `module` a class of a package that nobody has."""
    kind = type("Body", (torch.nn.Sequential,), {"__module__": "vanished.models"})
    sys.modules["vanished"] = sys.modules["vanished.models"] = type(sys)("vanished.models")
    sys.modules["vanished.models"].Body = kind  # type: ignore[attr-defined]
    module.__class__ = kind


def lightning() -> None:
    import logging

    import pytorch_lightning as pl

    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)

    class Net(pl.LightningModule):
        def __init__(self, width: int = 3, name: str = "tiny") -> None:
            super().__init__()
            self.save_hyperparameters()
            self.model = torch.nn.Linear(2, width)

        def training_step(self, batch: Any, _: int) -> Any:
            return self.model(batch[0]).square().mean()

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.Adam(self.parameters(), lr=1e-3)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]

    torch.manual_seed(0)
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(2, 2)))
    quiet = {
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
    }
    trainer = pl.Trainer(max_epochs=1, accelerator="cpu", **quiet)
    trainer.fit(Net(), data)
    trainer.save_checkpoint(HERE / "lightning.ckpt")
    content = torch.load(HERE / "lightning.ckpt", weights_only=False)
    expect("lightning.ckpt", {f"state_dict.{name}": tensor for name, tensor in content["state_dict"].items()})


def tar() -> None:
    """By hand, after what torch/serialization.py still reads: nobody has a torch that writes it."""
    values = np.arange(8, dtype="<f4")

    def storage(key: int, kind: str, data: bytes, width: int) -> bytes:
        entry = b"\x80\x02" + b"J" + struct.pack("<i", key) + b"X\3\0\0\0cpu" + f"ctorch\n{kind}\n".encode() + b"\x87."
        return entry + struct.pack("<q", len(data) // width) + data

    def tensor(key: int, store: int, size: tuple[int, ...], stride: tuple[int, ...], offset: int) -> bytes:
        head = pickle.dumps((key, store, "class"), 2).replace(b"X\5\0\0\0class", b"ctorch\nFloatTensor\n")
        numbers = struct.pack(f"<{2 * len(size) + 1}q", *size, *stride, offset)
        return head + struct.pack("<ii", len(size), 0) + numbers

    ids = torch.tensor([5, -6])
    storages = pickle.dumps(2, 2) + storage(101, "FloatStorage", values.tobytes(), 4)
    storages += storage(102, "LongStorage", ids.numpy().tobytes(), 8)
    storages += pickle.dumps([(103, 101, 4, 4)], 2)
    tensors = pickle.dumps(3, 2) + tensor(201, 101, (2, 2), (1, 2), 0) + tensor(202, 102, (2,), (1,), 0)
    tensors += tensor(203, 103, (4,), (1,), 0)
    names = {"w": "201", "ids": "202", "tail": "203"}
    body = b"".join(
        b"X" + struct.pack("<i", len(n)) + n.encode() + b"U%c" % len(k) + k.encode() + b"Q" for n, k in names.items()
    )
    with tarfile.open(HERE / "tar.pt", "w", format=tarfile.PAX_FORMAT) as archive:
        for name, data in (("tensors", tensors), ("storages", storages), ("pickle", b"\x80\x02}(" + body + b"u.")):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded = torch.load(HERE / "tar.pt", weights_only=False)  # torch agrees that this is the layout
    expect("tar.pt", loaded)


# --- PyTorch 1.4, which wrote Python 2's pickles and the first version of the zip layout

OLD_PROGRAM = {
    "py3.7": """
import sys, torch
from collections import OrderedDict
w = torch.arange(6.0).view(2, 3)
state = OrderedDict([("w", w), ("t", w.t()), ("tied", w), ("n", torch.tensor([1, -2])), ("s", torch.tensor(0.5))])
torch.save(state, sys.argv[1] + "/zip_1.4.pt", _use_new_zipfile_serialization=True)
torch.save(state, sys.argv[1] + "/legacy_1.4.pt")
torch.manual_seed(0)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(2, 3)
    def forward(self, x):
        return self.fc(x) * torch.tensor([2.0, 3.0, 4.0])
torch.jit.script(Net()).save(sys.argv[1] + "/script_1.4.pt")
""",
    "py2.7": """
import sys, pickle, torch, numpy as np
w = torch.arange(6.0).view(2, 3)
state = {"w": w, u"epoch": 3, "name": "caf\\xe9", "b": torch.ones(2)}
torch.save(state, sys.argv[1] + "/legacy_py2.pt")
with open(sys.argv[1] + "/numpy_py2.pkl", "wb") as f:
    pickle.dump({"w": np.arange(200, 204).astype(np.uint8), "f": np.arange(3.0), "raw": "\\x8c"}, f, 2)
with open(sys.argv[1] + "/text_py2.pkl", "wb") as f:
    pickle.dump({"w": np.arange(200, 204).astype(np.uint8)}, f, 0)
""",
}


def old_python(name: str) -> tuple[str, Path] | None:
    """An interpreter of pyenv, and a folder with PyTorch 1.4 for it; None where there is none."""
    home = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = sorted(home.glob(f"{name.removeprefix('py')}.*/bin/python"))
    if not found:
        return None
    python, folder = str(found[-1]), CACHE / name
    if not (folder / "torch").is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as wheels:
            pip = [python, "-m", "pip", "--disable-pip-version-check"]
            subprocess.run([*pip, "download", "--no-deps", "-d", wheels, "torch==1.4.0"], check=True)
            zipfile.ZipFile(next(Path(wheels).glob("*.whl"))).extractall(folder)
        subprocess.run([*pip, "install", "--target", str(folder), "numpy", "future"], check=True)
    return python, folder


def old_files(made: dict[str, str], before: dict[str, Any]) -> None:
    for name, files in OLD.items():
        where = old_python(name)
        if where is None:
            print(f"no {name} in pyenv: kept {files}")
            for file in files.split():
                made[file] = before["files"][file]["by"]
        else:
            python, folder = where
            environment = {**os.environ, "PYTHONPATH": str(folder)}
            with tempfile.TemporaryDirectory() as place:  # TorchScript wants source text in a file
                program = Path(place) / "program.py"
                program.write_text(OLD_PROGRAM[name])
                subprocess.run([python, str(program), str(HERE)], check=True, env=environment)
            made.update(dict.fromkeys(files.split(), f"torch 1.4.0 on Python {name.removeprefix('py')}"))
    w = torch.arange(6.0).view(2, 3)
    old = {"w": w, "t": w.t(), "tied": w, "n": torch.tensor([1, -2]), "s": torch.tensor(0.5)}
    expect("zip_1.4.pt", old)
    expect("legacy_1.4.pt", torch.load(HERE / "legacy_1.4.pt", weights_only=True))
    expect("script_1.4.pt", dict(torch.jit.load(str(HERE / "script_1.4.pt")).state_dict()))
    expect("legacy_py2.pt", {"w": w, "b": torch.ones(2)})
    few = torch.arange(200, 204).to(torch.uint8)
    expect("numpy_py2.pkl", {"w": few, "f": torch.arange(3.0, dtype=torch.float64)})
    expect("text_py2.pkl", {"w": few})


def main() -> None:
    warnings.simplefilter("ignore")
    HERE.mkdir(exist_ok=True)
    record = HERE / "PROVENANCE.json"
    before = json.loads(record.read_text()) if record.exists() else {"files": {}}
    for path in HERE.iterdir():
        if path.name not in " ".join(OLD.values()).split():
            path.unlink()
    for step in (containers, structures, programs, lightning, tar):
        step()
    made = dict.fromkeys((path.name for path in HERE.iterdir()), BY)
    made["lightning.ckpt"] = f"pytorch-lightning {version('pytorch-lightning')}, {BY}"
    made["tar.pt"] = f"bytes laid out by this script, read by {BY}"
    made["big_endian.pt"] = f"zip.pt with every number swapped by this script; {BY}"
    made["numpy_2.pkl"] = made["numpy_5.pkl"] = f"Python {sys.version.split()[0]}, numpy {np.__version__}"
    old_files(made, before)
    lines = (
        f"{json.dumps(file)}: {json.dumps(content, ensure_ascii=False)}" for file, content in sorted(EXPECTED.items())
    )
    (HERE / "expected.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")
    made["expected.json"] = "this script, from the values that torch holds"
    entries = {
        file: {"by": by, "sha256": hashlib.sha256((HERE / file).read_bytes()).hexdigest()}
        for file, by in sorted(made.items())
    }
    text = json.dumps({"made with": "make_torch.py", "files": entries}, ensure_ascii=False, indent=1)
    record.write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
