# SPDX-License-Identifier: Apache-2.0
"""Hostile pickles, assembled opcode by opcode. Nothing here is pickled from live objects, and nothing is loaded.

Each item that would run code leaves a canary, a file in the folder that $TAEL_CANARY names, when a real unpickler
loads it. `live` marks those that test_malicious.py hands to a real one, in a child, to prove that the canary sings.
`outcome` is "value" (it opens, as stubs) or the name of the error.
"""

from __future__ import annotations

import struct
from typing import NamedTuple


class Item(NamedTuple):
    name: str
    data: bytes
    outcome: str = "value"
    live: bool = False
    tight: bool = False  # under a tenth of the default limits, so that the refusal comes ten times sooner


def text(value: str) -> bytes:
    raw = value.encode()
    return b"X" + struct.pack("<I", len(raw)) + raw


def name(module: str, attribute: str) -> bytes:
    return f"c{module}\n{attribute}\n".encode()


def stack_name(module: str, attribute: str) -> bytes:
    return text(module) + text(attribute) + b"\x93"


def call(function: bytes, *args: bytes) -> bytes:
    return function + b"(" + b"".join(args) + b"tR"


def whole(body: bytes, protocol: int = 4) -> bytes:
    return b"\x80" + bytes([protocol]) + body + b"."


def canary(label: str) -> str:
    return f'touch "$TAEL_CANARY/{label}"'


def python_canary(label: str) -> str:
    return f"open(__import__('os').environ['TAEL_CANARY'] + '/{label}', 'w').close()"


def executes(label: str, *call_parts: bytes, live: bool = True, protocol: int = 4) -> Item:
    return Item(label, whole(call(*call_parts), protocol), live=live)


