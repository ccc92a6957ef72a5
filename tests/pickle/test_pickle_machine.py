# SPDX-License-Identifier: Apache-2.0
"""The opcode loop against CPython's own unpickler, and by hand where a real unpickler would run code."""

from __future__ import annotations

import collections
import math
import pickle
import pickletools
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from malicious import call, name, one_of_each_opcode, text, whole

from tael.errors import CorruptFileError
from tael.pickle import Call, Global, GlobalUse, LazyBytes, PersistentId, Reader, StubDict, load
from tael.pickle.opcodes import LINE, LINES, MARK_ITEMS, SIZED, TABLE

VECTORS = Path(__file__).parents[1] / "vectors" / "pickle"
PROTOCOLS = range(6)


def read(data: bytes, **options: Any) -> Any:
    return load(Reader(data), **options).value


def windowed(data: bytes, **options: Any) -> Reader:
    """The same bytes through a source, in windows."""
    return Reader.over(lambda offset, size: data[offset : offset + size], len(data), **options)


shared = [1, 2]
cyclic: list[Any] = [shared, shared]
cyclic.append(cyclic)

PLAIN: list[Any] = [
    None, True, False, 0, -1, 255, 256, 65535, 65536, 2**31 - 1, -(2**31), 2**31, 2**63, -(2**63), 2**2000, -(2**2000),
    0.0, -0.0, 1.5, math.inf, -math.inf, 5e-324, "", "abc", "é层🐍", "a\nb\\u0041\x00", "\ud800", "x" * 70_000,
    b"", b"abc", bytes(range(256)), b"y" * 70_000, bytearray(), bytearray(b"\xff\x00z"), 1 + 2j,
    complex(-0.0, math.inf),
    (), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), [], [1, [2, [3]]], {}, {"a": 1, 2: None, (1, "b"): [True]},
    set(), {1, "a"}, frozenset(), frozenset([(1, 2)]), {frozenset([1])}, range(3), range(5, -5, -2),
    slice(1, None, 2), ...,
    collections.OrderedDict(b=1, a=2), collections.defaultdict(int, {1: 2}), collections.Counter("aab"),
    {i: str(i) for i in range(3000)}, list(range(3000)), set(range(2000)),
    [shared, shared, (shared,)],
]  # fmt: skip


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_plain_values_equal_those_of_pickle(protocol: int) -> None:
    for value in PLAIN:
        reader = Reader(pickle.dumps(value, protocol))
        found = load(reader).value
        found = reader.value(found) if type(found) is LazyBytes else found  # a long line of protocol 0
        assert found == value, value
        assert repr(found)[:2000] == repr(value)[:2000] or isinstance(found, (StubDict, set)), value
        assert type(found) is type(value) or isinstance(found, StubDict)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_shared_and_cyclic_containers_keep_their_identity(protocol: int) -> None:
    found = read(pickle.dumps(cyclic, protocol))
    assert found[0] is found[1]
    assert found[2] is found


scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
narrow = st.integers(-(2**64) + 1, 2**64 - 1)  # wider integers are refused as keys
keys = st.none() | st.booleans() | narrow | st.floats(allow_nan=False) | st.text() | st.binary()
hashable = st.recursive(keys | st.complex_numbers(allow_nan=False), lambda inner: st.tuples(inner, inner), max_leaves=4)
values = st.recursive(
    scalars | st.binary().map(bytearray) | st.sets(hashable, max_size=4) | st.frozensets(hashable, max_size=4),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(hashable, inner, max_size=5)
        | st.lists(inner, max_size=4).map(tuple)
    ),
    max_leaves=25,
)


@given(values, st.sampled_from(PROTOCOLS))
def test_any_plain_value_at_any_protocol(value: Any, protocol: int) -> None:
    data = pickle.dumps(value, protocol)
    assert read(data) == value
    reader = windowed(data)
    assert load(reader).value == value
    assert reader.position == len(data)


@given(st.lists(values, min_size=1, max_size=4), st.sampled_from(PROTOCOLS))
def test_pickles_in_a_row_with_raw_bytes_between(parts: list[Any], protocol: int) -> None:
    data = b"".join(pickle.dumps(part, protocol) + b"raw!" for part in parts)
    for reader in (Reader(data), windowed(data)):
        for part in parts:
            loaded = load(reader)
            assert loaded.value == part
            assert loaded.end_offset == reader.position
            assert reader.read(reader.position, 4) == b"raw!"
            reader.position += 4
        assert reader.left == 0


def test_every_opcode_is_read() -> None:
    data = one_of_each_opcode()
    names = {opcode.name for opcode, _, _ in pickletools.genops(data)}
    assert {row.name for row in TABLE.values()} - names == {"EXT1", "EXT2", "EXT4", "NEXT_BUFFER", "READONLY_BUFFER"}
    for reader in (Reader(data), windowed(data)):
        found = load(reader).value
        assert found[:6] == [None, True, False, 12, True, 67305985]
        assert len(found) == 47
        assert [item.qualified for item in found[-8:-3]] == ["a.B"] * 5


