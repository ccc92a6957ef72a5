# SPDX-License-Identifier: Apache-2.0
"""Shard sets: what the index, the shards' headers and the files that are there say, and where they disagree."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import building
from http_server import RangeServer
from tael.convert import plan_conversion
from tael.convert.execute import execute
from tael.core.checkpoint import Checkpoint
from tael.core.limits import DEFAULT, Limits
from tael.core.location import locate
from tael.errors import CorruptFileError, LimitExceededError, SourceNotFoundError, TaelError, UnsafeContentError
from tael.formats import open_checkpoint, shards
from tael.formats.detect import detect
from tael.formats.shards import FORMAT
from tael.testing import ReaderConformance

VECTORS = Path(__file__).parents[1] / "vectors" / "safetensors"
INDEX = "model.safetensors.index.json"
Contents = Mapping[str, Any]


class TestConformance(ReaderConformance):
    format = FORMAT

    def write(self, checkpoint: Checkpoint, path: Path) -> Path:
        model, index = path.with_name("model.safetensors"), path.with_name(INDEX)
        execute(plan_conversion(checkpoint, model, shard_size=200), force=True)
        if model.exists():  # one tensor is no set yet
            index.write_text(json.dumps({"weight_map": dict.fromkeys(checkpoint.tensors, model.name)}))
        return index


def array(n: int) -> np.ndarray:
    return np.full(2, n, np.float32)


def shard(number: int, count: int = 2) -> str:
    return f"model-{number:05d}-of-{count:05d}.safetensors"


def make(folder: Path, files: Mapping[str, Contents], weight_map: Mapping[str, Any] | None, **more: Any) -> Path:
    """The files and, unless `weight_map` is None, an index of it. Returns the index's path."""
    for name, contents in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        fields = {"metadata": more["shard_metadata"]} if "shard_metadata" in more else {}
        execute(plan_conversion(building.checkpoint(contents, **fields), folder / name))
    if weight_map is not None:
        index = {"weight_map": weight_map}
        if "metadata" in more:
            index = {"metadata": more["metadata"], **index}
        (folder / INDEX).write_text(json.dumps(index))
    return folder / INDEX


def two_shards(folder: Path, **more: Any) -> Path:
    """a and b in the first of two shards, c in the second."""
    files = {shard(1): {"a": array(1), "b": array(2)}, shard(2): {"c": array(3)}}
    more.setdefault("metadata", {"total_size": 24})
    return make(folder, files, {"a": shard(1), "b": shard(1), "c": shard(2)}, **more)


def said(checkpoint: Checkpoint, severity: str | None = None) -> list[tuple[str, str | None]]:
    return [(p.what, p.tensor) for p in checkpoint.problems if severity is None or p.severity == severity]


def values(checkpoint: Checkpoint) -> dict[str, float]:
    return {name: float(tensor.numpy().flat[0]) for name, tensor in checkpoint.tensors.items() if not tensor.damaged}


# --- opening


@pytest.mark.parametrize("entry", [INDEX, shard(1), shard(2)])
def test_the_index_and_every_shard_open_the_whole_set(entry: str, tmp_path: Path) -> None:
    two_shards(tmp_path)
    assert detect(locate(tmp_path / entry)) is FORMAT
    with open_checkpoint(tmp_path / entry) as checkpoint:
        assert values(checkpoint) == {"a": 1, "b": 2, "c": 3}
        assert checkpoint.format == "shards"
        assert not checkpoint.problems
        assert len(checkpoint.sources) == 3


def test_without_an_index_the_names_are_followed(tmp_path: Path) -> None:
    two_shards(tmp_path).unlink()
    with open_checkpoint(tmp_path / shard(2)) as checkpoint:
        assert values(checkpoint) == {"a": 1, "b": 2, "c": 3}
        assert [(p.severity, p.what) for p in checkpoint.problems] == [
            ("note", "no index beside the shards: their names are followed")
        ]


