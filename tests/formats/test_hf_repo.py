# SPDX-License-Identifier: Apache-2.0
"""Hugging Face folders: which weights win, what is carried along, and what a config says of its dtypes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import building
from tael.convert import convert, plan_conversion
from tael.convert.execute import execute
from tael.core.checkpoint import Checkpoint
from tael.core.location import locate
from tael.errors import CorruptFileError, NotAWeightFileError, TaelError, UnsafeContentError, UnsupportedFormatError
from tael.formats import open_checkpoint
from tael.formats.detect import detect
from tael.formats.hf_repo import FORMAT
from tael.testing import FormatConformance

VECTORS = Path(__file__).parents[1] / "vectors" / "safetensors"
ST_INDEX, PT_INDEX = "model.safetensors.index.json", "pytorch_model.bin.index.json"
ST = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
PT = ["pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"]


class TestConformance(FormatConformance):
    format = FORMAT


def weights(folder: Path, name: str, contents: Mapping[str, Any], **fields: Any) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    execute(plan_conversion(building.checkpoint(contents, **fields), folder / name))


def one(folder: Path, *names: str, value: float = 1) -> None:
    for number, name in enumerate(names):
        weights(folder, name, {f"w{number}": np.full(2, value, np.float32)})


def index(folder: Path, name: str, files: list[str], value: float) -> None:
    one(folder, *files, value=value)
    text = json.dumps({"metadata": {"total_size": 16}, "weight_map": {f"w{n}": file for n, file in enumerate(files)}})
    (folder / name).write_text(text)


def notes(checkpoint: Checkpoint) -> str:
    return "\n".join(str(problem) for problem in checkpoint.problems)


def value(checkpoint: Checkpoint) -> float:
    return float(checkpoint.tensors["w0"].numpy()[0])


# --- which weights win

# Everything that may lie in one folder, the winner first: each is tried with all that come after it.
RANKING = [
    ST_INDEX,
    "model.safetensors",
    PT_INDEX,
    "pytorch_model.bin",
    "adapter_model.safetensors",
    "other.safetensors",
]


@pytest.mark.parametrize("first", range(len(RANKING)))
def test_which_set_wins_is_decided_and_said(first: int, tmp_path: Path) -> None:  # I4
    for number, name in reversed(list(enumerate(RANKING))[first:]):
        if name.endswith(".json"):
            index(tmp_path, name, ST if name == ST_INDEX else PT, number)
        else:
            one(tmp_path, name, value=number)
    with open_checkpoint(tmp_path) as checkpoint:
        assert checkpoint.format == "hf"
        assert value(checkpoint) == first
        if first < len(RANKING) - 1:
            (note,) = [problem for problem in checkpoint.problems if "ignored" in problem.what]
            assert note.severity == "note"
            assert note.what.startswith(f"{RANKING[first]} is read; ignored: ")


def test_a_second_full_copy_is_reported(tmp_path: Path) -> None:  # I4
    index(tmp_path, ST_INDEX, ST, 1)
    one(tmp_path, "consolidated.safetensors", value=2)
    with open_checkpoint(tmp_path) as checkpoint:
        assert value(checkpoint) == 1
        assert notes(checkpoint) == f"{tmp_path}: {ST_INDEX} is read; ignored: consolidated.safetensors"


def test_an_index_without_its_shards_gives_way_to_weights_that_are_there(tmp_path: Path) -> None:
    index(tmp_path, ST_INDEX, ST, 1)
    for name in ST:
        (tmp_path / name).unlink()
    one(tmp_path, "model.safetensors", value=2)
    with open_checkpoint(tmp_path) as checkpoint:
        assert value(checkpoint) == 2
        assert f"ignored: {ST_INDEX}" in notes(checkpoint)


def test_an_index_alone_lists_what_is_missing(tmp_path: Path) -> None:  # I3
    index(tmp_path, ST_INDEX, ST, 1)
    (tmp_path / ST[0]).unlink()
    with open_checkpoint(tmp_path) as checkpoint:
        assert [problem.tensor for problem in checkpoint.fatal()] == [None, "w0"]
    with pytest.raises(CorruptFileError, match="is missing"):
        convert(tmp_path, tmp_path.with_name("out"))


def test_shards_without_an_index(tmp_path: Path) -> None:
    one(tmp_path, *ST, value=3)
    with open_checkpoint(tmp_path) as checkpoint:
        assert sorted(checkpoint.tensors) == ["w0", "w1"]


def test_several_files_without_an_index_are_joined(tmp_path: Path) -> None:
    one(tmp_path, "encoder.safetensors", "decoder.safetensors")
    with open_checkpoint(tmp_path) as checkpoint:
        assert sorted(checkpoint.tensors) == ["w0", "w1"]
        assert "the union of decoder.safetensors, encoder.safetensors is read" in notes(checkpoint)


def test_several_files_with_a_name_in_common_are_refused(tmp_path: Path) -> None:
    one(tmp_path, "a.safetensors")
    one(tmp_path, "b.safetensors")
    with pytest.raises(CorruptFileError, match=r"tensor 'w0': is in a.safetensors and in b.safetensors, and no index"):
        open_checkpoint(tmp_path)


def test_a_pipeline_sends_to_its_subfolders(tmp_path: Path) -> None:
    (tmp_path / "model_index.json").write_text("{}")
    one(tmp_path, "unet/diffusion_pytorch_model.safetensors")
    with pytest.raises(NotAWeightFileError, match=r"(?s)a pipeline.*name the folder"):
        open_checkpoint(tmp_path)
    with open_checkpoint(tmp_path / "unet") as checkpoint:
        assert value(checkpoint) == 1


def test_a_folder_without_weights_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "training_args.bin").write_bytes(b"\x80\x02.")
    with pytest.raises(NotAWeightFileError, match="no weight files found in this folder"):
        open_checkpoint(tmp_path)


def test_an_index_of_a_folder_that_leads_outside_is_refused(tmp_path: Path) -> None:  # I7
    folder = tmp_path / "model"
    folder.mkdir()
    index(folder, ST_INDEX, ST, 1)
    (folder / ST_INDEX).write_text(json.dumps({"weight_map": {"w0": "../secret.safetensors", "w1": ST[1]}}))
    with pytest.raises(UnsafeContentError):
        open_checkpoint(folder)


# --- side files

SIDE = {
    "config.json": '{"model_type": "x"}',
    "tokenizer.json": "{}",
    "README.md": "# model\n",
    "LICENSE": "",
    ".gitattributes": "*.safetensors filter=lfs\n",
    "modeling_x.py": "raise SystemExit('was run')\n",
    "sub/folder/vocab.txt": "a\nb\n",
}


def model_folder(folder: Path, *names: str) -> Path:
    for name, text in SIDE.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    one(folder, *(names or ["model.safetensors"]))
    return folder


def files_in(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_side_files_are_listed_and_copied(tmp_path: Path) -> None:
    source, target = model_folder(tmp_path / "a"), tmp_path / "b"
    with open_checkpoint(source) as checkpoint:
        assert checkpoint.extras["hf.side_files"] == {name: len(text) for name, text in SIDE.items()}
        assert checkpoint.extras["hf.config"] == {"model_type": "x"}
        assert "code, carried along and not run: modeling_x.py" in notes(checkpoint)
    result = convert(source, target)
    assert not result.plan.losses
    assert files_in(target) == sorted([*SIDE, "model.safetensors"])
    for name, text in SIDE.items():
        assert (target / name).read_text() == text


def test_a_folder_in_an_object_store(tmp_path: Path) -> None:
    import fsspec

    source = model_folder(tmp_path / "a")
    store = fsspec.filesystem("memory")
    for name in files_in(source):
        store.pipe(f"/models/a/{name}", (source / name).read_bytes())
    convert("memory://models/a", tmp_path / "b")
    assert files_in(tmp_path / "b") == files_in(source)
    for name, text in SIDE.items():
        assert (tmp_path / "b" / name).read_text() == text
    with open_checkpoint(tmp_path / "b") as back:
        assert value(back) == 1
    store.rm("/models/a", recursive=True)


def test_old_weights_and_training_state_stay_behind_and_are_named(tmp_path: Path) -> None:
    source = model_folder(tmp_path / "a")
    index(source, PT_INDEX, PT, 2)
    behind = ["optimizer.pt", "training_args.bin", "original/consolidated.00.pth", "onnx/model.onnx", "tf_model.h5"]
    for name in [*behind, ".git/config", ".cache/x/y", "model.safetensors.part"]:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(b"x")
    with open_checkpoint(source) as checkpoint:
        said = notes(checkpoint)
    for name in [*PT, PT_INDEX, *behind]:
        assert name in said
    convert(source, tmp_path / "b")
    assert files_in(tmp_path / "b") == sorted([*SIDE, "model.safetensors"])


def test_a_folder_of_bin_shards_becomes_one_of_safetensors(tmp_path: Path) -> None:
    source = model_folder(tmp_path / "a", "unused.txt.safetensors")
    (source / "unused.txt.safetensors").unlink()
    index(source, PT_INDEX, PT, 4)
    convert(source, tmp_path / "b", shard_size=10)
    assert files_in(tmp_path / "b") == sorted([*SIDE, *ST, ST_INDEX])
    with open_checkpoint(tmp_path / "b") as back:
        assert value(back) == 4
        assert back.metadata == {"format": "pt"}
        assert not [problem for problem in back.problems if problem.severity != "note"]


@pytest.mark.parametrize("base", ["adapter_model", "diffusion_pytorch_model"])
def test_names_that_a_library_looks_for_are_kept(base: str, tmp_path: Path) -> None:
    one(tmp_path / "a", f"{base}.safetensors")
    convert(tmp_path / "a", tmp_path / "b")
    assert files_in(tmp_path / "b") == [f"{base}.safetensors"]


def test_links_that_lead_outside_or_back_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    source = model_folder(tmp_path / "a")
    (source / "leak.txt").symlink_to(tmp_path / "secret")
    (source / "loop").symlink_to(source)
    (source / "gone.txt").symlink_to(source / "nothing")
    with open_checkpoint(source) as checkpoint:
        assert checkpoint.extras["hf.side_files"].keys() == SIDE.keys()
        assert "leak.txt: not carried along" in notes(checkpoint)
        assert "loop/" in notes(checkpoint)
    convert(source, tmp_path / "b")
    assert files_in(tmp_path / "b") == sorted([*SIDE, "model.safetensors"])


def test_a_single_file_says_what_it_loses_of_the_folder(tmp_path: Path) -> None:
    result = convert(model_folder(tmp_path / "a"), tmp_path / "b.safetensors")
    (loss,) = result.plan.losses
    assert loss.kind == "extras"
    assert "hf.side_files" in loss.detail


def test_a_folder_from_a_single_file(tmp_path: Path) -> None:
    one(tmp_path, "x.safetensors")
    convert(tmp_path / "x.safetensors", tmp_path / "folder")
    assert files_in(tmp_path / "folder") == ["model.safetensors"]
    with open_checkpoint(tmp_path / "folder") as back:
        assert back.metadata == {"format": "pt"}  # which transformers demands
    assert detect(locate(tmp_path / "folder")) is FORMAT


# --- the dtypes of a config (M6)


def configured(folder: Path, config: Mapping[str, Any], contents: Mapping[str, Any]) -> Path:
    weights(folder, "model.safetensors", contents)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def halves(*names: str, dtype: str = "BF16") -> dict[str, Any]:
    return {name: (dtype, (2,), bytes(4)) for name in names}


def test_a_wrong_dtype_is_reported_and_put_right_at_every_level(tmp_path: Path) -> None:
    config = {
        "architectures": ["X"],
        "torch_dtype": "float32",
        "vision_config": {"hidden_size": 1e-5, "torch_dtype": "float32", "inner_config": {"dtype": "float16"}},
        "text_config": {"dtype": "bfloat16", "name": "é"},
        "audio_config": {"hidden_size": 4},
        "zeta": None,
    }
    contents = halves("vision_tower.a", "language_model.model.b", "lm_head.weight")
    source = configured(tmp_path / "a", config, contents)
    with open_checkpoint(source) as checkpoint:
        assert [problem.what for problem in checkpoint.problems] == [
            "torch_dtype is float32, the tensors are bfloat16; converting puts it right",
            "vision_config.torch_dtype is float32, the tensors are bfloat16; converting puts it right",
            "vision_config.inner_config.dtype is float16, the tensors are bfloat16; converting puts it right",
        ]
    convert(source, tmp_path / "b")
    text = (tmp_path / "b" / "config.json").read_text("utf-8")
    wanted = json.loads(json.dumps(config))
    wanted["torch_dtype"] = wanted["vision_config"]["torch_dtype"] = "bfloat16"
    wanted["vision_config"]["inner_config"]["dtype"] = "bfloat16"
    assert text == json.dumps(wanted, indent=2, ensure_ascii=False) + "\n"


def test_every_level_has_its_own_tensors(tmp_path: Path) -> None:
    config = {"dtype": "float32", "vision_config": {"dtype": "bfloat16"}, "text_config": {"dtype": "bfloat16"}}
    contents = {
        **halves("model.language_model.a", "model.language_model.b", "lm_head.weight"),
        "model.visual.w": np.zeros(3, np.float32),
    }
    convert(configured(tmp_path / "a", config, contents), tmp_path / "b")
    assert json.loads((tmp_path / "b" / "config.json").read_text()) == {
        "dtype": "bfloat16",
        "vision_config": {"dtype": "float32"},
        "text_config": {"dtype": "bfloat16"},
    }


def test_the_config_follows_a_cast(tmp_path: Path) -> None:
    source = configured(tmp_path / "a", {"torch_dtype": "float32", "n": 1}, {"a": np.ones(4, np.float32)})
    convert(source, tmp_path / "b", dtype="bf16")
    assert json.loads((tmp_path / "b" / "config.json").read_text()) == {"torch_dtype": "bfloat16", "n": 1}


@pytest.mark.parametrize(
    ("config", "contents"),
    [
        ({"torch_dtype": "bfloat16"}, halves("a")),
        ({"torch_dtype": "auto"}, halves("a")),
        ({"torch_dtype": None}, halves("a")),
        ({"dtype": 7}, halves("a")),
        ({"model_type": "x"}, halves("a")),
        ({"torch_dtype": "bfloat16"}, {"a": np.zeros(4, np.int8)}),
        ({"dtype": "bfloat16"}, {"a": ("F8_E4M3", (8,), bytes(8)), **halves("scale")}),
    ],
)
def test_a_config_that_need_not_change_is_copied_as_it_is(
    config: Mapping[str, Any], contents: Mapping[str, Any], tmp_path: Path
) -> None:
    source = configured(tmp_path / "a", config, contents)
    text = '{ "odd":\t"spaces", ' + json.dumps(config)[1:]
    (source / "config.json").write_text(text)
    convert(source, tmp_path / "b")
    assert (tmp_path / "b" / "config.json").read_text() == text


@pytest.mark.parametrize("text", ["{", "[]", '{"a":' * 5000, "\xff", '{"a": Infinity, "torch_dtype": "bfloat16"}', ""])
def test_a_config_that_cannot_be_read_is_carried_along(text: str, tmp_path: Path) -> None:
    source = configured(tmp_path / "a", {}, halves("a"))
    (source / "config.json").write_text(text, "latin-1")
    with open_checkpoint(source) as checkpoint:
        assert ("cannot be read, and is carried along" in notes(checkpoint)) == ("Infinity" not in text)
    convert(source, tmp_path / "b")
    assert (tmp_path / "b" / "config.json").read_text("latin-1") == text


# --- the real libraries


def test_a_folder_of_transformers_is_read() -> None:
    with open_checkpoint(VECTORS / "llama") as checkpoint:
        assert checkpoint.format == "hf"
        assert not checkpoint.problems
        assert checkpoint.metadata == {"format": "pt"}
        assert checkpoint.extras["hf.config"]["model_type"] == "llama"
        assert list(checkpoint.extras["hf.side_files"]) == ["config.json", "generation_config.json"]
        assert {tensor.dtype.name for tensor in checkpoint.tensors.values()} == {"BF16"}
        assert checkpoint.tensors["model.embed_tokens.weight"].shape == (16, 8)


@pytest.mark.peer
@pytest.mark.parametrize("options", [{}, {"shard_size": 500}, {"dtype": "float32"}])
def test_transformers_loads_the_folder_that_we_write(options: dict[str, Any], tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    convert(VECTORS / "llama", tmp_path / "b", **options)
    theirs = AutoModelForCausalLM.from_pretrained(VECTORS / "llama")
    ours = AutoModelForCausalLM.from_pretrained(tmp_path / "b")
    assert ours.dtype == (torch.float32 if options.get("dtype") else torch.bfloat16)
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name].to(tensor.dtype), tensor)
    ids = torch.tensor([[1, 5, 9]])
    with torch.no_grad():
        assert torch.equal(theirs(ids).logits, ours.to(theirs.dtype)(ids).logits)


@pytest.mark.peer
def test_transformers_loads_what_came_from_a_torch_file(tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    theirs = AutoModelForCausalLM.from_pretrained(VECTORS / "llama")
    folder = tmp_path / "pt"
    folder.mkdir()
    torch.save(theirs.state_dict(), folder / "pytorch_model.bin")
    (folder / "config.json").write_bytes((VECTORS / "llama" / "config.json").read_bytes())
    convert(folder, tmp_path / "b")
    ours = AutoModelForCausalLM.from_pretrained(tmp_path / "b")
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], tensor)


def test_damage_of_the_folder_is_a_tael_error(tmp_path: Path) -> None:
    source = model_folder(tmp_path / "a")
    (source / "model.safetensors").write_bytes(b"")
    with pytest.raises(TaelError, match="the file is empty"):
        open_checkpoint(source)


def test_a_folder_of_separate_checkpoints_says_so(tmp_path: Path) -> None:
    for name in ("onet.pt", "pnet.pt"):
        (tmp_path / name).write_bytes(b"\x80\x02}q\x00.")
    with pytest.raises(UnsupportedFormatError, match=r"2 files of weights that make no set: onet\.pt, pnet\.pt"):
        open_checkpoint(tmp_path)
