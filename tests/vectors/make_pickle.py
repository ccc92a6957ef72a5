# SPDX-License-Identifier: Apache-2.0
"""Writes tests/vectors/pickle: small pickles of CPython 2 and 3, numpy 1 and 2, and torch.

    PYTHON2=/path/to/python2.7 python tests/vectors/make_pickle.py     (needs numpy, ml_dtypes, torch)

PYTHON2 is a Python 2.7 that has numpy 1.16; without it, the Python 2 files that are there already are kept.
"""

from __future__ import annotations

import collections
import hashlib
import io
import json
import os
import pickle
import platform
import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent / "pickle"

PYTHON2_SCRIPT = """
# -*- coding: utf-8 -*-
import cPickle, pickle, sys
import collections
import numpy

class Old:
    def __init__(self):
        self.bias = 1.5

class OldWithArguments:
    def __init__(self, a, b):
        self.a = a
    def __getinitargs__(self):
        return (1, "two")

class New(object):
    pass

new = New()
new.weight = numpy.arange(3, dtype="<f8")
value = {
    "name": "weights",
    "bytes": "\\x8c\\x00\\xff'\\n\\\\",
    u"text": u"h\\xe9 \\u5c42 \\\\u0041",
    "numbers": [1, -2, 2 ** 31, 2 ** 70, -(2 ** 70), 1.5, 1e300, True, None],
    "long": 5L,
    "tuple": ((), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)),
    "array": numpy.arange(6, dtype="<f4").reshape(2, 3),
    "fortran": numpy.asfortranarray(numpy.arange(6, dtype=">i2").reshape(2, 3)),
    "scalar": numpy.float64(2.5),
    "set": set([3]),
    "ordered": collections.OrderedDict([("b", 1), ("a", 2)]),
    "old": Old(),
    "old_arguments": OldWithArguments(1, 2),
    "new": new,
}
for module in (pickle, cPickle):
    for protocol in (0, 1, 2):
        with open("%s/python2_%s_%d.pkl" % (sys.argv[1], module.__name__.lower(), protocol), "wb") as out:
            module.dump(value, out, protocol)
print("%s, numpy %s" % (sys.version.split()[0], numpy.__version__))
"""


def python3_files() -> dict[str, str]:
    import ml_dtypes
    import numpy as np

    value = {
        "array": np.arange(6, dtype="<f4").reshape(2, 3),
        "big_endian": np.arange(3, dtype=">i4"),
        "fortran": np.asfortranarray(np.arange(6, dtype="<f8").reshape(2, 3)),
        "transposed": np.arange(24, dtype="u1").reshape(2, 3, 4).transpose(1, 0, 2),
        "empty": np.zeros((0, 3), "<f2"),
        "scalar": np.float64(1.5),
        "complex": np.complex64(1 + 2j),
        "bool": np.bool_(True),
        "bfloat16": np.array([1.0, -2.0], ml_dtypes.bfloat16),
        "structured": np.array([(1, 2.5)], dtype=[("a", "<i4"), ("b", "<f8")]),
        "text": np.array(["a", "bc"]),
        "objects": np.array([{"inner": 1}, None], dtype=object),
        "dtype": np.dtype("float16"),
        "date": np.array(["2020-01-01"], "M8[D]"),
    }
    made = {}
    for protocol in range(6):
        path = f"numpy2_{protocol}.pkl"
        (HERE / path).write_bytes(pickle.dumps(value, protocol))
        made[path] = f"CPython {platform.python_version()}, numpy {version('numpy')}"
    return made


def python2_files() -> dict[str, str]:
    names = [f"python2_{module}_{protocol}.pkl" for module in ("pickle", "cpickle") for protocol in (0, 1, 2)]
    interpreter = os.environ.get("PYTHON2")
    if interpreter:
        command = [interpreter, "-c", PYTHON2_SCRIPT, str(HERE)]
        by = f"CPython {subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()}"
        return dict.fromkeys(names, by)
    kept = json.loads((HERE / "PROVENANCE.json").read_text("utf-8"))["files"]
    return {name: kept[name]["by"] for name in names}