def test_an_index_beside_it_that_does_not_list_the_shard_is_of_another_set(tmp_path: Path) -> None:
    files = {shard(1): {"a": array(1)}, shard(2): {"b": array(2)}, "o.safetensors": {"z": array(0)}}
    make(tmp_path, files, {"z": "o.safetensors"})
    with open_checkpoint(tmp_path / shard(1)) as checkpoint:
        assert values(checkpoint) == {"a": 1, "b": 2}


def test_a_set_with_a_variant_in_its_names(tmp_path: Path) -> None:
    for form in ("model.fp16-{n}-of-00002.safetensors", "model-{n}-of-00002.fp16.safetensors"):
        folder = tmp_path / str(form.index("fp16"))
        folder.mkdir()
        first, second = (form.format(n=f"{n:05d}") for n in (1, 2))
        index = make(folder, {first: {"a": array(1)}, second: {"b": array(2)}}, {"a": first, "b": second})
        index.rename(folder / "model.safetensors.index.fp16.json")
        with open_checkpoint(folder / second) as checkpoint:
            assert values(checkpoint) == {"a": 1, "b": 2}
            assert not said(checkpoint, "warning")
            assert "no index" not in str(said(checkpoint))


def test_shards_may_lie_in_subfolders(tmp_path: Path) -> None:
    index = make(tmp_path, {"parts/one.safetensors": {"a": array(1)}}, {"a": "parts/one.safetensors"})
    with open_checkpoint(index) as checkpoint:
        assert values(checkpoint) == {"a": 1}


def test_torch_shards(tmp_path: Path) -> None:
    names = ["pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"]
    files = {names[0]: {"a": array(1)}, names[1]: {"b": array(2)}}
    index = make(tmp_path, files, {"a": names[0], "b": names[1]}, metadata={"total_size": 16.0})
    index = index.rename(tmp_path / "pytorch_model.bin.index.json")
    for entry in (index, tmp_path / names[0]):
        with open_checkpoint(entry) as checkpoint:
            assert checkpoint.format == "shards"
            assert values(checkpoint) == {"a": 1, "b": 2}
            assert not checkpoint.problems


@pytest.mark.parametrize("with_index", [True, False])
def test_a_set_on_a_web_server(with_index: bool, tmp_path: Path) -> None:
    index = two_shards(tmp_path)
    if not with_index:
        index.unlink()
    with RangeServer(root=tmp_path) as server:
        for entry in [INDEX, shard(1)] if with_index else [shard(1), shard(2)]:
            with open_checkpoint(server.url(f"/{entry}")) as checkpoint:
                assert checkpoint.format == "shards"
                assert values(checkpoint) == {"a": 1, "b": 2, "c": 3}
        (tmp_path / shard(2)).unlink()
        entry = INDEX if with_index else shard(1)
        with open_checkpoint(server.url(f"/{entry}"), "shards") as checkpoint:
            assert checkpoint.fatal()
            assert values(checkpoint) == {"a": 1, "b": 2}


# --- what the index says and what is there


def test_the_index_and_the_shards_disagree_in_both_directions(tmp_path: Path) -> None:  # I1
    files = {shard(1): {"a": array(1), "unlisted": array(9)}, shard(2): {"c": array(3)}}
    index = make(tmp_path, files, {"a": shard(1), "c": shard(2), "mtp.fc.weight": shard(2)})
    with open_checkpoint(index) as checkpoint:
        assert said(checkpoint, "fatal") == [("is in the index, but not in its shard", "mtp.fc.weight")]
        assert said(checkpoint, "warning") == [("is not in the index; it is taken all the same", "unlisted")]
        assert values(checkpoint) == {"a": 1, "unlisted": 9, "c": 3}
        with pytest.raises(CorruptFileError, match=r"mtp\.fc\.weight"):
            checkpoint.require_intact()


def test_a_tensor_in_another_shard_than_the_index_says(tmp_path: Path) -> None:  # I1
    files = {shard(1): {"a": array(1)}, shard(2): {"b": array(2), "c": array(3)}}
    index = make(tmp_path, files, {"a": shard(1), "b": shard(1), "c": shard(2)}, metadata={"total_size": 24})
    with open_checkpoint(index) as checkpoint:
        assert values(checkpoint) == {"a": 1, "b": 2, "c": 3}
        assert [(p.severity, p.what) for p in checkpoint.problems] == [
            ("warning", f"is in {shard(2)}, not in {shard(1)} as the index says")
        ]