def _calls() -> list[Item]:
    inner = whole(call(name("posix", "system"), text(canary("inner"))))
    inner_bytes = b"B" + struct.pack("<I", len(inner)) + inner
    nested = whole(call(name("os", "system"), text(canary("nested_loads"))))
    nested_bytes = b"B" + struct.pack("<I", len(nested)) + nested
    return [
        executes("os_system", name("os", "system"), text(canary("os_system"))),
        executes("posix_system", name("posix", "system"), text(canary("posix_system"))),
        executes("protocol_0", name("os", "system"), f"V{canary('protocol_0')}\n".encode(), protocol=0),
        executes("eval", name("builtins", "eval"), text(python_canary("eval"))),
        executes("exec", name("builtins", "exec"), text(python_canary("exec"))),
        executes("python2_eval", name("__builtin__", "eval"), text(python_canary("python2_eval")), protocol=2),
        executes("subprocess", name("subprocess", "getoutput"), text(canary("subprocess"))),
        executes("nested_loads", name("pickle", "loads"), nested_bytes),
        executes("nested_c_loads", name("_pickle", "loads"), inner_bytes, live=False),
        executes("runpy", name("runpy", "run_path"), text("/nowhere.py"), live=False),
        executes("webbrowser", name("webbrowser", "open"), text("http://127.0.0.1:9/"), live=False),
        executes("importlib", name("importlib", "import_module"), text("antigravity"), live=False),
        executes("pip_main", name("pip", "main"), b"]" + text("install") + b"a" + text("x") + b"a", live=False),
        executes("ctypes", name("ctypes", "CDLL"), text("libc.so.6"), live=False),
        executes("numpy_load", name("numpy", "load"), text("x.npy"), b"N\x88", live=False),
        executes("torch_load", name("torch", "load"), text("x.pt"), live=False),
        executes("torch_jit_load", name("torch.jit", "load"), text("x.pt"), live=False),
        executes("torch_utils_import", name("torch._utils", "_import_dotted_name"), text("os.system"), live=False),
        executes("linecache", name("linecache", "getline"), text("/etc/passwd"), b"K\x01", live=False),
        executes("code_interact", name("code", "interact"), live=False),
        executes("socket", name("socket", "create_connection"), text("127.0.0.1") + b"K\x09\x86", live=False),
        executes("timeit", name("timeit", "timeit"), text(python_canary("timeit")), b"N", text("pass"), live=False),
        executes("pty_spawn", name("pty", "spawn"), text("/bin/sh"), live=False),
        executes("shutil_rmtree", name("shutil", "rmtree"), text("/nowhere"), live=False),
        executes("logging_config", name("logging.config", "fileConfig"), text("x.ini"), live=False),
        Item(
            "partial",
            whole(call(call(name("functools", "partial"), name("os", "system"), text(canary("partial"))))),
            live=True,
        ),
        Item(
            "map_through_tuple",
            whole(
                call(
                    name("builtins", "list"),
                    call(
                        name("builtins", "map"), name("os", "system"), b"]" + text(canary("map_through_tuple")) + b"a"
                    ),
                )
            ),
            live=True,
        ),
        Item(
            "methodcaller",
            whole(
                call(
                    call(name("operator", "methodcaller"), text("system"), text(canary("methodcaller"))),
                    call(name("importlib", "import_module"), text("os")),
                )
            ),
            live=True,
        ),
        Item(
            "attrgetter",
            whole(
                call(
                    call(
                        call(name("operator", "attrgetter"), text("system")),
                        call(name("importlib", "import_module"), text("os")),
                    ),
                    text(canary("attrgetter")),
                )
            ),
            live=True,
        ),
        Item(
            "getattr_chain",
            whole(
                call(
                    call(
                        name("builtins", "getattr"),
                        call(name("builtins", "__import__"), text("os")),
                        text("system"),
                    ),
                    text(canary("getattr_chain")),
                )
            ),
            live=True,
        ),
        Item("dotted_name", whole(call(stack_name("shutil", "os.system"), text(canary("dotted_name")))), live=True),
        Item("dotted_torch", whole(call(stack_name("torch.serialization", "os.system"), text("true")))),
        Item("dotted_known", whole(call(stack_name("torch", "serialization._get_layout"), text("torch.strided")))),
        Item("dotted_known_module", whole(call(stack_name("", "torch._utils._rebuild_tensor"), b"N"))),
        Item("inst", b"(V" + canary("inst").encode() + b"\nios\nsystem\n.", live=True),
        Item("obj", b"(" + name("os", "system") + text(canary("obj")) + b"o.", live=True),
        Item("newobj", whole(name("subprocess", "Popen") + text("true") + b"\x85\x81")),
        Item("newobj_ex", whole(name("subprocess", "Popen") + text("true") + b"\x85}" + text("shell") + b"\x88s\x92")),
        Item("main_class", whole(name("__main__", "Evil") + b")\x81}" + text("x") + b"K\x01sb")),
        Item(
            "reduce_in_dict_key",
            whole(b"}" + call(name("os", "system"), text(canary("reduce_in_dict_key"))) + b"K\x01s"),
            live=True,
        ),
        Item("reduce_then_pop", whole(call(name("os", "system"), text(canary("reduce_then_pop"))) + b"0N"), live=True),
        Item("persistent_call", whole(call(name("os", "system"), text("true")) + b"Q")),
        Item("persistent_text", b"Pos.system\n."),
    ]


def _names() -> list[Item]:
    computed = call(name("_codecs", "encode"), text("os"), text("latin1"))
    return [
        Item("stack_global_bytes", whole(computed + text("system") + b"\x93"), "CorruptFileError"),
        Item("stack_global_numbers", whole(b"K\x01K\x02\x93"), "CorruptFileError"),
        Item("stack_global_list", whole(b"]" + text("x") + b"\x93"), "CorruptFileError"),
        Item(
            "stack_global_memo", whole(text("os") + b"\x94" + text("system") + b"\x9400h\x00h\x01\x93" + text("true"))
        ),
        Item("global_newlines", whole(b"cos\nsystem\nR"), "CorruptFileError"),
        Item("global_not_utf8", whole(b"c\xff\xfe\nx\n"), "CorruptFileError"),
        Item("global_long_name", whole(b"c" + b"a" * 100_000 + b"\nb\n"), "LimitExceededError"),
        Item(
            "many_globals",
            whole(b"".join(name("m", f"n{i}") + b"0" for i in range(20_000)) + b"N"),
            "LimitExceededError",
        ),
        Item("ext1", whole(b"\x82\x01)R")),
        Item("ext2", whole(b"\x83\x01\x01)R")),
        Item("ext4", whole(b"\x84\x01\x00\x01\x00)R")),
        Item("ext_zero", whole(b"\x82\x00"), "CorruptFileError"),
        Item("ext_negative", whole(b"\x84\xff\xff\xff\xff"), "CorruptFileError"),
        Item(
            "ext_registry",
            whole(call(name("copyreg", "add_extension"), text("os"), text("system"), b"K\x01") + b"0\x82\x01"),
        ),
    ]


