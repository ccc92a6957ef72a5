# SPDX-License-Identifier: Apache-2.0
"""The torch writer: what Python's own tools and our reader see in its files, and (peer) what torch 2.13 loads."""

from __future__ import annotations

import io
import pickletools
import sys
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import building
from tael.convert.execute import execute
from tael.convert.plan import Compute, Copy, Plan, Target
from tael.core.checkpoint import Checkpoint
from tael.core.limits import DEFAULT
from tael.core.location import locate
from tael.core.tensor import Tensor
from tael.errors import UnsupportedTensorError
from tael.formats import torch
from tael.formats.torch import tree as torch_tree
from tael.formats.torch.emit import TORCH_DTYPES
from tael.formats.torch.tree import TensorLeaf
from tael.formats.torch.write import layout
from tael.pickle.stubs import Call, Global, LazyBytes, StubDict
from tael.pickle.torch_types import TorchDevice, TorchDtype
from tael.testing import FormatConformance, torture


class TestConformance(FormatConformance):
    format = torch.FORMAT
    suffix = ".pt"


def written(checkpoint: Checkpoint, path: Path) -> Plan:
    plan = layout(checkpoint, Target(str(path)))
    execute(plan, force=True)
    return plan


def pickle_of(path: Path) -> bytes:
    with zipfile.ZipFile(path) as archive:
        return archive.read("archive/data.pkl")


def small(**fields: Any) -> Checkpoint:
    arrays = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b.c": np.array(7, np.int64)}
    return building.checkpoint(arrays, aliases={"tied": "a"}, **fields)


# --- the archive


def test_records_are_aligned_whole_and_named_as_torch_does(tmp_path: Path) -> None:
    checkpoint = torture(sorted(TORCH_DTYPES))
    written(checkpoint, tmp_path / "model.pt")
    with zipfile.ZipFile(tmp_path / "model.pt") as archive:
        assert archive.testzip() is None
        names = archive.namelist()
        assert names[:3] == ["archive/data.pkl", "archive/byteorder", "archive/data/0"]
        assert archive.read("archive/byteorder") == b"little"
        assert archive.read("archive/version") == b"3\n"
        assert not any(".format_version" in name for name in names)
        stored = [archive.read(f"archive/data/{n}") for n in range(len(checkpoint.owners))]
    assert stored == [building.raw_bytes(tensor) for tensor in checkpoint.owners]
    plan = layout(checkpoint, Target("model.pt"))
    assert all(part.offset % 64 == 0 for part in plan.files[0].parts if isinstance(part, Copy | Compute))


def test_the_file_does_not_depend_on_its_name(tmp_path: Path) -> None:
    written(small(), tmp_path / "one.pt")
    written(small(), tmp_path / "two.bin")
    assert (tmp_path / "one.pt").read_bytes() == (tmp_path / "two.bin").read_bytes()


def test_only_opcodes_that_torch_knows_without_trust(tmp_path: Path) -> None:
    tree = {"m": [TensorLeaf("a"), (1, 2, 3, 4), b"\0\xff", 1 + 2j], "n": {"x": 2**100, "y": -1, "z": 1e-300}}
    written(small(extras={torch_tree.KEY: {**tree, "b": TensorLeaf("b.c"), "t": TensorLeaf("tied")}}), tmp_path / "x")
    known = {
        "PROTO", "GLOBAL", "REDUCE", "BUILD", "APPENDS", "SETITEMS", "MARK", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3",
        "NONE", "NEWFALSE", "NEWTRUE", "EMPTY_TUPLE", "EMPTY_LIST", "EMPTY_DICT", "BININT", "BININT1", "BININT2",
        "BINFLOAT", "BINUNICODE", "BINPERSID", "BINGET", "LONG_BINGET", "BINPUT", "LONG_BINPUT", "LONG1", "STOP",
    }  # fmt: skip
    used = {opcode.name for opcode, _, _ in pickletools.genops(pickle_of(tmp_path / "x"))}
    assert used <= known
    pickletools.dis(pickle_of(tmp_path / "x"), out=io.StringIO())  # checks stack and memo