@pytest.mark.parametrize(
    ("metadata", "severity", "words"),
    [
        ({"total_size": 24}, None, ""),
        ({"total_size": 24.0}, None, ""),
        ({"total_size": 24, "total_parameters": 6}, None, ""),
        ({}, "note", "does not say total_size; the tensors have 24 bytes"),
        (None, "note", "does not say total_size"),
        ({"total_size": None}, "note", "does not say total_size"),
        ({"total_size": 25}, "warning", "total_size is 25; the tensors have 24 bytes"),
        ({"total_size": "24"}, "warning", "total_size is no number"),
        ({"total_size": True}, "warning", "total_size is no number"),
        (7, "warning", "metadata is no object"),
    ],
)
def test_total_size_is_optional_and_recomputed(metadata: Any, severity: str | None, words: str, tmp_path: Path) -> None:
    with open_checkpoint(two_shards(tmp_path, metadata=metadata)) as checkpoint:  # I2
        assert values(checkpoint) == {"a": 1, "b": 2, "c": 3}
        assert checkpoint.metadata == {}
        if severity is None:
            assert not checkpoint.problems
        else:
            assert (checkpoint.problems[0].severity, words in checkpoint.problems[0].what) == (severity, True)


def test_an_index_without_metadata(tmp_path: Path) -> None:  # I2
    index = two_shards(tmp_path)
    content = json.loads(index.read_text())
    del content["metadata"]
    index.write_text(json.dumps(content))
    with open_checkpoint(index) as checkpoint:
        assert [p.severity for p in checkpoint.problems] == ["note"]


def test_missing_shards_are_listed_and_nothing_is_converted(tmp_path: Path) -> None:  # I3
    index = two_shards(tmp_path)
    (tmp_path / shard(1)).unlink()
    with open_checkpoint(index) as checkpoint:
        assert values(checkpoint) == {"c": 3}
        assert [(p.where, p.tensor, p.what) for p in checkpoint.fatal()] == [
            (shard(1), None, "is missing; the index puts 2 tensors there"),
            (shard(1), "a", "its shard cannot be read"),
            (shard(1), "b", "its shard cannot be read"),
        ]
        assert "total_size" not in str(said(checkpoint))
        with pytest.raises(CorruptFileError, match=rf"{shard(1)}: is missing"):
            checkpoint.require_intact()


def test_missing_shards_without_an_index(tmp_path: Path) -> None:  # I3
    files = {shard(n, 5): {f"t{n}": array(n)} for n in (1, 2, 4, 5)}
    make(tmp_path, files, None)
    with open_checkpoint(tmp_path / shard(4, 5)) as checkpoint:
        assert sorted(values(checkpoint)) == ["t1", "t2", "t4", "t5"]
        assert [(os.path.basename(p.where or ""), p.what) for p in checkpoint.fatal()] == [
            (shard(3, 5), "this shard of 5 is missing")
        ]


def test_a_shard_that_is_a_pointer_is_called_that(tmp_path: Path) -> None:
    index = two_shards(tmp_path)
    (tmp_path / shard(2)).write_text(
        f"version https://git-lfs.github.com/spec/v1\noid sha256:{'ab' * 32}\nsize 123456\n"
    )
    with open_checkpoint(index) as checkpoint:
        assert values(checkpoint) == {"a": 1, "b": 2}
        assert "this is a Git LFS pointer" in checkpoint.fatal()[0].what
        assert "123,456 bytes" in checkpoint.fatal()[0].what


def test_a_short_shard_is_named_with_what_is_intact(tmp_path: Path) -> None:  # T5
    index = two_shards(tmp_path)
    victim = tmp_path / shard(1)
    size = victim.stat().st_size
    victim.write_bytes(victim.read_bytes()[:-5])
    with open_checkpoint(index) as checkpoint:
        assert values(checkpoint) == {"a": 1, "c": 3}
        whole, damaged = checkpoint.fatal()
        assert whole.where == str(victim)
        assert f"should have {size:,} bytes and has {size - 5:,}; 1 of 2 tensors are intact" in whole.what
        assert damaged.tensor == "b"