def _state() -> list[Item]:
    ordered = name("collections", "OrderedDict") + b")R"
    array = call(name("numpy.core.multiarray", "_reconstruct"), name("numpy", "ndarray"), b"K\x00\x85", b"C\x01b")
    evil_state = b"}" + text("__class__") + name("os", "system") + b"s"
    return [
        Item("build_ordered_dict_class", whole(ordered + evil_state + b"b")),
        Item(
            "build_ordered_dict_setstate", whole(ordered + b"}" + text("__setstate__") + name("os", "system") + b"sb")
        ),
        Item("build_slots", whole(ordered + b"N" + evil_state + b"\x86b")),
        Item("build_twice", whole(ordered + b"}b}b"), "CorruptFileError"),
        Item("build_a_class", whole(name("collections", "OrderedDict") + evil_state + b"b"), "CorruptFileError"),
        Item("build_unknown_class", whole(name("torch.nn", "Linear") + evil_state + b"b"), "CorruptFileError"),
        Item("build_a_list", whole(b"]" + evil_state + b"b"), "CorruptFileError"),
        Item("build_a_dict", whole(b"}" + evil_state + b"b"), "CorruptFileError"),
        Item("build_a_string", whole(text("x") + evil_state + b"b"), "CorruptFileError"),
        Item("build_stub", whole(name("a", "B") + b")\x81" + evil_state + b"b")),
        Item("array_malformed_state", whole(array + b"(K\x01K\x03\x85NN" + b"C\x00tb"), "CorruptFileError"),
        Item(
            "array_evil_subtype",
            whole(call(name("numpy.core.multiarray", "_reconstruct"), name("os", "system"), b"K\x00\x85", b"C\x01b")),
        ),
        Item(
            "array_of_objects",
            whole(
                array
                + b"(K\x01K\x01\x85"
                + call(name("numpy", "dtype"), text("O8"), b"\x89\x88")
                + b"\x89]"
                + call(name("os", "system"), text("true"))
                + b"atb"
            ),
        ),
        Item(
            "array_too_large",
            whole(
                array
                + b"(K\x01\x8a\x08"
                + b"\xff" * 7
                + b"\x7f\x85"
                + call(name("numpy", "dtype"), text("f8"), b"\x89\x88")
                + b"\x89C\x00tb"
            ),
            "CorruptFileError",
        ),
        Item(
            "array_negative",
            whole(
                array
                + b"(K\x01J\xff\xff\xff\xff\x85"
                + call(name("numpy", "dtype"), text("f8"), b"\x89\x88")
                + b"\x89C\x00tb"
            ),
            "CorruptFileError",
        ),
        Item("dtype_of_class", whole(call(name("numpy", "dtype"), name("os", "system")))),
        Item(
            "bytearray_of_number", whole(call(name("builtins", "bytearray"), b"J\xff\xff\xff\x7f")), "CorruptFileError"
        ),
        Item("bytes_of_number", whole(call(name("builtins", "bytes"), b"J\xff\xff\xff\x7f"))),
        Item("encode_other_codec", whole(call(name("_codecs", "encode"), text("x"), text("zip_codec")))),
        Item("set_of_lists", whole(call(name("builtins", "set"), b"]]a")), "CorruptFileError"),
        Item("append_to_string", whole(text("x") + b"Na"), "CorruptFileError"),
        Item("setitem_on_list", whole(b"]K\x00Ns"), "CorruptFileError"),
        Item("additems_on_dict", whole(b"}(N\x90"), "CorruptFileError"),
        Item("call_a_string", whole(text("x") + b")R"), "CorruptFileError"),
        Item("call_with_list", whole(name("os", "system") + b"]R"), "CorruptFileError"),
        Item(
            "tensor_on_nothing",
            whole(call(name("torch._utils", "_rebuild_tensor"), b"N", b"K\x00", b"K\x02\x85", b"K\x01\x85")),
            "CorruptFileError",
        ),
        Item(
            "tensor_negative_stride",
            whole(
                call(
                    name("torch._utils", "_rebuild_tensor"), b"K\x01Q", b"K\x00", b"K\x02\x85", b"J\xff\xff\xff\xff\x85"
                )
            ),
            "CorruptFileError",
        ),
        Item(
            "tensor_rank_bomb",
            whole(
                b"("
                + b"K\x01" * 1000
                + b"t\x940"
                + call(name("torch._utils", "_rebuild_tensor"), b"K\x01Q", b"K\x00", b"h\x00", b"h\x00")
            ),
            "LimitExceededError",
        ),
        Item(
            "tensor_float_size",
            whole(
                call(
                    name("torch._utils", "_rebuild_tensor"),
                    b"K\x01Q",
                    b"K\x00",
                    b"G" + struct.pack(">d", 2.0) + b"\x85",
                    b"K\x01\x85",
                )
            ),
            "CorruptFileError",
        ),
        Item(
            "rebuild_from_type_of_itself",
            whole(
                b"N"
                + call(
                    name("torch._tensor", "_rebuild_from_type_v2"),
                    name("torch._tensor", "_rebuild_from_type_v2"),
                    b"N",
                    b")",
                    b"N",
                )
            ),
        ),
        Item(
            "rebuild_from_type_evil",
            whole(
                call(
                    name("torch._tensor", "_rebuild_from_type_v2"),
                    name("os", "system"),
                    b"N",
                    text("true") + b"\x85",
                    b"N",
                )
            ),
        ),
        Item("load_from_bytes", whole(call(name("torch.storage", "_load_from_bytes"), b"C\x04cos\n"))),
    ]