def test_an_alias_shares_the_storage_of_its_owner(tmp_path: Path) -> None:
    plan = written(small(), tmp_path / "x.pt")
    keys = [
        argument for opcode, argument, _ in pickletools.genops(pickle_of(tmp_path / "x.pt")) if argument in ("0", "1")
    ]
    assert keys == ["0", "1", "0"]
    assert sum(isinstance(part, Copy) for part in plan.files[0].parts) == 2
    with torch.open(locate(tmp_path / "x.pt"), DEFAULT) as back:
        assert back.aliases == {"tied": "a"}
    second = building.checkpoint({"a": np.zeros(3), "b": np.ones(3)}, aliases={"tied": "b"})
    written(second, tmp_path / "y.pt")
    with torch.open(locate(tmp_path / "y.pt"), DEFAULT) as back:
        assert back.aliases == {"tied": "b"}
        assert back.tensors["tied"].numpy().tolist() == [1, 1, 1]


def test_metadata_is_a_record_and_comes_back(tmp_path: Path) -> None:
    metadata = {"format": "pt", "step": 12, "nested": {"a": [1, None]}, "é": "ü"}
    written(small(metadata=metadata), tmp_path / "x.pt")
    with torch.open(locate(tmp_path / "x.pt"), DEFAULT) as back:
        assert {key: back.metadata[key] for key in metadata} == metadata
    written(small(), tmp_path / "none.pt")
    assert "archive/tael.metadata" not in zipfile.ZipFile(tmp_path / "none.pt").namelist()


@pytest.mark.parametrize("name", ["Q4_K", "U4", "F6_E2M3"])
def test_what_torch_has_no_dtype_for_is_refused(name: str) -> None:
    with pytest.raises(UnsupportedTensorError, match=f"no dtype for {name}") as error:
        layout(torture([name], ties=False, views=False), Target("x.pt"))
    assert error.value.tensor == f"plain.{name}"


def test_pairs_that_do_not_fill_a_byte_of_the_last_axis_are_refused() -> None:
    odd = building.checkpoint({"x": ("F4_E2M1", (2, 3), bytes(3))})
    with pytest.raises(UnsupportedTensorError, match="last axis"):
        layout(odd, Target("x.pt"))


# --- the structure


def test_the_nested_structure_is_written_as_it_came(tmp_path: Path) -> None:
    ordered = StubDict("collections.OrderedDict")
    ordered.update({"a": TensorLeaf("model.a"), "b.c": TensorLeaf("model.b.c")})
    ordered.state = {"_metadata": {"": {"version": 2}}}
    tree = {
        "model": ordered,
        "history": [(1, 2.5), (), [None, True], "text", b"\x00\xff"],
        "optimizer": {"state": {0: {"exp_avg": TensorLeaf("optimizer.state.0.exp_avg")}}},
        3: float("inf"),
    }
    arrays = {name: np.arange(2, dtype=np.float32) + n for n, name in enumerate(torch_tree.leaf_names(tree))}
    plan = written(building.checkpoint(arrays, extras={torch_tree.KEY: tree}), tmp_path / "x.pt")
    assert plan.losses == ()
    with torch.open(locate(tmp_path / "x.pt"), DEFAULT) as back:
        assert list(back.tensors) == list(arrays)
        assert {name: tensor.numpy().tolist() for name, tensor in back.tensors.items()} == {
            name: array.tolist() for name, array in arrays.items()
        }
        again = back.extras[torch_tree.KEY]
        assert again == tree
        assert again["model"].origin == "collections.OrderedDict"
        assert again["model"].state == ordered.state


def test_objects_are_left_out_and_named() -> None:
    tree = {
        "a": TensorLeaf("a"),
        "b": {"c": TensorLeaf("b.c")},
        "tied": TensorLeaf("tied"),
        "callback": Call(Global("my.module", "Callback")),
        "args": [1, Global("my.module", "f"), 3],
        "text": LazyBytes(0, 10),
        "big": 1 << 3000,
        ("k", ("deep",)): 1,
        "counts": StubDict("collections.Counter"),
    }
    plan = layout(small(extras={torch_tree.KEY: tree}), Target("x.pt"))
    by_kind = {loss.kind: loss for loss in plan.losses}
    assert by_kind["extras"].count == 5
    assert by_kind["extras"].detail.startswith("objects that are no plain data: callback, args.1, text, big")
    assert by_kind["attributes"].detail == "mappings written as plain dict: counts"