def test_a_shard_with_a_broken_header_leaves_the_others(tmp_path: Path) -> None:
    index = two_shards(tmp_path)
    (tmp_path / shard(1)).write_bytes((VECTORS / "malformed" / "not_json.safetensors").read_bytes())
    with open_checkpoint(index) as checkpoint:
        assert values(checkpoint) == {"c": 3}
        assert "the header is not JSON" in checkpoint.fatal()[0].what


def test_the_index_decides_which_of_two_tensors_counts(tmp_path: Path) -> None:
    files = {shard(1): {"a": array(1), "b": array(2)}, shard(2): {"a": array(7), "b": array(8)}}
    index = make(tmp_path, files, {"a": shard(1), "b": shard(2)}, metadata={"total_size": 16})
    with open_checkpoint(index) as checkpoint:
        assert values(checkpoint) == {"a": 1, "b": 8}
        assert said(checkpoint) == [
            (f"is in {shard(1)} and in {shard(2)}; the index says {shard(1)}", "a"),
            (f"is in {shard(1)} and in {shard(2)}; the index says {shard(2)}", "b"),
        ]


def test_two_tensors_of_one_name_are_refused_without_an_index(tmp_path: Path) -> None:
    make(tmp_path, {shard(1): {"a": array(1)}, shard(2): {"a": array(7)}}, None)
    with pytest.raises(CorruptFileError, match=r"tensor 'a': is in .* and no index says which counts"):
        open_checkpoint(tmp_path / shard(1))


def test_an_index_of_another_number_of_shards(tmp_path: Path) -> None:
    files = {shard(n, 5): {f"t{n}": array(n)} for n in range(1, 5)}
    index = make(tmp_path, files, {f"t{n}": shard(n, 5) for n in range(1, 5)}, metadata={"total_size": 32})
    with open_checkpoint(index) as checkpoint:
        assert said(checkpoint) == [("lists 4 shards, whose names speak of 5; the index is followed", None)]


# --- metadata and ties


def test_the_shards_metadata_are_joined(tmp_path: Path) -> None:
    make(tmp_path, {shard(1): {"a": array(1)}}, None, shard_metadata={"format": "pt", "step": 3, "who": "one"})
    make(tmp_path, {shard(2): {"b": array(2)}}, None, shard_metadata={"format": "pt", "step": 3, "who": "two"})
    with open_checkpoint(tmp_path / shard(1)) as checkpoint:
        assert checkpoint.metadata == {"format": "pt", "step": 3, "who": "one"}
        assert [what for what, _ in said(checkpoint, "warning")] == [
            "metadata 'who' differs from that of an earlier shard, which is taken"
        ]


def test_what_else_the_index_says_is_metadata(tmp_path: Path) -> None:
    more = {"total_size": 24, "quantized_by": "someone", "levels": [1, 2]}
    with open_checkpoint(two_shards(tmp_path, metadata=more)) as checkpoint:
        assert checkpoint.metadata == {"quantized_by": "someone", "levels": [1, 2]}


def test_the_ties_of_the_hubs_index_are_read() -> None:
    with open_checkpoint(VECTORS / "hub" / INDEX) as checkpoint:
        assert checkpoint.aliases == {"tied.weight": "layers.3.weight"}
        assert checkpoint.metadata == {"format": "pt"}
        assert not checkpoint.problems
        assert values(checkpoint) == {f"layers.{n}.weight": n for n in range(5)} | {"tied.weight": 3}


def test_a_tie_noted_in_every_shard_is_one_tie(tmp_path: Path) -> None:
    index = two_shards(tmp_path, shard_metadata={"format": "pt", "tied": "c", "a": "c"})
    with open_checkpoint(index) as checkpoint:
        assert checkpoint.aliases == {"tied": "c"}  # `a` is a tensor of its own in the first shard
        assert values(checkpoint) == {"a": 1, "b": 2, "c": 3, "tied": 3}
        assert not said(checkpoint, "warning")


