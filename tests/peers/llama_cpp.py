# SPDX-License-Identifier: Apache-2.0
"""llama.cpp itself: its quantizer through the prebuilt library of the npm package @node-llama-cpp/linux-x64, and its
server through the wheel xllamacpp. Both are pinned: the structures below are those of that version.

Where the package cannot be had, the test fails: a comparison that is skipped proves nothing.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tests.peers.real_files import CACHE

PACKAGE = "@node-llama-cpp/linux-x64@3.22.1"


def libraries() -> Path:
    """The folder of the libraries, fetched once."""
    folder = CACHE / PACKAGE.replace("/", "_")
    if not folder.is_dir():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE, prefix="fetch-") as place:
            done = subprocess.run(["npm", "pack", "--silent", PACKAGE], cwd=place, capture_output=True, text=True)
            assert done.returncode == 0, f"{PACKAGE} could not be fetched: {done.stderr.strip()[-500:]}"
            with tarfile.open(next(Path(place).glob("*.tgz"))) as archive:
                archive.extractall(Path(place) / "unpacked", filter="data")
            try:
                (Path(place) / "unpacked").rename(folder)
            except OSError:
                assert folder.is_dir(), f"{folder} could not be made"
    return folder / "package" / "bins" / "linux-x64"


class _Imatrix(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("data", ctypes.POINTER(ctypes.c_float)), ("size", ctypes.c_size_t))


class _Params(ctypes.Structure):
    _fields_ = (
        ("nthread", ctypes.c_int32),
        ("ftype", ctypes.c_int32),
        ("output_tensor_type", ctypes.c_int32),
        ("token_embedding_type", ctypes.c_int32),
        ("allow_requantize", ctypes.c_bool),
        ("quantize_output_tensor", ctypes.c_bool),
        ("only_copy", ctypes.c_bool),
        ("pure", ctypes.c_bool),
        ("keep_split", ctypes.c_bool),
        ("dry_run", ctypes.c_bool),
        ("imatrix", ctypes.POINTER(_Imatrix)),
        ("kv_overrides", ctypes.c_void_p),
        ("tensor_type", ctypes.c_void_p),
        ("prune_layers", ctypes.POINTER(ctypes.c_int32)),
    )


def quantize(
    source: Path,
    target: Path,
    ftype: int,
    *,
    imatrix: Mapping[str, np.ndarray] | None = None,
    pure: bool = False,
    allow_requantize: bool = False,
    prune_layers: Sequence[int] = (),
) -> None:
    """llama.cpp's quantizer, in a process of its own: it writes to stderr and may abort."""
    with tempfile.TemporaryDirectory() as place:
        matrix = os.path.join(place, "imatrix.npz")
        if imatrix is not None:
            np.savez(matrix, **{name.replace("/", "|"): values for name, values in imatrix.items()})
        given = matrix if imatrix is not None else None
        job = [str(source), str(target), ftype, given, pure, allow_requantize, [*prune_layers]]
        command = [sys.executable, "-m", "tests.peers.llama_cpp", json.dumps(job)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr[-2000:]


def _quantize(
    source: str, target: str, ftype: int, matrix: str | None, pure: bool, requantize: bool, prune: list[int]
) -> int:
    place = libraries()
    for name in ("libggml-base.so", "libggml-cpu-x64.so", "libggml.v0.5.0.so"):
        ctypes.CDLL(str(place / name), mode=ctypes.RTLD_GLOBAL)
    llama = ctypes.CDLL(str(place / "libllama.v0.5.0.so"))
    llama.llama_backend_init()
    llama.llama_model_quantize_default_params.restype = _Params
    params = llama.llama_model_quantize_default_params()
    assert (params.ftype, params.quantize_output_tensor, params.pure) == (7, True, False), "another llama.cpp"
    params.nthread, params.ftype, params.pure, params.allow_requantize = 2, ftype, pure, requantize
    if matrix is not None:
        with np.load(matrix) as archive:
            arrays = {name.replace("|", "/"): np.ascontiguousarray(archive[name], np.float32) for name in archive.files}
        entries = (_Imatrix * (len(arrays) + 1))()
        for entry, (name, array) in zip(entries, arrays.items(), strict=False):
            entry.name, entry.size = name.encode(), array.size
            entry.data = array.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        params.imatrix = entries
    if prune:
        params.prune_layers = (ctypes.c_int32 * (len(prune) + 1))(*prune, -1)
    return int(llama.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(params)))


def generate(model: Path, prompt: str = "Once upon a time", tokens: int = 8) -> str:
    """Greedy text of a GGUF by llama.cpp's server, in a process of its own."""
    code = (
        "import json, sys, xllamacpp as x\n"
        "p = x.CommonParams(); p.model.path = sys.argv[1]; p.n_ctx = 256; p.n_parallel = 1\n"
        "p.cpuparams.n_threads = 2; p.warmup = False\n"
        "s = x.Server(p)\n"
        "r = s.handle_completions({'prompt': sys.argv[2], 'n_predict': int(sys.argv[3]), 'temperature': 0})\n"
        "r = r if isinstance(r, dict) else json.loads(r)\n"
        "print('TEXT' + json.dumps(r))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(model), prompt, str(tokens)], capture_output=True, text=True, timeout=300
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("TEXT")]
    assert lines, f"llama.cpp does not run {model.name}: {done.stderr[-2000:]}"
    answer: dict[str, Any] = json.loads(lines[-1][4:])
    choices = answer.get("choices")
    return str(choices[0]["text"] if choices else answer["content"])


if __name__ == "__main__":
    sys.exit(_quantize(*json.loads(sys.argv[1])))
