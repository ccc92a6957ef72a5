# SPDX-License-Identifier: Apache-2.0
"""What torch.save pickles, from files that torch wrote (tests/vectors/make_pickle.py), and what it never would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from malicious import call, name, text, whole

from tael.errors import CorruptFileError, TaelError
from tael.pickle import (
    Call,
    EmbeddedStorage,
    Global,
    Reader,
    StorageRef,
    StorageType,
    TensorRef,
    TorchConstant,
    TorchDevice,
    TorchDtype,
    is_module,
    load,
    storage_ref,
    walk,
)

VECTORS = Path(__file__).parents[1] / "vectors" / "pickle"


def vector(stem: str) -> Any:
    return load(Reader((VECTORS / f"{stem}.pkl").read_bytes()), persistent=storage_ref)


def geometry(tensor: TensorRef) -> tuple[Any, ...]:
    storage = tensor.storage
    return storage.dtype and storage.dtype.name, storage.numel, tensor.offset, tensor.size, tensor.stride


@pytest.mark.parametrize("protocol", [2, 4])
def test_tensors(protocol: int) -> None:
    loaded = vector(f"torch_tensors_{protocol}")
    found = loaded.value
    assert geometry(found["plain"]) == ("float32", 12, 0, (3, 4), (4, 1))
    assert geometry(found["view"]) == ("float32", 12, 1, (3, 3), (1, 4))
    assert found["view"].storage.key == found["plain"].storage.key
    assert geometry(found["scalar"]) == ("int64", 1, 0, (), ())
    assert geometry(found["parameter"]) == ("bfloat16", 2, 0, (2,), (1,))
    assert (found["parameter"].parameter, found["parameter"].requires_grad) == (True, True)
    assert (found["plain"].parameter, found["plain"].requires_grad) == (False, False)
    assert geometry(found["float8"]) == (None, 2, 0, (2,), (1,))
    assert found["float8"].dtype == TorchDtype("float8_e4m3fn")
    assert found["conjugate"].metadata == {"conj": True}
    assert found["ordered"].state == {"_metadata": {"": {"version": 1}}}
    assert found["shared"][0] is found["shared"][1]
    assert found["size"] == (2, 3)
    assert found["version"] == "2.1"
    assert found["dtype"] == TorchDtype("float16")
    assert found["device"] == TorchDevice("cuda", 1)
    assert found["layout"] == TorchConstant("layout", "strided")
    assert all(use.known for use in loaded.globals)


@pytest.mark.parametrize("protocol", [2, 4])
def test_tensors_that_are_more_than_a_storage(protocol: int) -> None:
    found = vector(f"torch_tensors_{protocol}").value
    meta, coo, csr = found["meta"], found["coo"], found["csr"]
    assert (meta.kind, meta.size, meta.dtype, meta.storage) == ("meta", (2, 3), TorchDtype("float32"), None)
    assert (coo.kind, coo.size, coo.extra["layout"], coo.extra["coalesced"]) == ("sparse", (3, 3), "sparse_coo", True)
    assert (coo.extra["indices"].size, coo.extra["values"].size) == ((2, 3), (3,))
    assert (csr.kind, csr.size, csr.extra["layout"]) == ("sparse", (3, 3), "sparse_csr")
    assert (csr.extra["compressed"].size, csr.extra["plain"].size) == ((4,), (3,))
    quantized = vector(f"torch_quantized_{protocol}").value
    tensor, channel = quantized["tensor"], quantized["channel"]
    assert geometry(tensor) == ("quint8", 3, 0, (3,), (1,))
    assert tensor.kind == "quantized"
    assert tensor.extra["quantizer"] == (TorchConstant("qscheme", "per_tensor_affine"), 0.5, 2)
    assert channel.extra["quantizer"][0].name == "per_channel_affine"
    assert channel.extra["quantizer"][1].size == (2,)


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_pickled_module_has_the_names_of_its_state_dict(protocol: int) -> None:
    loaded = vector(f"torch_module_{protocol}")
    assert is_module(loaded.value)
    names = [".".join(path) for path, _ in walk(loaded.value)]
    assert names == [
        "kept", "0.weight", "1.0.weight", "1.0.bias", "1.0.running_mean", "1.0.running_var", "1.0.num_batches_tracked",
    ]  # fmt: skip
    assert all(type(leaf) is TensorRef for _, leaf in walk(loaded.value))
    assert [use.qualified for use in loaded.globals if not use.known] == [
        "torch.nn.modules.container.Sequential",
        "torch.nn.modules.linear.Linear",
        "torch.nn.modules.batchnorm.BatchNorm1d",
    ]  # fmt: skip


def test_a_tensor_subclass_is_the_tensor_with_its_attributes() -> None:
    loaded = vector("torch_subclass")
    tagged = loaded.value["tagged"]
    assert geometry(tagged) == ("float32", 2, 0, (2,), (1,))
    assert tagged.python_type == Global("lost", "Tagged")
    assert tagged.state == {"note": "kept"}
    uses = {use.qualified: use.called for use in loaded.globals}
    assert uses["torch._utils._rebuild_tensor_v2"]
    assert not uses["lost.Tagged"]


def test_a_tensor_pickled_without_torch_save_embeds_a_file() -> None:
    found = vector("torch_plain").value["w"]
    assert type(found.storage) is EmbeddedStorage
    reader = Reader(found.storage.data)
    parts = [load(reader, persistent=storage_ref).value for _ in range(5)]
    assert parts[0] == 0x1950A86A20F9469CFC6C
    assert type(parts[3]) is StorageRef
    assert parts[4] == [parts[3].key]
    assert reader.left == 8 + 8


def test_storage_ids() -> None:
    kind = StorageType("FloatStorage", TorchDtype("float32"))
    found = storage_ref(("storage", kind, "3", "cuda:0", 12))
    assert (found.key, found.dtype, found.location, found.numel, found.view) == ("3", kind.dtype, "cuda:0", 12, None)
    assert storage_ref(("storage", kind, "3", "cpu", 12, ("9", 4, 8))).view == ("9", 4, 8)
    bad: list[Any] = [
        None, (), ("module", kind, "3", "cpu", 12), ("storage", "FloatStorage", "3", "cpu", 12),
        ("storage", kind, 3, "cpu", 12), ("storage", kind, "3", "cpu", -1), ("storage", kind, "3", "cpu", 2**63),
        ("storage", kind, "3", "cpu", 12.0), ("storage", kind, "3", "cpu", True), ("storage", kind, "3", "cpu", 12, 5),
        ("storage", kind, "3", "cpu", 12, ("9", 4, 9)), ("storage", kind, "3", "cpu", 12, ("9", -1, 2)),
    ]  # fmt: skip
    for saved_id in bad:
        with pytest.raises(CorruptFileError):
            storage_ref(saved_id)


STORAGE = b"K\x01Q"
PAIR = b"K\x02K\x03\x86"


@pytest.mark.parametrize(
    "arguments",
    [
        [STORAGE, b"K\x00", PAIR],  # too few
        [STORAGE, b"K\x00", PAIR, PAIR] + [b"N"] * 4,  # too many
        [STORAGE, b"N", PAIR, PAIR],
        [STORAGE, b"\x88", PAIR, PAIR],  # True is no offset
        [STORAGE, b"J\xff\xff\xff\xff", PAIR, PAIR],
        [STORAGE, b"\x8a\x09" + bytes(8) + b"\x01", PAIR, PAIR],  # 2**64
        [STORAGE, b"K\x00", PAIR, b"K\x01\x85"],
        [STORAGE, b"K\x00", b"]", b"]"],
        [STORAGE, b"K\x00", b"K\x02N\x86", PAIR],
        [STORAGE, b"K\x00", b"K\x02\x88\x86", PAIR],
        [STORAGE, b"K\x00", b"K\x02G\x40" + bytes(7) + b"\x86", PAIR],  # 2.0
        [STORAGE, b"K\x00", b"K\x02J\xff\xff\xff\xff\x86", PAIR],
        [b"N", b"K\x00", PAIR, PAIR],
        [text("cpu"), b"K\x00", PAIR, PAIR],
        [name("os", "system"), b"K\x00", PAIR, PAIR],
    ],
)
@pytest.mark.parametrize("function", ["_rebuild_tensor", "_rebuild_tensor_v2"])
def test_malformed_tensors(function: str, arguments: list[bytes]) -> None:
    with pytest.raises(CorruptFileError):
        load(Reader(whole(call(name("torch._utils", function), *arguments))))


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        ("torch._utils._rebuild_tensor_v3", [STORAGE, b"K\x00", PAIR, PAIR, b"\x89", b"N", text("float8")]),
        ("torch._utils._rebuild_parameter", []),
        ("torch._utils._rebuild_qtensor", [STORAGE, b"K\x00", PAIR, PAIR, b"N", b"\x89", b"N"]),
        ("torch._utils._rebuild_sparse_tensor", [text("coo"), b"N"]),
        (
            "torch._utils._rebuild_sparse_tensor",
            [call(name("torch.serialization", "_get_layout"), text("torch.sparse_coo")), PAIR],
        ),
        ("torch._utils._rebuild_meta_tensor_no_storage", [text("float32"), PAIR, PAIR, b"\x89"]),
        ("torch._utils._rebuild_device_tensor_from_numpy", [b"N", name("torch", "float32"), text("cpu"), b"\x89"]),
        ("torch._utils._rebuild_device_tensor_from_cpu_tensor", [b"N", name("torch", "float32"), text("cpu"), b"\x89"]),
        ("torch._utils._rebuild_wrapper_subclass", [b"N"] * 8),
        ("torch._utils._rebuild_nested_tensor", [b"N"]),
        ("torch._tensor._rebuild_from_type_v2", [b"N"]),
        ("torch.Size", [text("x")]),
        ("torch.Size", [b"(" + text("x") + b"t"]),
        ("torch.device", [b"N"]),
        ("torch.device", []),
        ("torch.serialization._get_layout", [text("torch.float32")]),
        ("torch.torch_version.TorchVersion", [b"N"]),
        ("torch.storage._load_from_bytes", [b"N"]),
    ],
)
def test_malformed_calls_of_torch(function: str, arguments: list[bytes]) -> None:
    with pytest.raises(CorruptFileError):
        load(Reader(whole(call(name(*function.rsplit(".", 1)), *arguments))))


def test_a_parameter_of_an_unknown_tensor_is_a_stub_that_holds_it() -> None:
    inner = call(name("mine", "rebuild"), call(name("torch._utils", "_rebuild_tensor"), STORAGE, b"K\x00", PAIR, PAIR))
    found = load(Reader(whole(call(name("torch._utils", "_rebuild_parameter"), inner, b"\x88", b"N")))).value
    assert type(found) is Call
    assert [type(leaf) for _, leaf in walk(found)].count(TensorRef) == 1


def test_no_argument_makes_a_builder_fail_in_another_way() -> None:
    """Every rule, with every short combination of arguments of every kind: a value or one of our errors."""
    from tael.pickle import TABLE

    pieces = [
        b"N",
        b"K\x05",
        b"G" + bytes(8),
        text("f4"),
        b"C\x01x",
        b"]",
        b"}",
        b")",
        PAIR,
        STORAGE,
        name("torch", "float32"),
    ]
    pieces += [name("os", "system"), call(name("numpy", "dtype"), text("f4")), b"\x8f", b"\x88"]
    for key in TABLE:
        function = name(*key.rsplit(".", 1))
        for count in (0, 1, 2, 4):
            for index in range(len(pieces)):
                arguments = [pieces[(index + shift * (index + 1)) % len(pieces)] for shift in range(count)]
                for suffix in (b"", b"(NNNNNtb"):
                    data = whole(call(function, *arguments) + suffix)
                    try:
                        load(Reader(data))
                    except TaelError:
                        continue
