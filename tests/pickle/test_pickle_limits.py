# SPDX-License-Identifier: Apache-2.0
"""What a pickle may cost, and that nothing but our errors comes out, whatever the bytes are."""

from __future__ import annotations

import io
import pickle
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from malicious import CORPUS, call, name, text, whole

from tael.core.limits import DEFAULT, Limits
from tael.errors import LimitExceededError, TaelError
from tael.pickle import Reader, load, storage_ref
from tael.pickle.opcodes import TABLE


def windowed(data: bytes) -> Reader:
    """The same bytes through a source, in windows."""
    return Reader.over(lambda offset, size: data[offset : offset + size], len(data))


def test_repr_of_results_never_descends() -> None:
    for data in (whole(name("a", "B") + b")R" * 1 + b")R" * 300), whole(name("a", "B") + b"]\x94\x85Rh\x00h\x00a0")):
        assert len(repr(load(Reader(data)).value)) < 200


@pytest.mark.parametrize(
    ("limits", "data"),
    [
        (Limits(pickle_opcodes=1000), whole(b"N" + b"N0" * 9000)),
        (Limits(pickle_memory=100_000), whole(b"N" + b"N0" * 9000)),
        (Limits(pickle_memory=100_000), whole(b"C\xff" + b"x" * 255 + (b"0C\xff" + b"x" * 255) * 9000)),
        (Limits(pickle_depth=5), whole(b"]" * 7 + b"a" * 6)),
        (Limits(pickle_globals=3), whole(b"".join(name("m", f"n{index}") for index in range(4)))),
        (Limits(pickle_seconds=0), whole(b"N")),
        (Limits(name_bytes=2000), whole(b"}" + text("k" * 2001) + b"Ns")),
        (Limits(rank=2), whole(call(name("torch", "Size"), b"(K\x01K\x01K\x01t"))),
    ],
)
def test_each_limit_holds(limits: Limits, data: bytes) -> None:
    load(Reader(data))
    with pytest.raises(LimitExceededError):
        load(Reader(data), limits=limits)


def test_crafted_keys_run_out_of_processor_time() -> None:
    """Small integers placed on every slot that one key's search visits, so that each store of it takes them all."""
    size = 1 << 17
    keys: list[int] = []
    target = slot = (1 << 40) + 12345
    slot, perturb = target & (size - 1), target
    taken: set[int] = set()
    while len(taken) < 80_000:
        if slot not in taken:
            taken.add(slot)
            keys.append(slot)
        perturb >>= 5
        slot = (slot * 5 + perturb + 1) & (size - 1)
    store = b"\x8a\x06" + target.to_bytes(6, "little") + b"Ns"
    limits = Limits(pickle_seconds=1.0)

    def data(occupied: list[int]) -> bytes:
        body = b"".join(b"J" + key.to_bytes(4, "little") + b"N" for key in sorted(occupied))
        return whole(b"}(" + body + b"u" + store * 40_000)

    load(Reader(data([key + size for key in range(len(keys))])), limits=limits)
    with pytest.raises(LimitExceededError):
        load(Reader(data(keys)), limits=limits)


@given(st.sampled_from([item for item in CORPUS if len(item.data) < 5000]), st.data())
def test_mutated_pickles_only_raise_our_errors(item: Any, data: st.DataObject) -> None:
    mutated = bytearray(item.data or b".")
    for _ in range(data.draw(st.integers(1, 6))):
        position = data.draw(st.integers(0, len(mutated) - 1))
        kind = data.draw(st.sampled_from(["set", "insert", "cut", "copy"]))
        if kind == "set":
            mutated[position] = data.draw(st.sampled_from(sorted(TABLE)) | st.integers(0, 255))
        elif kind == "insert":
            mutated[position:position] = data.draw(st.binary(min_size=1, max_size=8))
        elif kind == "cut" and len(mutated) > 1:
            del mutated[position : position + data.draw(st.integers(1, 20))]
            mutated = mutated or bytearray(b".")
        else:
            mutated[position:position] = mutated[: data.draw(st.integers(1, 40))]
    check(bytes(mutated))