def _deep_scalars() -> bytes:
    dtype = call(name("numpy", "dtype"), text("O8"), b"\x89\x88")
    scalar = name("numpy.core.multiarray", "scalar")
    return whole(dtype + b"\x940" + scalar + b"\x940" + b"h\x01h\x00" * 100_000 + b"N" + b"\x86R" * 100_000)


def _bombs() -> list[Item]:
    lists = b"".join(b"](h" + bytes([i]) + b"h" + bytes([i]) + b"e\x94" for i in range(100))
    tuples = b"".join(b"h" + bytes([i]) + b"h" + bytes([i]) + b"\x86\x94" for i in range(100))
    dicts = b"".join(b"}(K\x01h" + bytes([i]) + b"K\x02h" + bytes([i]) + b"u\x94" for i in range(100))
    frozen = b"".join(b"(h" + bytes([i]) + b"h" + bytes([i]) + b"\x85\x91\x94" for i in range(30))
    return [
        Item("laughs_list", whole(b"]\x94" + lists)),
        Item("laughs_tuple", whole(b")\x94" + tuples)),
        Item("laughs_dict", whole(b"}\x94" + dicts)),
        Item("laughs_tuple_key", whole(b"N\x94" + tuples + b"\x940}h\x64Ns"), "LimitExceededError"),
        Item("laughs_frozenset_key", whole(b"N\x94" + frozen + b"0}h\x1eNs"), "LimitExceededError"),
        Item("list_in_itself", whole(b"]\x94h\x00a")),
        Item("dict_in_itself", whole(b"}\x94K\x01h\x00s")),
        Item("tuple_in_itself", whole(b"]\x94h\x00\x85\x94a0h\x01")),
        Item("stub_in_itself", whole(name("a", "B") + b")\x81\x94}" + text("me") + b"h\x00sb")),
        Item("stub_calls_itself", whole(name("a", "B") + b")R" + b")R" * 300)),
        Item("deep_stub_calls", whole(name("a", "B") + b")R" + b")R" * 500_000), "LimitExceededError"),
        Item("deep_lists", whole(b"]" * 1_000_000 + b"a" * 999_999), "LimitExceededError"),
        Item(
            "deep_slices",
            whole(name("builtins", "slice") + b"\x940" + b"h\x00" * 1_000_000 + b"N" + b"\x85R" * 1_000_000),
            "CorruptFileError",
        ),
        Item("deep_scalars", _deep_scalars(), "LimitExceededError"),
        Item("deep_frozensets", whole(b"(" * 100_000 + b"N" + b"\x91" * 100_000), "LimitExceededError"),
        Item("deep_tuples", whole(b")" + b"\x85" * 1_000_000), "LimitExceededError"),
        Item("deep_tuple_key", whole(b"}N" + b"\x85" * 1_000_000 + b"Ns"), "LimitExceededError"),
        Item("deep_dicts", whole(b"}" + b"K\x01}" * 100_000 + b"s" * 100_000), "LimitExceededError"),
        Item(
            "deep_state",
            whole(name("a", "B") + b"\x940" + b"h\x00)\x81" * 100_000 + b"b" * 99_999),
            "LimitExceededError",
        ),
        Item(
            "deep_from_type",
            whole(
                name("torch._tensor", "_rebuild_from_type_v2")
                + b"\x940"
                + b"h\x00(h\x00N" * 50_000
                + b"N"
                + b"NtR" * 50_000
            ),
            "LimitExceededError",
        ),
        Item("million_marks", whole(b"(" * 1_000_000), "CorruptFileError"),
        Item("many_lists", whole(b"]" * 12_000_000), "LimitExceededError"),
        Item("many_sets", whole(b"\x8f" * 400_000), "LimitExceededError", tight=True),
        Item("many_dicts", whole(b"}" * 1_200_000), "LimitExceededError", tight=True),
        Item("many_marks", whole(b"(" * 1_200_000), "LimitExceededError", tight=True),
        Item("many_pops", whole(b"N" + b"N0" * 1_000_000), "LimitExceededError", tight=True),
        Item("memo_bomb", whole(b"N" + b"\x94" * 2_200_000), "LimitExceededError", tight=True),
        Item("memo_high_index", whole(b"Nr\xff\xff\xff\x7f0j\xff\xff\xff\x7f")),
        Item("memo_highest_index", whole(b"Nr\xff\xff\xff\xff")),
        Item("memo_sparse", whole(b"N" + b"".join(b"r" + struct.pack("<I", i * 977 + 5) for i in range(300_000)))),
        Item("memo_text_index", b"Np99999999999999999999\n."),
        Item("memo_text_long", b"Np" + b"9" * 1000 + b"\n.", "LimitExceededError"),
        Item("memo_negative", b"Np-1\n.", "CorruptFileError"),
        Item("memo_unknown", whole(b"h\x07"), "CorruptFileError"),
        Item("memo_unknown_long", whole(b"j\xff\xff\xff\x00"), "CorruptFileError"),
        Item(
            "set_copies",
            whole(
                b"("
                + b"".join(b"M" + struct.pack("<H", i) for i in range(30_000))
                + b"l\x94\x85\x940"
                + name("builtins", "set")
                + b"\x940"
                + b"h\x02h\x01R" * 20_000
            ),
            "LimitExceededError",
            tight=True,
        ),
        Item(
            "bytes_copies",
            whole(
                text("x" * 60_000)
                + b"\x940"
                + name("_codecs", "encode")
                + b"\x940"
                + text("latin1")
                + b"\x940"
                + b"h\x01h\x00h\x02\x86R" * 100_000
            ),
            "LimitExceededError",
            tight=True,
        ),
        Item(
            "bytearray_copies",
            whole(
                b"B"
                + struct.pack("<I", 60_000)
                + b"x" * 60_000
                + b"\x85\x940"
                + name("builtins", "bytearray")
                + b"\x940"
                + b"h\x01h\x00R" * 100_000
            ),
            "LimitExceededError",
            tight=True,
        ),
        Item(
            "dict_copies",
            whole(
                b"}("
                + b"".join(b"M" + struct.pack("<H", i) + b"N" for i in range(30_000))
                + b"u\x85\x940"
                + name("collections", "Counter")
                + b"\x940"
                + b"h\x01h\x00R" * 20_000
            ),
            "LimitExceededError",
            tight=True,
        ),
        Item(
            "key_compares",
            whole(text("k" * 60_000) + b"\x94" + text("k" * 60_000) + b"\x9400}h\x00Ns" + b"h\x01Ns" * 200_000),
            "LimitExceededError",
            tight=True,
        ),
        Item(
            "tuple_key_hashes",
            whole(b"(" + b"N" * 1000 + b"t\x940}" + b"h\x00Ns" * 300_000),
            "LimitExceededError",
            tight=True,
        ),
        Item("key_of_huge_int", whole(b"}\x8a\x64" + b"\x7f" * 100 + b"Ns"), "LimitExceededError"),
        Item("key_is_list", whole(b"}]Ns"), "CorruptFileError"),
        Item("key_is_dict", whole(b"}}Ns"), "CorruptFileError"),
        Item("key_is_ordered_dict", whole(b"}" + name("collections", "OrderedDict") + b")RNs"), "CorruptFileError"),
        Item("key_is_tuple_of_list", whole(b"}]\x85Ns"), "CorruptFileError"),
        Item("key_is_stub", whole(b"}" + name("a", "B") + b")\x81Ns")),
        Item("emoji_strings", whole(b"".join(text("x" * 60_000 + "\U0001f40d") for _ in range(100)))),
        Item("odd_dict", whole(b"}(Nu"), "CorruptFileError"),
    ]