def test_the_opcode_table_equals_the_one_of_pickletools() -> None:
    sizes = {1: 1, 2: 2, 4: 4, 8: 8}
    for opcode in pickletools.opcodes:
        row = TABLE[ord(opcode.code)]
        assert row.name == opcode.name
        if opcode.arg is None:
            assert row.argument == 0
        elif opcode.arg.n == pickletools.UP_TO_NEWLINE:
            assert row.argument == (LINES if opcode.name in ("GLOBAL", "INST") else LINE)
        elif opcode.arg.n > 0:
            assert row.argument == sizes[opcode.arg.n]
        else:
            length = {-2: 1, -3: 4, -4: 4, -5: 8}[opcode.arg.n]
            assert SIZED[str(row.argument)] == length
        before = [item.name for item in opcode.stack_before]
        if "mark" in before and opcode.name != "POP_MARK":
            assert row.takes == MARK_ITEMS
    assert len(TABLE) == len(pickletools.opcodes)


def test_unknown_classes_become_stubs_with_all_that_they_held() -> None:
    """P2: a class of a framework that is not installed."""
    module = types.ModuleType("lost_framework")
    exec(  # noqa: S102 - the class must live in a module that can vanish
        "class Config(dict):\n    pass\nclass Slotted:\n    __slots__ = ('a',)\n"
        "class Bag(list):\n    pass\nclass Made:\n    def __new__(cls, *, size): return object.__new__(cls)\n"
        "    def __getnewargs_ex__(self): return (), {'size': 3}\n",
        module.__dict__,
    )
    for made in (module.Config, module.Slotted, module.Bag, module.Made):
        made.__module__ = "lost_framework"
    sys.modules["lost_framework"] = module
    config, slotted, bag = module.Config(lr=0.1), module.Slotted(), module.Bag([1, 2])
    config.extra, slotted.a = "x", 5
    try:
        pickles = [pickle.dumps([config, slotted, bag, module.Made(size=1)], protocol) for protocol in (2, 4, 5)]
    finally:
        del sys.modules["lost_framework"]
    for data in pickles:
        loaded = load(Reader(data))
        config, slotted, bag, made = loaded.value
        assert (config.qualified, config.dictitems, config.state) == (
            "lost_framework.Config",
            [("lr", 0.1)],
            {"extra": "x"},
        )
        assert slotted.attribute("a") == 5
        assert list(slotted.attributes()) == [("a", 5)]
        assert bag.listitems == [1, 2]
        if data[1] >= 4:  # earlier protocols write functools.partial(...)()
            assert dict(made.kwargs or {}) == {"size": 3}
        assert [(use.qualified, use.known) for use in loaded.globals if use.module == "lost_framework"] == [
            (f"lost_framework.{cls}", False) for cls in ("Config", "Slotted", "Bag", "Made")
        ]


def test_python2_strings_are_latin1_with_a_note() -> None:
    """P4."""
    loaded = load(Reader(b"\x80\x02U\x01\x8cq\x00."))
    assert loaded.value == "\x8c"
    assert loaded.notes == ["Python 2 strings that are not ASCII, read as latin-1"]
    assert load(Reader(b"\x80\x02U\x01aq\x00.")).notes == []


@pytest.mark.parametrize("module", ["pickle", "cpickle"])
@pytest.mark.parametrize("protocol", [0, 1, 2])
def test_pickles_of_python_2(module: str, protocol: int) -> None:
    loaded = load(Reader((VECTORS / f"python2_{module}_{protocol}.pkl").read_bytes()))
    found = loaded.value
    assert found["name"] == "weights"
    assert found["bytes"] == "\x8c\x00\xff'\n\\"
    assert found["text"] == "h\xe9 \u5c42 \\u0041"
    assert found["numbers"] == [1, -2, 2**31, 2**70, -(2**70), 1.5, 1e300, True, None]
    assert found["long"] == 5
    assert found["tuple"] == ((), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4))
    assert found["set"] == {3}
    assert list(found["ordered"].items()) == [("b", 1), ("a", 2)]
    assert (found["old"].qualified, found["old"].attribute("bias")) == ("__main__.Old", 1.5)
    assert found["old_arguments"].args == (1, "two")
    assert found["new"].attribute("weight").shape == (3,)
    assert found["array"].data == b"".join(
        bytes([0, 0]) + half for half in (b"\0\0", b"\x80?", b"\0@", b"@@", b"\x80@", b"\xa0@")
    )
    assert found["fortran"].strides == (1, 2)
    assert found["scalar"].value == 2.5
    assert loaded.notes