def test_deselected_tensors_leave_the_structure_and_keep_positions(tmp_path: Path) -> None:
    tree = {"list": [TensorLeaf("gone"), TensorLeaf("a")], "b": TensorLeaf("b.c"), "x": TensorLeaf("gone"), "n": 1}
    checkpoint = building.checkpoint({"a": np.zeros(1), "b.c": np.ones(1)}, extras={torch_tree.KEY: tree})
    written(checkpoint, tmp_path / "x.pt")
    with torch.open(locate(tmp_path / "x.pt"), DEFAULT) as back:
        assert back.extras[torch_tree.KEY] == {
            "list": [None, TensorLeaf("list.1")], "b": TensorLeaf("b"), "n": 1
        }  # fmt: skip


def test_renamed_tensors_are_written_flat_and_the_structure_is_a_loss(tmp_path: Path) -> None:
    checkpoint = small(extras={torch_tree.KEY: {"old": TensorLeaf("old"), "epoch": 3}})
    plan = written(checkpoint, tmp_path / "x.pt")
    assert [loss.kind for loss in plan.losses] == ["extras"]
    with torch.open(locate(tmp_path / "x.pt"), DEFAULT) as back:
        assert list(back.tensors) == ["a", "b.c", "tied"]


def test_containers_that_are_shared_or_hold_themselves_are_written_once() -> None:
    shared = [0] * 5
    for _ in range(40):
        shared = [shared, shared]
    loop: list[Any] = [shared]
    loop.append((loop, [loop]))
    tree = {"loop": loop, **{name: TensorLeaf(name) for name in ("a", "b.c", "tied")}}
    plan = layout(small(extras={torch_tree.KEY: tree}), Target("x.pt"))
    assert plan.nbytes < 4000


def test_a_deep_structure_needs_no_recursion() -> None:
    deep: Any = TensorLeaf("a")
    for _ in range(sys.getrecursionlimit() * 3):
        deep = {"k": (deep,)}
    tree = {"deep": deep, "b": TensorLeaf("b.c"), "t": TensorLeaf("tied")}
    assert layout(small(extras={torch_tree.KEY: tree}), Target("x.pt")).losses == ()


def test_a_hundred_thousand_tensors_are_laid_out_in_no_time() -> None:
    one = building.tensor("x", np.zeros(2, np.float32))
    checkpoint = Checkpoint(
        "memory", "many", {f"layer.{n}.weight": one.renamed(f"layer.{n}.weight") for n in range(100_000)}
    )
    began = time.process_time()
    plan = layout(checkpoint, Target("x.pt"))
    seconds = time.process_time() - began
    sys.stdout.write(f"100,000 tensors laid out in {seconds:.2f} s, {plan.nbytes:,} bytes\n")
    assert seconds < 6  # 1.9 s on an idle core


# --- names of paths


def test_names_join_paths_with_dots_and_escape_only_where_they_would_collide() -> None:
    assert torch_tree.unique_names([("a", "b"), ("c", 0), ()]) == ["a.b", "c.0", "tensor"]
    paths = [("a", "b"), ("a.b",), ("x", "y"), (0,), ("0",), (True, "q"), ("True", "q")]
    assert torch_tree.unique_names(paths) == ["a.b", "a\\.b", "x.y", "\\[0]", "0", "\\[True].q", "True.q"]


def test_names_are_unique_even_when_files_try_hard() -> None:
    paths = [
        ("a", "b"),
        ("a.b",),
        ("a\\.b",),
        ("a\\", "b"),
        ("a\\\\.b",),
        ((1,), "x"),
        ("(1,)", "x"),
        (b"k",),
        ("b'k'",),
    ]
    names = torch_tree.unique_names(paths)
    assert len(set(names)) == len(paths)


def test_flatten_takes_tensors_out_in_file_order_and_keeps_the_rest() -> None:
    class Leaf: ...

    first, second, third = Leaf(), Leaf(), Leaf()
    opaque = Call(Global("m", "Module"))
    root = {"b": [first, (second, {"k": 1})], "a": opaque, "same": first, "empty": []}
    found, tree = torch_tree.flatten(
        root, lambda value: type(value) is Leaf, view=lambda value: {"w": third} if value is opaque else None
    )
    assert found == [("b.0", first), ("b.1.0", second), ("a.w", third), ("same", first)]
    assert tree == {
        "b": [TensorLeaf("b.0"), (TensorLeaf("b.1.0"), {"k": 1})],
        "a": {"w": TensorLeaf("a.w")},
        "same": TensorLeaf("same"),
        "empty": [],
    }
    assert list(torch_tree.leaf_names(tree)) == ["b.0", "b.1.0", "a.w", "same"]