def _numbers_and_lengths() -> list[Item]:
    return [
        Item("string_without_data", whole(b"X\x00\xca\x9a\x3bxyz"), "CorruptFileError"),
        Item("bytes_without_data", whole(b"B\xff\xff\xff\xffxyz"), "CorruptFileError"),
        Item("unicode8_2_63", whole(b"\x8d" + struct.pack("<Q", 1 << 63)), "CorruptFileError"),
        Item("unicode8_max", whole(b"\x8d" + b"\xff" * 8), "CorruptFileError"),
        Item("bytes8_2_63", whole(b"\x8e" + struct.pack("<Q", (1 << 63) - 1)), "CorruptFileError"),
        Item("bytearray8_2_40", whole(b"\x96" + struct.pack("<Q", 1 << 40)), "CorruptFileError"),
        Item("binstring_negative", whole(b"T\xff\xff\xff\xffabc"), "CorruptFileError"),
        Item("long4_negative", whole(b"\x8b\xff\xff\xff\xffabc"), "CorruptFileError"),
        Item("long4_without_data", whole(b"\x8b\xff\xff\xff\x7fabc"), "CorruptFileError"),
        Item("long4_huge", whole(b"\x8b" + struct.pack("<I", 10_000_000) + b"\x7f" * 10_000_000), "LimitExceededError"),
        Item("int_digits", b"I" + b"9" * 1_000_000 + b"\n.", "LimitExceededError"),
        Item("long_digits", b"L" + b"9" * 1_000_000 + b"L\n.", "LimitExceededError"),
        Item("int_4301_digits", b"I" + b"9" * 4301 + b"\n.", "LimitExceededError"),
        Item("int_not_a_number", b"Ieval\n.", "CorruptFileError"),
        Item("float_not_a_number", b"Fx\n.", "CorruptFileError"),
        Item("float_digits", b"F" + b"9" * 1_000_000 + b"\n.", "LimitExceededError"),
        Item("text_without_newline", b"V" + b"x" * 100_000, "CorruptFileError"),
        Item("string_without_quotes", b"Sabc\n.", "CorruptFileError"),
        Item("string_one_quote", b"S'\n.", "CorruptFileError"),
        Item("string_bad_escape", b"S'\\x'\n.", "CorruptFileError"),
        Item("string_open_escape", b"S'abc\\'\n.", "CorruptFileError"),
        Item("unicode_bad_escape", b"V\\uzzzz\n.", "CorruptFileError"),
        Item("unicode_surrogate", whole(b"X\x03\x00\x00\x00\xed\xa0\x80")),
        Item("unicode_not_utf8", whole(b"X\x02\x00\x00\x00\xff\xff"), "CorruptFileError"),
        Item("frame_lies", whole(b"\x95" + struct.pack("<Q", 1 << 40) + b"N"), "CorruptFileError"),
        Item("frame_max", whole(b"\x95" + b"\xff" * 8 + b"N"), "CorruptFileError"),
        Item("frame_in_frame", whole(b"\x95" + struct.pack("<Q", 11) + b"\x95" + struct.pack("<Q", 2) + b"N")),
        Item("protocol_6", b"\x80\x06N.", "UnsupportedFormatError"),
        Item("protocol_255", b"\x80\xffN.", "UnsupportedFormatError"),
        Item("next_buffer", whole(b"\x97", 5), "UnsupportedFormatError"),
        Item("readonly_buffer", whole(b"N\x98", 5), "UnsupportedFormatError"),
        Item("unknown_opcode", whole(b"\xff"), "CorruptFileError"),
        Item("empty", b"", "CorruptFileError"),
        Item("only_protocol", b"\x80\x02", "CorruptFileError"),
        Item("only_stop", b".", "CorruptFileError"),
        Item("stop_in_mark", whole(b"N("), "CorruptFileError"),
        Item("underflow", whole(b"N\x86"), "CorruptFileError"),
        Item("below_the_mark", whole(b"NN(\x86"), "CorruptFileError"),
        Item("tuple_without_mark", whole(b"Nt"), "CorruptFileError"),
        Item("list_without_mark", whole(b"Nl"), "CorruptFileError"),
        Item("obj_without_class", whole(b"(o"), "CorruptFileError"),
        Item("left_on_stack", whole(b"NNN")),
    ]


