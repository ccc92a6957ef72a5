# SPDX-License-Identifier: Apache-2.0
"""Runs a model file in a peer and prints, as JSON, the prompt's tokens, the logits behind it, the tokens that follow.

python run_model.py llama.cpp FILE.gguf N TOKEN...             with the llama.cpp inside xllamacpp
python run_model.py TYPE FILE N TOKEN...                       with ctransformers, as a model of TYPE
python run_model.py ... text TEXT                              the prompt as text, cut into tokens by the peer

In a process of its own, because both end the process on files that they do not like.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple


class Model(NamedTuple):
    step: Callable[[Sequence[int]], list[float]]  # takes tokens in, gives the logits behind them
    tokenize: Callable[[str], list[int]]


class Run(NamedTuple):
    prompt: list[int]
    logits: list[float]
    tokens: list[int]


def run(engine: str, path: Path, prompt: Sequence[int] | str, count: int = 8) -> Run:
    """`engine`: "llama.cpp" or a model type of ctransformers. Raises `RuntimeError` with what the peer said."""
    given = ["text", prompt] if isinstance(prompt, str) else [str(token) for token in prompt]
    command = [sys.executable, __file__, engine, str(path), str(count), *given]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise RuntimeError(f"{engine} ended with {done.returncode}: {done.stderr[-1500:]}")
    return Run(*json.loads(done.stdout.splitlines()[-1]))


class _Opaque(ctypes.Structure):
    """A struct whose fields nobody here reads: passed on as it was returned. Larger than the real one is fine."""

    _fields_ = (("bytes", ctypes.c_uint64 * 128),)


def _llama_cpp(path: str) -> Model:
    spec = importlib.util.find_spec("xllamacpp")
    assert spec is not None
    assert spec.origin is not None
    lib = ctypes.CDLL(str(Path(spec.origin).with_name("xllamacpp.abi3.so")))
    for name in ("llama_model_default_params", "llama_context_default_params", "llama_batch_get_one"):
        getattr(lib, name).restype = _Opaque
    for name in ("llama_model_load_from_file", "llama_init_from_model", "llama_get_logits", "llama_model_get_vocab"):
        getattr(lib, name).restype = ctypes.c_void_p
    lib.llama_backend_init()
    model = ctypes.c_void_p(lib.llama_model_load_from_file(path.encode(), lib.llama_model_default_params()))
    if not model:
        raise SystemExit("not loaded")
    context = ctypes.c_void_p(lib.llama_init_from_model(model, lib.llama_context_default_params()))
    vocabulary = ctypes.c_void_p(lib.llama_model_get_vocab(model))
    size = lib.llama_vocab_n_tokens(vocabulary)

    def step(tokens: Sequence[int]) -> list[float]:
        array = (ctypes.c_int32 * len(tokens))(*tokens)
        if lib.llama_decode(context, lib.llama_batch_get_one(array, ctypes.c_int32(len(tokens)))):
            raise SystemExit("not evaluated")
        logits = ctypes.cast(lib.llama_get_logits(context), ctypes.POINTER(ctypes.c_float))
        return logits[:size]

    def tokenize(text: str) -> list[int]:
        raw, found = text.encode(), (ctypes.c_int32 * 1000)()
        whole = (ctypes.c_bool(True), ctypes.c_bool(False))
        return found[: lib.llama_tokenize(vocabulary, raw, ctypes.c_int32(len(raw)), found, 1000, *whole)]

    return Model(step, tokenize)


def _ctransformers(kind: str, path: str) -> Model:
    from ctransformers import LLM

    model = LLM(path, model_type=kind, lib="basic")

    def step(tokens: Sequence[int]) -> list[float]:
        model.eval(tokens)
        return list(model.logits)

    return Model(step, lambda text: list(model.tokenize(text)))


def main(engine: str, path: str, count: str, *prompt: str) -> None:
    model = _llama_cpp(path) if engine == "llama.cpp" else _ctransformers(engine, path)
    tokens = model.tokenize(prompt[1]) if prompt[0] == "text" else [int(token) for token in prompt]
    logits = first = model.step(tokens)
    found: list[int] = []
    for _ in range(int(count)):
        found.append(max(range(len(logits)), key=logits.__getitem__))
        logits = model.step(found[-1:])
    print(json.dumps([tokens, first, found]))


if __name__ == "__main__":
    main(*sys.argv[1:])