# --- torch itself


def bits(value: Any) -> bytes:
    """A torch tensor's elements, row-major, whatever its dtype."""
    raw = bytes(value.contiguous().untyped_storage())
    start = value.contiguous().storage_offset() * value.element_size()
    return raw[start : start + value.numel() * value.element_size()]


def assert_same(loaded: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    assert list(loaded) == list(tensors)
    for name, tensor in tensors.items():
        dtype = TORCH_DTYPES[tensor.dtype.name][0]
        assert str(loaded[name].dtype) == f"torch.{dtype}"
        shape = tensor.shape if tensor.dtype.block == 1 else (*tensor.shape[:-1], tensor.shape[-1] // 2)
        assert tuple(loaded[name].shape) == shape
        assert bits(loaded[name]) == building.raw_bytes(tensor), name


@pytest.mark.peer
@pytest.mark.parametrize("arguments", ["weights_only", "weights_only mmap", "trusted"])
@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_torch_loads_every_dtype_bit_for_bit(tmp_path: Path, arguments: str) -> None:
    import torch as peer

    checkpoint = torture(sorted(TORCH_DTYPES))
    written(checkpoint, tmp_path / "x.pt")
    loaded = peer.load(tmp_path / "x.pt", weights_only="weights" in arguments, mmap="mmap" in arguments)
    assert_same(loaded, checkpoint.tensors)
    owner = checkpoint.aliases["tied.weight"]
    assert {loaded[name].data_ptr() for name in (owner, "tied.weight", "tied.again")} == {loaded[owner].data_ptr()}
    assert loaded[owner].data_ptr() != 0


@pytest.mark.peer
def test_torch_finds_the_storages_also_when_it_computes_their_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch as peer
    from torch._subclasses import FakeTensorMode
    from torch.utils.serialization import config

    checkpoint = torture(["F32", "BF16"], views=False)
    written(checkpoint, tmp_path / "x.pt")
    monkeypatch.setenv("TORCH_SERIALIZATION_DEBUG", "1")
    with config.patch({"load.calculate_storage_offsets": True}):
        assert_same(peer.load(tmp_path / "x.pt", mmap=True), checkpoint.tensors)
    assert_same(peer.load(tmp_path / "x.pt"), checkpoint.tensors)
    with FakeTensorMode():
        fake = peer.load(tmp_path / "x.pt")
    where = fake["plain.F32"].untyped_storage()._checkpoint_offset
    assert (tmp_path / "x.pt").read_bytes()[where:].startswith(building.raw_bytes(checkpoint.tensors["plain.F32"]))


@pytest.mark.peer
def test_torch_passes_over_the_metadata_record(tmp_path: Path) -> None:
    import torch as peer

    written(small(metadata={"step": 3, "x": "y"}), tmp_path / "x.pt")
    reader = peer._C.PyTorchFileReader(str(tmp_path / "x.pt"))
    assert "tael.metadata" in reader.get_all_records()
    assert reader.get_record("tael.metadata").startswith(b'{"x":"y"')
    assert list(peer.load(tmp_path / "x.pt")) == ["a", "b.c", "tied"]


@pytest.mark.peer
def test_torch_loads_the_nested_structure(tmp_path: Path) -> None:
    from collections import OrderedDict

    import torch as peer

    ordered = StubDict("collections.OrderedDict")
    ordered.update({"w": TensorLeaf("model.w")})
    ordered.state = {"_metadata": {"": {"version": 1}}}
    shared = [1, 2]
    tree = {
        "model": ordered,
        "list": [TensorLeaf("model.w"), (1, (), (1, 2, 3, 4)), shared, shared],
        "scalars": [
            None,
            True,
            False,
            0,
            255,
            256,
            65536,
            -1,
            2**31,
            -(2**63),
            2**200,
            1.5,
            1 - 2j,
            "é\n",
            b"\0\xff",
            b"",
        ],
        "dtype": [TorchDtype("bfloat16"), TorchDevice("cuda", 1), TorchDevice("cpu")],
        "many": list(range(2500)),
        ("k", 1): {None: 1, 2.5: "x", 7: {}},
        "long": {f"key {n}": n for n in range(2500)},
    }
    checkpoint = building.checkpoint({"model.w": np.arange(4, dtype=np.float32)}, extras={torch_tree.KEY: tree})
    written(checkpoint, tmp_path / "x.pt")
    for trusted in (False, True):
        loaded = peer.load(tmp_path / "x.pt", weights_only=not trusted)
        assert type(loaded["model"]) is OrderedDict
        assert loaded["model"]._metadata == {"": {"version": 1}}
        assert loaded["model"]["w"].tolist() == loaded["list"][0].tolist() == [0, 1, 2, 3]
        assert loaded["list"][1] == (1, (), (1, 2, 3, 4))
        assert loaded["list"][2] is loaded["list"][3]
        assert loaded["dtype"] == [peer.bfloat16, peer.device("cuda:1"), peer.device("cpu")]
        for key in ("scalars", "many", "long", ("k", 1)):
            assert loaded[key] == tree[key]
        assert [type(value) for value in loaded["scalars"]] == [type(value) for value in tree["scalars"]]


@pytest.mark.peer
def test_a_module_takes_its_own_state_dict_back(tmp_path: Path) -> None:
    import torch as peer

    peer.manual_seed(0)
    model = peer.nn.Sequential(peer.nn.Linear(4, 3), peer.nn.BatchNorm1d(3), peer.nn.Linear(3, 2))
    peer.save(model.state_dict(), tmp_path / "from.pt")
    with torch.open(locate(tmp_path / "from.pt"), DEFAULT) as checkpoint:
        assert written(checkpoint, tmp_path / "to.pt").losses == ()
    again = peer.nn.Sequential(peer.nn.Linear(4, 3), peer.nn.BatchNorm1d(3), peer.nn.Linear(3, 2))
    again.load_state_dict(peer.load(tmp_path / "to.pt", mmap=True))
    for key, value in model.state_dict().items():
        assert peer.equal(again.state_dict()[key], value)


@pytest.mark.peer
def test_an_optimizer_goes_on_from_its_state(tmp_path: Path) -> None:
    import torch as peer

    model = peer.nn.Linear(2, 2)
    adam = peer.optim.AdamW(model.parameters(), lr=0.1)
    model(peer.ones(1, 2)).sum().backward()
    adam.step()
    peer.save({"model": model.state_dict(), "optimizer": adam.state_dict(), "epoch": 3}, tmp_path / "from.pt")
    with torch.open(locate(tmp_path / "from.pt"), DEFAULT) as checkpoint:
        written(checkpoint, tmp_path / "to.pt")
    loaded = peer.load(tmp_path / "to.pt")
    assert loaded["epoch"] == 3
    other = peer.optim.AdamW(peer.nn.Linear(2, 2).parameters(), lr=1.0)
    other.load_state_dict(loaded["optimizer"])
    assert other.state_dict()["param_groups"] == adam.state_dict()["param_groups"]
    assert peer.equal(other.state_dict()["state"][0]["exp_avg"], adam.state_dict()["state"][0]["exp_avg"])


@pytest.mark.peer
def test_torch_maps_a_file_beyond_4_gib(tmp_path: Path) -> None:
    import json

    import torch as peer
    from test_zip_archive import huge, zeros_crc

    from tael.convert.plan import Deferred, Literal
    from tael.formats.zip_write import finish_directory, finish_local_header

    size = (4 << 30) + 100
    behind = building.tensor("behind", np.arange(50, dtype=np.float32))
    checkpoint = Checkpoint("memory", "big", {"big": huge(size, "big"), "behind": behind})
    (file,) = layout(checkpoint, Target("big.pt")).files
    path = tmp_path / "big.pt"
    numbers = [number for number, part in enumerate(file.parts) if isinstance(part, Copy)]
    digests = {numbers[0]: zeros_crc(size), numbers[1]: zeros_crc(0)}
    with path.open("wb") as out:  # sparse: 4 GiB of zeros are a hole
        out.truncate(file.size)
        for part in file.parts:
            out.seek(part.offset)
            if isinstance(part, Literal):
                out.write(part.data)
            elif isinstance(part, Deferred):
                finish = finish_local_header if part.finisher == "zip.local_header" else finish_directory
                out.write(finish(json.loads(json.dumps(part.params)), digests))
            elif part.tensor == "behind":
                out.write(building.raw_bytes(behind))
    loaded = peer.load(path, mmap=True)
    assert loaded["big"].shape == (size,)
    assert loaded["big"][-1].item() == 0
    assert loaded["behind"].tolist() == list(range(50))