def torch_files() -> dict[str, str]:
    import torch

    class Tagged(torch.Tensor):
        pass

    torch.manual_seed(0)
    base = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    ordered = collections.OrderedDict(weight=base)
    ordered._metadata = {"": {"version": 1}}  # type: ignore[attr-defined]
    tagged = torch.ones(2).as_subclass(Tagged)
    tagged.note = "kept"  # type: ignore[attr-defined]
    subclass = {"tagged": tagged}
    tensors = {
        "plain": base,
        "view": base.t()[1:],
        "scalar": torch.tensor(7, dtype=torch.int64),
        "parameter": torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16)),
        "float8": torch.zeros(2).to(torch.float8_e4m3fn),
        "conjugate": torch.ones(2, dtype=torch.complex64).conj(),
        "meta": torch.empty(2, 3, device="meta"),
        "coo": torch.eye(3).to_sparse(),
        "csr": torch.eye(3).to_sparse_csr(),
        "size": torch.Size([2, 3]),
        "dtype": torch.float16,
        "device": torch.device("cuda", 1),
        "layout": torch.strided,
        "version": torch.torch_version.TorchVersion("2.1"),
        "generator": torch.Generator().get_state()[:4].clone(),
        "ordered": ordered,
        "shared": [base, base],
    }
    module = torch.nn.Sequential(torch.nn.Linear(2, 3, bias=False), torch.nn.Sequential(torch.nn.BatchNorm1d(3)))
    module.register_buffer("kept", torch.ones(1))
    module.register_buffer("passing", torch.ones(1), persistent=False)
    files: dict[str, Any] = {"tensors": tensors, "module": module, "quantized": _quantized(torch)}
    made = {}
    by = f"CPython {platform.python_version()}, torch {version('torch')}"
    for name, value in files.items():
        for protocol in (2, 4):
            path = f"torch_{name}_{protocol}.pkl"
            (HERE / path).write_bytes(data_pkl(torch, value, protocol))
            made[path] = by
    (HERE / "torch_plain.pkl").write_bytes(pickle.dumps({"w": torch.ones(2)}, 2))
    made["torch_plain.pkl"] = by
    sys.modules["lost"] = type(sys)("lost")
    sys.modules["lost"].Tagged = Tagged  # type: ignore[attr-defined]
    Tagged.__module__, Tagged.__qualname__ = "lost", "Tagged"
    (HERE / "torch_subclass.pkl").write_bytes(data_pkl(torch, subclass, 2))
    made["torch_subclass.pkl"] = by
    return made


def _quantized(torch: Any) -> Any:
    per_channel = torch.quantize_per_channel(
        torch.ones(2, 3), torch.tensor([0.1, 0.2]), torch.tensor([0, 1]), 0, torch.qint8
    )
    return {"tensor": torch.quantize_per_tensor(torch.ones(3), 0.5, 2, torch.quint8), "channel": per_channel}


def data_pkl(torch: Any, value: Any, protocol: int) -> bytes:
    """What torch.save puts into the member data.pkl."""
    file = io.BytesIO()
    torch.save(value, file, pickle_protocol=protocol)
    with zipfile.ZipFile(file) as archive:
        return archive.read("archive/data.pkl")


def main() -> None:
    HERE.mkdir(exist_ok=True)
    made = {**python3_files(), **python2_files(), **torch_files()}
    files = {
        path: {"by": by, "sha256": hashlib.sha256((HERE / path).read_bytes()).hexdigest()}
        for path, by in sorted(made.items())
    }
    text = json.dumps({"made with": "make_pickle.py", "files": files}, indent=1) + "\n"
    (HERE / "PROVENANCE.json").write_text(text, "utf-8")


if __name__ == "__main__":
    main()