opcodes = st.sampled_from([bytes([code]) for code in TABLE])
fragments = opcodes | st.sampled_from([
    b"K\x01", b"h\x00", b"h\x01", b"q\x00", b"q\x01", b"C\x01a", b"\x8c\x01a", b"I1\n", b"S'a'\n", b"Va\n",
    *(name(*key.rsplit(".", 1)) for key in (
        "collections.OrderedDict", "numpy.dtype", "numpy.core.multiarray._reconstruct", "numpy.core.multiarray.scalar",
        "torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_parameter", "torch._tensor._rebuild_from_type_v2",
        "torch.FloatStorage", "torch.float32", "builtins.set", "builtins.bytearray", "_codecs.encode",
        "copyreg.__newobj__",
        "torch._utils._rebuild_sparse_tensor", "numpy._core.numeric._frombuffer", "os.system",
    )),
    text("f4"), text("latin1"), b"\x89\x88", b"K\x02\x85", b"K\x01\x85",
])  # fmt: skip


@given(st.lists(fragments, max_size=40))
def test_random_opcodes_only_raise_our_errors(parts: list[bytes]) -> None:
    check(b"\x80\x04" + b"".join(parts) + b".")


def check(data: bytes) -> None:
    assert outcome(Reader(data)) == outcome(windowed(data))


def outcome(reader: Reader) -> str:
    try:
        load(reader)
    except TaelError as error:
        return type(error).__name__
    return "value"


def state_dict_pickle(tensors: int) -> bytes:
    """What torch.save writes for `tensors` small tensors, protocol 2."""
    out = [b"\x80\x02}q\x00("]
    memo = 1

    def put() -> bytes:
        nonlocal memo
        memo += 1
        return b"r" + (memo - 1).to_bytes(4, "little")

    for index in range(tensors):
        first = index == 0
        out += [text(f"model.layers.{index // 10}.experts.{index % 10}.weight"), put()]
        out += [name("torch._utils", "_rebuild_tensor_v2"), put()] if first else [b"h\x02"]
        out += [b"((", text("storage"), put(), name("torch", "FloatStorage"), put()] if first else [b"((h\x03h\x04"]
        out += [text(str(index)), put(), *([text("cpu"), put()] if first else [b"h\x06"]), b"K\x06t", put(), b"Q"]
        out += [b"K\x00K\x02K\x03\x86", put(), b"K\x03K\x01\x86", put(), b"\x89"]
        out += [name("collections", "OrderedDict"), put()] if first else [b"h\x0a"]
        out += [b")R", put(), b"t", put(), b"R", put()]
    return b"".join([*out, b"u."])


def test_a_checkpoint_of_a_hundred_thousand_tensors_fits_the_limits() -> None:
    tenth = Limits(**{key: getattr(DEFAULT, key) // 20 for key in ("pickle_opcodes", "pickle_memory")})
    found = load(Reader(state_dict_pickle(10_000)), persistent=storage_ref, limits=tenth).value
    assert len(found) == 10_000
    assert found["model.layers.7.experts.3.weight"].size == (2, 3)


def test_it_is_as_fast_as_the_unpickler_of_the_standard_library_in_python() -> None:
    class Unpickler(pickle._Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            return lambda *args: None

        def persistent_load(self, pid: Any) -> Any:
            return None

    data = state_dict_pickle(5_000)
    ours, theirs = [], []
    for _ in range(5):
        start = time.process_time()
        load(Reader(data), persistent=storage_ref)
        middle = time.process_time()
        Unpickler(io.BytesIO(data)).load()
        ours.append(middle - start)
        theirs.append(time.process_time() - middle)
    assert min(ours) < min(theirs)
