# SPDX-License-Identifier: Apache-2.0
"""`tael.quantize` from end to end on small models: levels, bytes, resuming, refusals, errors. CASES D1, D2, D8, Q3."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.building import checkpoint

import tael
from tael import kernels
from tael.cli.app import main
from tael.convert import plan_conversion
from tael.convert.execute import execute
from tael.core.dtypes import DTYPES
from tael.errors import TaelError, UnsupportedTensorError
from tael.quantize.memory import kv_cache_bytes

RANDOM = np.random.default_rng(12)
LAYERS, WIDTH = 4, 256


def weights(*shape: int) -> np.ndarray:
    return (RANDOM.standard_normal(shape) * 0.1).astype(np.float16)


def tensors() -> dict[str, np.ndarray]:
    found = {"token_embd.weight": weights(96, WIDTH), "output.weight": weights(96, WIDTH)}
    found["output_norm.weight"] = np.ones(WIDTH, np.float32)
    for layer in range(LAYERS):
        for name, shape in {"attn_q": (256, WIDTH), "attn_k": (64, WIDTH), "attn_v": (64, WIDTH)}.items():
            found[f"blk.{layer}.{name}.weight"] = weights(*shape)
        found[f"blk.{layer}.ffn_down.weight"] = weights(WIDTH, 512)
        found[f"blk.{layer}.attn_norm.weight"] = np.ones(WIDTH, np.float32)
    return found


METADATA = {
    "general.architecture": "llama",
    "llama.block_count": LAYERS,
    "llama.embedding_length": WIDTH,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 1,
}


def write(path: Path, contents: dict[str, Any], metadata: dict[str, Any] | None = None) -> Path:
    execute(plan_conversion(checkpoint(contents, metadata=METADATA if metadata is None else metadata), path))
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("model") / "f16.gguf", tensors())


def content(path: Path) -> dict[str, tuple[str, bytes]]:
    with tael.open(path) as opened:
        return {n: (t.dtype.name, b"".join(map(bytes, t.chunks()))) for n, t in opened.tensors.items()}


def test_the_blocks_are_those_of_the_kernels(model: Path, tmp_path: Path) -> None:
    tael.quantize(model, tmp_path / "q.gguf", "Q4_K_M")
    found = content(tmp_path / "q.gguf")
    with tael.open(model) as opened:
        source = {name: tensor.numpy() for name, tensor in opened.tensors.items()}
    kinds = {kind for kind, _ in found.values()}
    assert kinds == {"Q4_K", "Q6_K", "F32"}
    for name, (kind, data) in found.items():
        values = np.ascontiguousarray(source[name], np.float32)
        if kind != "F32":
            out = np.empty(values.size // DTYPES[kind].block * DTYPES[kind].block_bytes, np.uint8)
            assert kernels.quantize(kind, values, out, values.shape[-1]) == -1
            assert data == out.tobytes(), name
    with tael.open(tmp_path / "q.gguf") as opened:
        assert opened.metadata["general.file_type"] == 15
        assert opened.metadata["general.quantization_version"] == 2


def test_several_levels_are_the_files_made_alone(model: Path, tmp_path: Path) -> None:
    levels = ["Q8_0", "Q4_K_M", "Q2_K", "F16"]
    result = tael.quantize(model, tmp_path / "m-{type}.gguf", levels, threads=2)
    assert [level.recipe.name for level in result.levels] == levels
    for level in levels:
        tael.quantize(model, tmp_path / "alone.gguf", level, force=True, threads=1)
        assert (tmp_path / f"m-{level}.gguf").read_bytes() == (tmp_path / "alone.gguf").read_bytes()


def test_levels_read_each_source_tensor_once(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tael.core import source

    read = 0
    original = source.FileSource.read_into

    def counting(self: source.FileSource, offset: int, buffer: memoryview) -> None:
        nonlocal read
        read += memoryview(buffer).nbytes if offset > 4096 else 0
        original(self, offset, buffer)

    monkeypatch.setattr(source.FileSource, "read_into", counting)
    tael.quantize(model, tmp_path / "one.gguf", "Q4_K_M")
    once, read = read, 0
    tael.quantize(model, tmp_path / "m-{type}.gguf", ["Q8_0", "Q4_K_M", "Q6_K"])
    assert once <= read < 1.2 * once


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_and_small_units_do_not_change_a_byte(
    model: Path, tmp_path: Path, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tael.quantize(model, tmp_path / "a.gguf", "Q3_K_M", threads=1)
    import tael.convert.plan as planning

    monkeypatch.setattr(planning, "UNIT_ELEMENTS", 1024)
    tael.quantize(model, tmp_path / "b.gguf", "Q3_K_M", threads=threads)
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def interrupted_after(monkeypatch: pytest.MonkeyPatch, writes: int, error: Callable[[], BaseException]) -> None:
    """Every pwrite behind the first `writes` raises."""
    original, count = os.pwrite, 0

    def failing(fd: int, data: bytes, offset: int) -> int:
        nonlocal count
        count += 1
        if count > writes:
            raise error()
        return original(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", failing)


def test_d2_an_interrupted_run_leaves_no_final_name_and_resumes_to_the_same_bytes(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tael.convert.execute as execution
    import tael.convert.plan as planning

    monkeypatch.setattr(execution, "JOURNAL_FROM", 0)
    monkeypatch.setattr(execution, "JOURNAL_EVERY", 1)
    monkeypatch.setattr(planning, "UNIT_ELEMENTS", 4096)
    pattern = tmp_path / "m-{type}.gguf"
    with monkeypatch.context() as patch:
        interrupted_after(patch, 60, KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            tael.quantize(model, pattern, ["Q8_0", "Q4_K_M"], threads=1)
    assert not list(tmp_path.glob("*.gguf"))
    assert list(tmp_path.glob("*.part"))
    result = tael.quantize(model, pattern, ["Q8_0", "Q4_K_M"], resume=True)
    assert result.report is not None
    assert result.report.resumed_bytes > 0
    for level in ("Q8_0", "Q4_K_M"):
        tael.quantize(model, tmp_path / "alone.gguf", level, force=True)
        assert (tmp_path / f"m-{level}.gguf").read_bytes() == (tmp_path / "alone.gguf").read_bytes()
    assert not list(tmp_path.glob("*.part*"))


def test_d1_a_full_disk_is_an_error_and_leaves_no_final_name(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import errno

    before = model.read_bytes()
    interrupted_after(monkeypatch, 5, lambda: OSError(errno.ENOSPC, "No space left on device"))
    with pytest.raises(TaelError, match=r"(?i)space|full"):
        tael.quantize(model, tmp_path / "q.gguf", "Q4_K_M")
    assert os.listdir(tmp_path) == []
    assert model.read_bytes() == before


def test_d8_the_plan_knows_its_disk_and_its_memory(model: Path, tmp_path: Path) -> None:
    result = tael.quantize(model, tmp_path / "m-{type}.gguf", ["Q8_0", "Q4_K_M"], dry_run=True)
    assert os.listdir(tmp_path) == []
    assert result.report is None
    done = tael.quantize(model, tmp_path / "m-{type}.gguf", ["Q8_0", "Q4_K_M"])
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) == done.plan.nbytes == result.plan.nbytes
    assert done.plan.peak_memory(2) < 400 << 20


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_named_and_nothing_is_left(tmp_path: Path, bad: float) -> None:
    contents = tensors()
    contents["blk.2.attn_q.weight"][3, 17] = bad
    source = write(tmp_path / "f16.gguf", contents)
    with pytest.raises(UnsupportedTensorError, match="row 3, column 17") as caught:
        tael.quantize(source, tmp_path / "q.gguf", "Q4_K_M")
    assert "blk.2.attn_q.weight" in str(caught.value)
    assert os.listdir(tmp_path) == ["f16.gguf"]
    tael.quantize(source, tmp_path / "q.gguf", "Q4_K_M", keep=["blk.2.attn_q"])
    assert content(tmp_path / "q.gguf")["blk.2.attn_q.weight"][0] == "F16"


def test_values_beyond_float16_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = np.ones((4, 256), np.float32)
    values[0, :3] = 1e6
    source = write(tmp_path / "f32.gguf", {"blk.0.attn_q.weight": values})
    assert main(["quantize", str(source), str(tmp_path / "q.gguf"), "-t", "F16"]) == 0
    assert "blk.0.attn_q.weight: 3 values beyond the range of the type" in capsys.readouterr().out


def test_what_is_quantized_is_not_quantized_again_unasked(model: Path, tmp_path: Path) -> None:
    tael.quantize(model, tmp_path / "q.gguf", "Q8_0")
    with pytest.raises(UnsupportedTensorError, match="Q8_0 already"):
        tael.quantize(tmp_path / "q.gguf", tmp_path / "again.gguf", "Q4_K_M")
    tael.quantize(tmp_path / "q.gguf", tmp_path / "again.gguf", "Q4_K_M", allow_requantize=True)
    tael.convert(tmp_path / "q.gguf", tmp_path / "f32.gguf", dtype="f32")
    tael.quantize(tmp_path / "f32.gguf", tmp_path / "through.gguf", "Q4_K_M")
    assert content(tmp_path / "again.gguf") == content(tmp_path / "through.gguf")


def test_types_that_need_a_matrix_say_so_first(model: Path, tmp_path: Path) -> None:
    for level in ("IQ2_XXS", "IQ1_S", "Q2_K_S"):
        with pytest.raises(UnsupportedTensorError, match="needs an importance matrix"):
            tael.quantize(model, tmp_path / "q.gguf", level)
    assert os.listdir(tmp_path) == []


def imatrix(path: Path, contents: dict[str, np.ndarray], counts: int = 1) -> Path:
    entries: dict[str, Any] = {}
    for name, sums in contents.items():
        entries[f"{name}.in_sum2"] = sums
        entries[f"{name}.counts"] = np.full((len(sums), 1), counts, np.float32)
    metadata = {"general.type": "imatrix", "imatrix.datasets": ["x"], "imatrix.chunk_count": 1}
    return write(path, entries, metadata)


def test_experts_are_weighed_each_by_its_own(tmp_path: Path) -> None:
    stack = weights(3, 8, 256)
    importance = (RANDOM.standard_normal((3, 256)) ** 2).astype(np.float32)
    source = write(tmp_path / "f16.gguf", {"blk.0.ffn_up_exps.weight": stack, "output.weight": weights(4, 256)})
    matrix = imatrix(tmp_path / "i.gguf", {"blk.0.ffn_up_exps.weight": importance})
    tael.quantize(source, tmp_path / "q.gguf", "IQ3_XXS", imatrix=matrix)
    kind, data = content(tmp_path / "q.gguf")["blk.0.ffn_up_exps.weight"]
    wanted = b""
    for expert in range(3):
        out = np.empty(8 * DTYPES[kind].block_bytes, np.uint8)
        assert kernels.quantize(kind, stack[expert].astype(np.float32), out, 256, importance[expert]) == -1
        wanted += out.tobytes()
    assert data == wanted
    with tael.open(tmp_path / "q.gguf") as opened:
        assert opened.metadata["quantize.imatrix.entries_count"] == 1
        assert opened.metadata["quantize.imatrix.dataset"] == "x"


def test_q3_a_run_of_zeros_in_the_matrix_gives_finite_scales(model: Path, tmp_path: Path) -> None:
    importance = np.ones((1, 256), np.float32)
    importance[0, 32:] = 0
    names = [f"blk.{layer}.{part}.weight" for layer in range(LAYERS) for part in ("attn_q", "attn_k", "attn_v")]
    matrix = imatrix(tmp_path / "i.gguf", dict.fromkeys(names, importance))
    for level in ("Q4_K_S", "Q4_0", "IQ4_XS", "Q6_K"):
        tael.quantize(model, tmp_path / "q.gguf", level, imatrix=matrix, force=True)
        tael.convert(tmp_path / "q.gguf", tmp_path / "f32.safetensors", force=True)
        with tael.open(tmp_path / "f32.safetensors") as opened:
            assert all(np.isfinite(np.asarray(t.numpy(), np.float32)).all() for t in opened.tensors.values())


def test_layers_are_pruned_and_numbered_anew(model: Path, tmp_path: Path) -> None:
    result = tael.quantize(model, tmp_path / "q.gguf", "Q8_0", prune_layers=[1, 2])
    with tael.open(tmp_path / "q.gguf") as opened, tael.open(model) as source:
        assert opened.metadata["llama.block_count"] == 2
        names = set(opened.tensors)
        assert {name.split(".")[1] for name in names if name.startswith("blk.")} == {"0", "1"}
        original = source.tensors["blk.3.attn_norm.weight"].numpy()
        assert (opened.tensors["blk.1.attn_norm.weight"].numpy() == original).all()
    assert len(result.levels[0].choices) == len(names)
    with pytest.raises(TaelError, match="no layer 9"):
        tael.quantize(model, tmp_path / "x.gguf", "Q8_0", prune_layers=[9])


def test_errors_are_measured_in_passing(model: Path, tmp_path: Path) -> None:
    report = tmp_path / "errors.json"
    arguments = ["quantize", str(model), str(tmp_path / "q.gguf"), "-t", "Q4_K_M", "--report", str(report), "-q"]
    assert main(arguments) == 0
    (level,) = json.loads(report.read_text())["levels"]
    with tael.open(model) as opened:
        source = {name: np.asarray(tensor.numpy(), np.float64) for name, tensor in opened.tensors.items()}
    tael.convert(tmp_path / "q.gguf", tmp_path / "f32.safetensors")
    with tael.open(tmp_path / "f32.safetensors") as opened:
        for entry in level["tensors"]:
            error = opened.tensors[entry["name"]].numpy().astype(np.float64) - source[entry["name"]]
            assert entry["rmse"] == pytest.approx(np.sqrt((error**2).mean()), rel=1e-6)
            assert entry["max_error"] == pytest.approx(np.abs(error).max(), rel=1e-6)
    assert len(level["tensors"]) == 2 + 4 * LAYERS


def test_metadata_is_set_and_names_of_levels_are_checked(model: Path, tmp_path: Path) -> None:
    line = ["quantize", str(model), str(tmp_path / "q.gguf"), "-t", "Q8_0", "--set", "general.name=My model", "-q"]
    assert main(line) == 0
    with tael.open(tmp_path / "q.gguf") as opened:
        assert opened.metadata["general.name"] == "My model"
    for dst, types, words in [
        ("q.gguf", ["Q8_0", "Q4_0"], "as many names"),
        ("{type}/q.gguf", ["Q8_0"], "only in the name"),
        ("{x}.gguf", ["Q8_0"], "only {type}"),
        ("q.bin", ["Q8_0"], "written as GGUF"),
        ("m-{type}.gguf", ["Q4_K", "Q4_K_M"], "one name"),
        ("m.gguf", [], "no type"),
    ]:
        with pytest.raises(TaelError, match=words):
            tael.quantize(model, tmp_path / dst, types)


def test_other_containers_with_the_names_of_gguf(model: Path, tmp_path: Path) -> None:
    tael.quantize(model, tmp_path / "q.gguf", "Q4_K_M")
    for suffix in (".safetensors", ".pt"):
        tael.convert(model, tmp_path / f"m{suffix}")
        tael.quantize(tmp_path / f"m{suffix}", tmp_path / f"q{suffix}.gguf", "Q4_K_M")
        assert content(tmp_path / f"q{suffix}.gguf") == content(tmp_path / "q.gguf")


def test_other_names_than_those_of_gguf_are_refused(tmp_path: Path) -> None:
    source = write(tmp_path / "m.safetensors", {"model.layers.0.mlp.up_proj.weight": weights(4, 256)}, {})
    with pytest.raises(TaelError, match=r"do not have GGUF's names: 'model.layers.0.mlp.up_proj.weight'"):
        tael.quantize(source, tmp_path / "q.gguf", "Q8_0")
    assert os.listdir(tmp_path) == ["m.safetensors"]


def test_shards(model: Path, tmp_path: Path) -> None:
    tael.quantize(model, tmp_path / "whole.gguf", "Q8_0")
    result = tael.quantize(model, tmp_path / "m-{type}.gguf", ["Q8_0", "Q4_0"], shard_size=200_000)
    first = next(tmp_path.glob("m-Q8_0-00001-of-*.gguf"))
    assert content(first) == content(tmp_path / "whole.gguf")
    assert sum(len(level.files) for level in result.levels) == len(list(tmp_path.glob("m-*.gguf")))


def test_memory_at_run_time() -> None:
    metadata: dict[str, Any] = {
        "general.architecture": "llama",
        "llama.block_count": 32,
        "llama.embedding_length": 4096,
        "llama.attention.head_count": 32,
        "llama.attention.head_count_kv": 8,
    }
    assert kv_cache_bytes(metadata, 4096) == 512 << 20  # Llama-3-8B's, as llama.cpp prints it
    metadata["llama.attention.head_count_kv"] = [8] * 16 + [0] * 16
    assert kv_cache_bytes(metadata, 4096) == 256 << 20
    assert kv_cache_bytes({}, 4096) is None
