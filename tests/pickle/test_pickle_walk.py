# SPDX-License-Identifier: Apache-2.0
"""Leaves and their paths, of results that are nested, shared, cyclic, or built to make a walk endless."""

from __future__ import annotations

import time
from typing import Any

import pytest
from malicious import name, text, whole

from tael.core.limits import Limits
from tael.errors import LimitExceededError
from tael.pickle import Call, Cycle, Global, NumpyArray, Reader, StubDict, load, module_items, walk
from tael.pickle.walk import check_depth


def stub(state: object = None, **parts: Any) -> Call:
    made = Call(Global("a", "B"), state=state)
    for part, value in parts.items():
        setattr(made, part, value)
    return made


def test_paths_lead_through_dicts_lists_and_tuples() -> None:
    value = {"a": [1, (2, {"b.c": 3})], 5: None, ("x", 1): "y", "empty": {}, "nothing": [], "set": {1}}
    assert list(walk(value)) == [
        (("a", 0), 1), (("a", 1, 0), 2), (("a", 1, 1, "b.c"), 3), ((5,), None), ((("x", 1),), "y"), (("empty",), {}),
        (("nothing",), []), (("set",), {1}),
    ]  # fmt: skip


def test_a_leaf_alone_has_the_empty_path() -> None:
    assert list(walk(5)) == [((), 5)]


def test_objects_give_attributes_items_and_arguments() -> None:
    made = stub({"x": 1}, dictitems=[("k", 2)], listitems=[3], args=(4,), kwargs={"n": 5})
    assert list(walk({"o": made})) == [
        (("o", "x"), 1), (("o", "k"), 2), (("o", 0), 3), (("o", "(0)"), 4), (("o", "(n)"), 5),
    ]  # fmt: skip
    assert list(walk(stub(({"x": 1}, {"slot": 2})))) == [(("x",), 1), (("slot",), 2)]
    assert list(walk(stub((1, 2)))) == [(("state", 0), 1), (("state", 1), 2)]
    chain = Call(stub({"inside": 1}), (2,))
    assert list(walk(chain)) == [(("(0)",), 2), (("()", "inside"), 1)]


def test_object_arrays_are_entered() -> None:
    array = NumpyArray()
    array.data = [{"a": 1}, 2]
    assert list(walk({"w": array})) == [(("w", 0, "a"), 1), (("w", 1), 2)]


def module(parameters: Any, buffers: Any = None, modules: Any = None, transient: Any = frozenset()) -> Call:
    return stub({
        "training": True, "_parameters": parameters, "_buffers": buffers or {}, "_modules": modules or {},
        "_non_persistent_buffers_set": transient,
    })  # fmt: skip


def test_modules_give_their_state_dict() -> None:
    inner = module({"weight": 1, "bias": None}, {"mean": 2, "tmp": 3}, transient={"tmp"})
    outer = module(StubDict("collections.OrderedDict"), {"scale": 4}, {"layer": inner, "none": None, "tied": inner})
    assert [(".".join(path), leaf) for path, leaf in walk(outer)] == [
        ("scale", 4), ("layer.weight", 1), ("layer.mean", 2), ("tied.weight", 1), ("tied.mean", 2),
    ]  # fmt: skip
    assert [key for key, _ in module_items(inner)] == ["weight", "mean"]


def test_a_graph_module_has_its_attributes_in_an_argument() -> None:
    attributes = {"_parameters": {}, "_buffers": {}, "_modules": {"0": module({"weight": 1})}, "_code": "def forward"}
    graph = Call(Global("torch.fx.graph_module", "reduce_graph_module"), (attributes, "import torch"))
    assert list(walk(graph)) == [(("0", "weight"), 1)]


def test_shared_containers_are_visited_at_each_place() -> None:
    shared = [1, 2]
    assert [path for path, _ in walk([shared, shared])] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_cycles_end() -> None:
    value: dict[str, Any] = {"a": {"b": []}}
    value["a"]["b"].append(value["a"])
    value["me"] = value
    assert list(walk(value)) == [(("a", "b", 0), Cycle(("a",))), (("me",), Cycle(()))]
    check_depth(value, Limits())


@pytest.mark.parametrize("kind", ["list", "stub", "module", "hidden"])
def test_endless_walks_are_refused(kind: str) -> None:
    value: Any = [1, 2]
    for _ in range(100):
        if kind == "list":
            value = [value, value]
        elif kind == "stub":
            value = stub({"a": value, "b": value})
        elif kind == "module":
            value = module({}, modules={"a": value, "b": value})
    if kind == "hidden":  # nothing to show, a million times over
        value = [module({str(index): None for index in range(3000)})] * 3000
    check_depth(value, Limits())
    start = time.process_time()
    with pytest.raises(LimitExceededError):
        for _ in walk(value, limits=Limits(pickle_objects=500_000)):
            pass
    assert time.process_time() - start < 10


def test_long_paths_cost_more() -> None:
    value: Any = list(range(2000))
    for _ in range(300):
        value = [value]
    list(walk(value, limits=Limits(pickle_objects=60_000)))
    with pytest.raises(LimitExceededError):
        list(walk(value, limits=Limits(pickle_objects=20_000)))


@pytest.mark.parametrize(
    "body",
    [
        b"]" * 50 + b"a" * 49,
        b")" + b"\x85" * 50,
        b"}" + b"K\x01}" * 50 + b"s" * 50,
        name("a", "B") + b")R" + b")R" * 50,
        name("a", "B") + b"\x940" + b"h\x00)\x81" * 50 + b"b" * 49,
        name("a", "B") + b"\x940" + b"h\x00)\x81" * 50 + b"a" * 49,
        name("collections", "OrderedDict") + b"\x940" + b"h\x00)R" * 50 + b"b" * 49,
        b"N" + b"Q" * 50,
        # deep only through a child that was filled after it was put in place
        b"]\x94]\x94a0h\x01" + b"]" * 50 + b"a" * 50 + b"0h\x00",
    ],
)
def test_depth_is_bounded_whatever_the_containers_are(body: bytes) -> None:
    load(Reader(whole(body)), limits=Limits(pickle_depth=60))
    with pytest.raises(LimitExceededError):
        load(Reader(whole(body)), limits=Limits(pickle_depth=40))


def test_depth_is_the_longest_way_down_not_the_first() -> None:
    deep: Any = []
    for _ in range(50):
        deep = [deep]
    value = [deep, [[[[[[[[[[deep]]]]]]]]]]]
    check_depth(value, Limits(pickle_depth=63))
    with pytest.raises(LimitExceededError):
        check_depth(value, Limits(pickle_depth=55))


def test_depth_of_what_is_shared_a_million_times_is_quick() -> None:
    body = b"]\x94" + b"".join(b"](" + b"h" + bytes([level]) + b"h" + bytes([level]) + b"e\x94" for level in range(200))
    assert len(load(Reader(whole(body))).value) == 2


def test_names_keep_their_dots_and_order() -> None:
    data = whole(b"}(" + b"".join(text(f"layer.{index}") + b"K\x01" for index in (2, 0, 1)) + b"u")
    assert [path for path, _ in walk(load(Reader(data)).value)] == [("layer.2",), ("layer.0",), ("layer.1",)]