def test_globals_are_listed_once_with_their_use() -> None:
    body = name("os", "system") + b"0" + call(name("os", "system"), text("true")) + b"0"
    body += name("torch", "FloatStorage") + b"0" + name("collections", "OrderedDict") + b")R"
    loaded = load(Reader(whole(body)))
    assert [(use.qualified, use.known, use.called, use.opcode) for use in loaded.globals] == [
        ("os.system", False, True, "GLOBAL"),
        ("torch.FloatStorage", True, False, "GLOBAL"),
        ("collections.OrderedDict", True, True, "GLOBAL"),
    ]


def test_globals_of_a_pickle_that_fails_are_seen() -> None:
    seen: list[GlobalUse] = []
    with pytest.raises(CorruptFileError):
        load(Reader(whole(call(name("os", "system"), text("true")) + b"\xff")), seen=seen)
    assert [use.qualified for use in seen] == ["os.system"]


def test_a_called_value_counts_as_called() -> None:
    loaded = load(Reader(whole(name("torch", "FloatStorage") + b"K\x05\x85R")))
    assert isinstance(loaded.value, Call)
    assert loaded.globals[0].called


def test_errors_say_where() -> None:
    with pytest.raises(CorruptFileError) as caught:
        load(Reader(b"\x80\x02]\xff.", base=100), path="weights.pkl")
    assert (caught.value.path, caught.value.offset) == ("weights.pkl", 104)
    with pytest.raises(CorruptFileError) as caught:
        load(Reader(b"\x80\x02X\xff\xff\xff\xffab", base=100), path="weights.pkl")
    assert "4,294,967,295 more bytes, but 2 are left" in str(caught.value)
    assert caught.value.offset == 107


def test_errors_do_not_keep_what_was_built() -> None:
    with pytest.raises(CorruptFileError) as caught:
        load(Reader(b"(" * 10 + b"\xff"))
    frame = caught.value.__traceback__
    while frame is not None:
        assert frame.tb_frame.f_code.co_name != "_loop"
        frame = frame.tb_next


def test_persistent_ids_go_to_the_caller() -> None:
    data = whole(b"(" + text("storage") + b"K\x05tQ") + b"Pname\n."
    reader = Reader(data)
    assert load(reader, persistent=lambda pid: ["resolved", pid]).value == ["resolved", ("storage", 5)]
    found = load(reader).value
    assert type(found) is PersistentId
    assert found.value == "name"


def test_an_ordered_dict_keeps_its_attributes_aside() -> None:
    ordered = collections.OrderedDict(a=1)
    ordered._metadata = {"": {"version": 1}}  # type: ignore[attr-defined]
    found = read(pickle.dumps(ordered, 2))
    assert found == {"a": 1}
    assert (found.origin, found.state) == ("collections.OrderedDict", {"_metadata": {"": {"version": 1}}})


def test_dotted_names_are_never_known() -> None:
    for module, attribute in [("torch", "serialization._get_layout"), ("collections", "OrderedDict.fromkeys")]:
        loaded = load(Reader(whole(text(module) + text(attribute) + b"\x93")))
        assert loaded.value == Global(module, attribute)
        assert not loaded.globals[0].known


indexes = st.integers(0, 12) | st.sampled_from([255, 256, 300])
memo_opcodes = st.one_of(
    st.integers(0, 99).map(lambda value: b"K" + bytes([value])),
    indexes.map(lambda index: b"p%d\n" % index),
    indexes.map(lambda index: b"q" + bytes([index % 256])),
    indexes.map(lambda index: b"r" + index.to_bytes(4, "little")),
    st.just(b"\x94"),
)


@given(st.lists(memo_opcodes, max_size=30), st.lists(indexes, max_size=6))
def test_the_memo_is_the_one_of_pickle(stores: list[bytes], wanted: list[int]) -> None:
    for protocol in (b"\x80\x04", b""):
        gets = b"".join(b"j" + index.to_bytes(4, "little") + b"h" + bytes([index % 256]) for index in wanted)
        data = protocol + b"K\x00" + b"".join(stores) + b"(" + gets + b"t."
        try:
            real = pickle.loads(data)
        except pickle.UnpicklingError:
            with pytest.raises(CorruptFileError):
                load(Reader(data))
        else:
            assert read(data) == real


def test_long_payloads_in_memory_stay_whole_and_escaped_text_is_lazy() -> None:
    assert read(pickle.dumps(b"x" * 100_000, 4)) == b"x" * 100_000
    data = b"S'" + b"\\x41" * 30_000 + b"'\n."
    reader = Reader(data)
    lazy = load(reader).value
    assert lazy == LazyBytes(2, 120_000, "string-escape", True)
    assert reader.value(lazy) == "A" * 30_000