def one_of_each_opcode() -> bytes:
    """A valid pickle with every opcode but EXT and the out-of-band buffers, for cutting short at each byte."""
    return b"".join([
        b"\x80\x05\x95", struct.pack("<Q", 10), b"(N\x88\x89",
        b"I12\nI01\nJ\x01\x02\x03\x04K\x05M\x06\x07L8L\n\x8a\x02\x00\x01\x8b\x02\x00\x00\x00\x00\x01",
        b"F1.5\nG?\xf8\x00\x00\x00\x00\x00\x00",
        b"S'a\\x62'\nT\x02\x00\x00\x00abU\x02abB\x02\x00\x00\x00abC\x02ab",
        b"\x8e\x02\x00\x00\x00\x00\x00\x00\x00ab\x96\x02\x00\x00\x00\x00\x00\x00\x00ab",
        b"Vab\nX\x02\x00\x00\x00ab\x8c\x02ab\x8d\x02\x00\x00\x00\x00\x00\x00\x00ab",
        b"](NNeNa(Nl}K\x01Ns(K\x02Nu(K\x01Nd\x8f(N\x90(N\x91",
        b")N\x85NN\x86NNN\x87(Nt",
        b"Np0\nq\x01r\x02\x00\x00\x00\x94g0\nh\x01j\x02\x00\x00\x000(N12",
        b"ca\nB\n)R}bca\nB\n)\x81ca\nB\n)}\x92(ia\nB\n(ca\nB\no\x8c\x01a\x8c\x01B\x93Px\nNQ",
        b"l.",
    ])  # fmt: skip


def _truncated() -> list[Item]:
    data = one_of_each_opcode()
    return [Item(f"truncated_{cut:03}", data[:cut], "CorruptFileError") for cut in range(len(data))]


CORPUS: list[Item] = [
    *_calls(), *_names(), *_state(), *_bombs(), *_numbers_and_lengths(), *_truncated(),
]  # fmt: skip