def test_a_tensor_stands_above_a_tie_of_its_name_in_an_earlier_shard(tmp_path: Path) -> None:
    index = two_shards(tmp_path, shard_metadata={"format": "pt", "c": "a"})
    with open_checkpoint(index) as checkpoint:
        assert checkpoint.aliases == {}
        assert values(checkpoint) == {"a": 1, "b": 2, "c": 3}


# --- an index that leads elsewhere (I7)

OUTSIDE = [
    "../x.safetensors",
    "/etc/passwd",
    "C:\\x.safetensors",
    "c:x.safetensors",
    "\\\\server\\share\\x.safetensors",
    "a/../../x.safetensors",
    "a\\..\\..\\x.safetensors",
    "./x.safetensors",
    "a//x.safetensors",
    "",
    "x\0.safetensors",
]


@pytest.mark.parametrize("name", OUTSIDE)
def test_an_index_that_leads_outside_is_refused(name: str, tmp_path: Path) -> None:  # I7
    folder = tmp_path / "model"
    folder.mkdir()
    make(tmp_path, {"x.safetensors": {"secret": array(1)}}, None)
    index = make(folder, {"ok.safetensors": {"a": array(1)}}, {"a": "ok.safetensors", "secret": name})
    with pytest.raises(UnsafeContentError, match="not a plain relative path"):
        open_checkpoint(index)


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_link_that_leads_outside_is_refused(kind: str, tmp_path: Path) -> None:  # I7
    folder, other = tmp_path / "model", tmp_path / "other"
    folder.mkdir()
    make(other, {"x.safetensors": {"secret": array(1)}}, None)
    if kind == "file":
        (folder / "link.safetensors").symlink_to(other / "x.safetensors")
        index = make(folder, {}, {"secret": "link.safetensors"})
    else:
        (folder / "sub").symlink_to(other)
        index = make(folder, {}, {"secret": "sub/x.safetensors"})
    with pytest.raises(UnsafeContentError, match="leads outside of the folder"):
        open_checkpoint(index)


def test_links_within_the_hubs_cache_are_followed(tmp_path: Path) -> None:
    model = tmp_path / "models--someone--something"
    folder, blobs = model / "snapshots" / "abc", model / "blobs"
    folder.mkdir(parents=True)
    blobs.mkdir()
    index = two_shards(folder)
    for number in (1, 2):
        (folder / shard(number)).rename(blobs / f"digest{number}")
        (folder / shard(number)).symlink_to(Path("../../blobs") / f"digest{number}")
    with open_checkpoint(index) as checkpoint:
        assert values(checkpoint) == {"a": 1, "b": 2, "c": 3}


# --- a malformed index


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"weight_map": {}}', "no 'weight_map'"),
        ('{"weight_map": 3}', "no 'weight_map'"),
        ('{"weight_map": {"a": 3}}', "tensor 'a': the index names no file for it"),
        ('{"weight_map": {"a": "x", "a": "y"}}', "'a' stands twice in the index"),
        ('{"weight_map": {"a": "x"}, "weight_map": {"a": "x"}}', "'weight_map' stands twice in the index"),
        ('{"weight_map": {"a": ', "the index is not JSON"),
        ('{"weight_map": ' + "[" * 60_000, "the index is n"),
        ('{"metadata": {"a": NaN}, "weight_map": {"a": "x"}}', "NaN is no number"),
    ],
)
def test_a_malformed_index_is_refused_with_the_cause(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / INDEX).write_text(text)
    with pytest.raises(CorruptFileError) as caught:
        open_checkpoint(tmp_path / INDEX)
    assert words in str(caught.value)
    assert INDEX in str(caught.value)


def test_an_index_without_any_of_its_shards(tmp_path: Path) -> None:
    with open_checkpoint(make(tmp_path, {}, {"a": shard(1), "b": shard(2)})) as checkpoint:
        assert not checkpoint.tensors
        assert len(checkpoint.fatal()) == 4


@pytest.mark.parametrize("limits", [Limits(index_bytes=10), Limits(shards=1), Limits(tensors=2)])
def test_the_index_has_limits(limits: Limits, tmp_path: Path) -> None:
    with pytest.raises(LimitExceededError):
        shards.open(locate(two_shards(tmp_path)), limits)


def test_an_index_that_names_itself_or_a_folder(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with open_checkpoint(make(tmp_path, {}, {"a": INDEX, "b": "folder"})) as checkpoint:
        assert {p.where for p in checkpoint.fatal()} == {INDEX, "folder"}


def test_a_name_that_is_no_shard_is_refused_when_asked_to_read_it_as_one(tmp_path: Path) -> None:
    make(tmp_path, {"x.safetensors": {"a": array(1)}}, None)
    with pytest.raises(TaelError, match="neither an index nor named as a shard"):
        open_checkpoint(tmp_path / "x.safetensors", "shards")


@pytest.mark.parametrize("victim", [INDEX, shard(1)])
def test_any_damaged_byte_gives_a_clear_error_or_is_survived(victim: str, tmp_path: Path) -> None:
    index = two_shards(tmp_path)
    whole = (tmp_path / victim).read_bytes()
    damaged = [whole[:cut] for cut in range(0, len(whole), 5)]
    damaged += [whole[:at] + bytes([whole[at] ^ 0x15]) + whole[at + 1 :] for at in range(0, len(whole), 3)]
    for data in damaged:
        (tmp_path / victim).write_bytes(data)
        try:
            with shards.open(locate(index), DEFAULT) as checkpoint:
                for tensor in checkpoint.tensors.values():
                    if not tensor.damaged:
                        tensor.numpy()
        except TaelError:
            pass


@pytest.mark.peer
def test_the_hub_loads_the_set_that_we_write(tmp_path: Path) -> None:
    import torch
    from huggingface_hub import load_torch_model

    contents = {f"{n}.weight": np.arange(6, dtype=np.float32).reshape(2, 3) + n for n in range(4)}
    plan = plan_conversion(building.checkpoint(contents), tmp_path / "model.safetensors", shard_size=50)
    execute(plan)
    model = torch.nn.Sequential(*(torch.nn.Linear(3, 2, bias=False) for _ in range(4)))
    load_torch_model(model, tmp_path, strict=True)
    for name, wanted in contents.items():
        assert model.state_dict()[name].numpy().tolist() == wanted.tolist()


@pytest.mark.peer
def test_the_split_is_that_of_the_hub(tmp_path: Path) -> None:
    import torch
    from huggingface_hub import split_torch_state_dict_into_shards

    rng = np.random.default_rng(0)
    for limit in (10, 40, 100):
        lengths = rng.integers(1, 60, 30)
        contents = {f"t{n}": np.zeros(length, np.uint8) for n, length in enumerate(lengths)}
        theirs = split_torch_state_dict_into_shards(
            {name: torch.from_numpy(content.copy()) for name, content in contents.items()}, max_shard_size=limit
        )
        plan = plan_conversion(building.checkpoint(contents), tmp_path / "model.safetensors", shard_size=limit)
        ours = {
            file.name: {part.tensor for part in file.parts if hasattr(part, "tensor")}
            for file in plan.files
            if not file.name.endswith(".json")
        }
        assert ours == {name: set(names) for name, names in theirs.filename_to_tensors.items()}


def test_opening_is_header_only(tmp_path: Path) -> None:
    index = two_shards(tmp_path)
    with shards.open(locate(index), DEFAULT) as checkpoint:
        assert all(tensor.span is not None for tensor in checkpoint.tensors.values())


def test_a_pattern_opens_its_files_as_one(tmp_path: Path) -> None:
    make(tmp_path, {"x-a.safetensors": {"a": array(1)}, "x-b.safetensors": {"b": array(2)}}, None)
    with open_checkpoint(tmp_path / "x-*.safetensors") as checkpoint:
        assert list(checkpoint.tensors) == ["a", "b"]
    with open_checkpoint(tmp_path / "x-[a].safetensors") as checkpoint:
        assert checkpoint.format == "safetensors"
    with pytest.raises(SourceNotFoundError, match="no file matches"):
        open_checkpoint(tmp_path / "z-*")
