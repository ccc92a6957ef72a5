# SPDX-License-Identifier: Apache-2.0
"""Lazy transforms: values are those of numpy, names stay one to one, ties survive."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from building import checkpoint, raw_bytes, tensor, view
from tael.convert import transforms
from tael.convert.names import glob_regex, matcher
from tael.core.checkpoint import Checkpoint, Transform
from tael.core.node import Contiguous
from tael.core.problem import Problem
from tael.core.source import BytesSource
from tael.errors import TransformError, UnsupportedTensorError


def rows(*shape: int, kind: str = "float32") -> np.ndarray:
    return np.arange(np.prod(shape, dtype=int), dtype=kind).reshape(shape)


def tied() -> Checkpoint:
    return checkpoint(
        {"embed.weight": rows(4, 3), "layer.bias": rows(3), "steps": np.array(7, np.int64)},
        aliases={"head.weight": "embed.weight", "copy.weight": "embed.weight"},
    )


class Unreadable(BytesSource):
    """Fails the test when anything is read."""

    def read_into(self, offset: int, buffer: memoryview) -> None:
        raise AssertionError("a lazy transform has read tensor bytes")


def test_transforms_read_nothing() -> None:
    source = checkpoint({"a.w": rows(4, 6), "b.w": rows(4, 6)}, aliases={"c.w": "a.w"})
    blind = source.with_tensors(
        replace(t, data=replace(t.data, span=replace(t.data.span, source=Unreadable(bytes(96)))))
        for t in source.tensors.values()
    )
    transforms.chain(
        [
            transforms.select(["*"]),
            transforms.cast("BF16"),
            transforms.transpose(["a.w"]),
            transforms.stack(["b.w", "c.w"], "s"),
            transforms.split("s", ["x", "y"], axis=2),
            transforms.rename(["x=z"]),
            transforms.untie(),
            transforms.allow_expanded(False),
            transforms.refuse_ungathered(),
        ]
    )(blind)


# --- select, drop


def test_select_crosses_dots_and_keeps_order() -> None:
    found = transforms.select(["*.weight", "re:^layer"])(tied())
    assert list(found.tensors) == ["embed.weight", "layer.bias", "head.weight", "copy.weight"]


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("a.[0-3].w", "a.2.w", True),
        ("a.[!0-3].w", "a.2.w", False),
        ("a.?.w", "a.10.w", False),
        ("a[", "a[", True),
        ("a[]", "a[]", True),
        ("a[!]", "a[!]", True),
        ("a.w", "xa.w", False),
        ("a.w", "a.wx", False),
        ("a.w", "aXw", False),
        ("re:a.w", "xaXwx", True),
        ("*", "a\nb", True),
    ],
)
def test_patterns(pattern: str, name: str, matches: bool) -> None:
    assert transforms.matcher([pattern])(name) is matches


def test_an_empty_selection_names_what_is_near() -> None:
    with pytest.raises(TransformError, match=r"no tensor matches 'embd\.weight'\n.*embed\.weight"):
        transforms.select(["embd.weight"])(tied())


def test_a_broken_regex_is_said_to_be_one() -> None:
    with pytest.raises(TransformError, match="no regular expression"):
        transforms.select(["re:("])


def test_selecting_an_alias_without_its_owner_promotes_it() -> None:
    found = transforms.select(["head.weight", "copy.weight"])(tied())
    assert found.aliases == {"copy.weight": "head.weight"}
    assert raw_bytes(found.tensors["head.weight"]) == rows(4, 3).tobytes()


def test_an_owner_stays_one_behind_its_alias() -> None:
    source = tied()
    turned = source.with_tensors(reversed(source.tensors.values()))
    assert transforms.select(["*.weight"])(turned).aliases == source.aliases
    assert transforms.drop(["embed.weight"])(turned).aliases == {"head.weight": "copy.weight"}


def test_dropping_an_owner_promotes_its_first_alias() -> None:
    found = transforms.drop(["embed.*"])(tied())
    assert found.aliases == {"copy.weight": "head.weight"}


def test_dropping_nothing_or_everything_is_refused() -> None:
    with pytest.raises(TransformError, match="no tensor matches 'ema"):
        transforms.drop(["ema.*"])(tied())
    with pytest.raises(TransformError, match="every tensor would be dropped"):
        transforms.drop(["*"])(tied())


def test_problems_follow_the_selection() -> None:
    problems = [Problem("fatal", "torn", tensor="layer.bias"), Problem("fatal", "no shard 2"), Problem("note", "old")]
    source = replace(tied(), problems=problems)
    assert transforms.select(["layer.*"])(source).problems == problems
    assert transforms.drop(["layer.*"])(source).problems == problems[1:]


# --- rename


def test_stars_fill_stars_as_short_as_they_can() -> None:
    source = checkpoint({"model.layers.0.mlp.up.weight": rows(2)})
    found = transforms.rename(["model.layers.*.*=blk.*.ffn.*"])(source)
    assert list(found.tensors) == ["blk.0.ffn.mlp.up.weight"]


def test_rules_apply_in_order() -> None:
    source = checkpoint({"a.x": rows(1), "b.x": rows(2)})
    found = transforms.rename(["a.*=c.*", "s/x$/y/", "s#^(.)\\.#\\1/#"])(source)
    assert list(found.tensors) == ["c/y", "b/y"]


def test_a_substitution_is_of_the_first_match_or_with_g_of_all() -> None:
    source = checkpoint({"a.a.a": rows(1)})
    assert list(transforms.rename(["s/a/b/"])(source).tensors) == ["b.a.a"]
    assert list(transforms.rename(["s/a/b/g"])(source).tensors) == ["b.b.b"]


def test_n2_a_compile_wrapper_goes_wherever_it_stands() -> None:
    source = checkpoint(
        {"model._orig_mod.l.weight": rows(1), "_orig_mod.module.b": rows(2), "clean": rows(3)},
    )
    strip = transforms.rename_by(lambda name: name.replace("_orig_mod.", ""))
    assert list(strip(source).tensors) == ["model.l.weight", "module.b", "clean"]
    clash = checkpoint({"_orig_mod.w": rows(1), "w": rows(2)})
    with pytest.raises(TransformError, match=r"'_orig_mod\.w' and 'w' would both be named 'w'"):
        strip(clash)


def test_a_map_renames_all_at_once() -> None:
    source = checkpoint({"a": rows(1), "b": rows(2)})
    found = transforms.rename({"a": "b", "b": "a"})(source)
    assert {name: t.shape for name, t in found.tensors.items()} == {"b": (1,), "a": (2,)}


def test_a_name_longer_than_readers_take_is_refused() -> None:
    source = checkpoint({"a": rows(1), "b": rows(2)})
    assert "x" * 65_536 in transforms.rename({"a": "x" * 65_536})(source).tensors
    for rules in ([f"a={'x' * 65_537}"], {"a": "x" * 65_537}):
        with pytest.raises(TransformError, match=r"tensor 'a': the new name would have 65,537 characters"):
            transforms.rename(rules)(source)
    long = checkpoint({"x" * 65_537: rows(1), "b": rows(2)})  # opened with other limits
    assert "c" in transforms.rename({"b": "c"})(long).tensors


def test_renaming_moves_ties_and_problems_along() -> None:
    source = replace(tied(), problems=[Problem("warning", "odd", tensor="embed.weight")])
    found = transforms.rename(["embed.*=wte.*"])(source)
    assert found.aliases == {"head.weight": "wte.weight", "copy.weight": "wte.weight"}
    assert found.problems == [Problem("warning", "odd", tensor="wte.weight")]


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("nothing", "is no rule"),
        ("=b", "is no rule"),
        ("a=", "is no rule"),
        ("a.*=b.*.*", "more stars on the right"),
        ("s/(/x/", "no regular expression"),
        ("s/a/\\1/", "replacement does not fit"),
        ("absent=b", "changes no name"),
        ({"absent": "b"}, "there is no tensor 'absent'"),
        ("s/.*//", "new name would be empty"),
    ],
)
def test_bad_rules(rule: str | dict[str, str], message: str) -> None:
    with pytest.raises(TransformError, match=message):
        transforms.rename(rule if isinstance(rule, dict) else [rule])(tied())


NAME = st.text("ab.", min_size=1, max_size=4)


@given(st.lists(NAME, min_size=1, max_size=8, unique=True), st.dictionaries(NAME, NAME, max_size=8))
def test_renaming_is_one_to_one_or_refused(names: list[str], table: dict[str, str]) -> None:
    source = checkpoint({name: np.array([number]) for number, name in enumerate(names)})
    wanted = [table.get(name, name) for name in names]
    if len(set(wanted)) < len(wanted):
        with pytest.raises(TransformError, match="would both be named"):
            transforms.rename_by(lambda name: table.get(name, name))(source)
    else:
        found = transforms.rename_by(lambda name: table.get(name, name))(source)
        assert {name: int(t.numpy()[0]) for name, t in found.tensors.items()} == {
            name: number for number, name in enumerate(wanted)
        }


# --- cast


def test_cast_touches_floats_only() -> None:
    source = checkpoint(
        {
            "f": rows(5),
            "i": rows(5, kind="int32"),
            "b": np.array([True, False]),
            "c": np.array([1j], np.complex64),
            "q": ("Q8_0", (1, 32), bytes(34)),
        }
    )
    found = transforms.cast("bf16")(source)
    assert [t.dtype.name for t in found.tensors.values()] == ["BF16", "I32", "BOOL", "C64", "Q8_0"]
    assert raw_bytes(found.tensors["f"]) == rows(5).astype(ml_dtypes.bfloat16).tobytes()
    assert all(found.tensors[name] is source.tensors[name] for name in "ibcq")


def test_cast_keeps_ties_and_only_means_the_whole_tie() -> None:
    found = transforms.cast("F16", only=["head.*"])(tied())
    assert found.aliases == tied().aliases
    assert {t.dtype.name for t in found.tensors.values() if t.name.endswith("weight")} == {"F16"}
    assert found.tensors["layer.bias"].dtype.name == "F32"
    assert raw_bytes(found.tensors["copy.weight"]) == rows(4, 3).astype(np.float16).tobytes()


def test_cast_saturates_on_request() -> None:
    big = checkpoint({"w": np.array([1e9, -1e9], np.float32)})
    assert np.isinf(transforms.cast("F16")(big).tensors["w"].numpy()).all()
    assert transforms.cast("F16", saturate=True)(big).tensors["w"].numpy().tolist() == [65504, -65504]


def test_cast_refuses_other_kinds_and_ragged_bytes() -> None:
    with pytest.raises(TransformError, match="cannot cast to I8"):
        transforms.cast("I8")
    with pytest.raises(UnsupportedTensorError, match=r"tensor 'f'.*3 elements of F4_E2M1"):
        transforms.cast("F4_E2M1")(checkpoint({"f": rows(3)}))
    with pytest.raises(TransformError, match="no tensor matches"):
        transforms.cast("F16", only=["x"])(tied())


# --- axes


def test_permute_and_transpose() -> None:
    source = checkpoint({"w": rows(2, 3, 4), "v": rows(2, 3)})
    assert np.array_equal(
        transforms.permute(["w"], [2, 0, 1])(source).tensors["w"].numpy(), rows(2, 3, 4).transpose(2, 0, 1)
    )
    assert np.array_equal(transforms.transpose(["v"])(source).tensors["v"].numpy(), rows(2, 3).T)
    with pytest.raises(TransformError, match=r"tensor 'w'.*no permutation"):
        transforms.permute(["w"], [0, 0, 1])(source)
    with pytest.raises(TransformError, match="no tensor matches"):
        transforms.transpose(["nothing"])(source)
    with pytest.raises(TransformError, match="of 1 axes cannot be transposed"):
        transforms.transpose(["b"])(checkpoint({"b": rows(3)}))


def test_a_tie_that_is_transposed_in_part_becomes_two() -> None:
    found = transforms.transpose(["head.*", "copy.*"])(tied())
    assert found.aliases == {"copy.weight": "head.weight"}
    assert np.array_equal(found.tensors["copy.weight"].numpy(), rows(4, 3).T)
    assert np.array_equal(found.tensors["embed.weight"].numpy(), rows(4, 3))


# --- stack, unstack, split


def experts() -> Checkpoint:
    return checkpoint(
        {f"layers.{i}.experts.{k}.up": rows(2, 3) + 10 * i + 100 * k for k in (1, 0, 2) for i in (0, 1)}
        | {"norm": rows(3)}
    )


def test_l2_experts_stack_by_number_and_come_back() -> None:
    found = transforms.stack("layers.*.experts.{}.up", "layers.*.up")(experts())
    assert list(found.tensors) == ["layers.0.up", "layers.1.up", "norm"]
    expected = np.stack([rows(2, 3) + 10 + 100 * k for k in range(3)])
    assert np.array_equal(found.tensors["layers.1.up"].numpy(), expected)
    back = transforms.unstack("layers.*.up", "layers.*.experts.{}.up")(found)
    assert sorted(back.tensors) == sorted(experts().tensors)
    assert all(np.array_equal(t.numpy(), experts().tensors[name].numpy()) for name, t in back.tensors.items())


def test_l2_a_missing_expert_is_refused() -> None:
    torn = transforms.drop(["layers.1.experts.1.up"])(experts())
    with pytest.raises(TransformError, match=r"tensor 'layers.1.up'.*piece 1 of 2 or more is missing"):
        transforms.stack("layers.*.experts.{}.up", "layers.*.up")(torn)


def test_stacking_listed_names_along_any_axis() -> None:
    source = checkpoint({"a": rows(2, 3), "b": rows(2, 3) + 9})
    for axis in range(3):
        found = transforms.stack(["b", "a"], "s", axis=axis)(source)
        assert np.array_equal(found.tensors["s"].numpy(), np.stack([rows(2, 3) + 9, rows(2, 3)], axis))
    with pytest.raises(TransformError, match="there is no tensor 'x'"):
        transforms.stack(["a", "x"], "s")(source)
    with pytest.raises(TransformError, match="twice"):
        transforms.stack(["a", "a"], "s")(source)
    with pytest.raises(TransformError, match=r"tensor 's'"):
        transforms.stack(["a", "b"], "s")(checkpoint({"a": rows(2), "b": rows(3)}))
    with pytest.raises(TransformError, match="this name"):
        transforms.stack(["a", "b"], "c")(checkpoint({"a": rows(2), "b": rows(2), "c": rows(2)}))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_split_cuts_what_numpy_cuts(axis: int) -> None:
    source = checkpoint({"m.qkv.w": rows(6, 6, 6)})
    found = transforms.split("*.qkv.w", ["*.q", "*.k", "*.v"], axis=axis, sizes=[1, 3, 2])(source)
    assert list(found.tensors) == ["m.q", "m.k", "m.v"]
    for t, part in zip(found.tensors.values(), np.split(rows(6, 6, 6), [1, 4], axis), strict=True):
        assert np.array_equal(t.numpy(), part)


def test_rows_are_split_without_an_op() -> None:
    found = transforms.split("w", ["a", "b"])(checkpoint({"w": rows(4, 2), "t": rows(1)}))
    assert all(isinstance(found.tensors[name].data, Contiguous) for name in "ab")
    stacked = transforms.unstack("w", "w.{}")(checkpoint({"w": rows(4, 2)}))
    assert all(isinstance(t.data, Contiguous) for t in stacked.tensors.values())


def test_quantized_rows_split_at_blocks() -> None:
    raw = bytes(range(34)) * 6
    source = checkpoint({"q": ("Q8_0", (3, 64), raw)})
    found = transforms.split("q", ["a", "b"], axis=1)(source)
    assert raw_bytes(found.tensors["b"]) == bytes(range(34)) * 3
    with pytest.raises(UnsupportedTensorError, match="multiples of 32"):
        transforms.split("q", ["a", "b"], axis=1, sizes=[16, 48])(source)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"axis": 2}, "no axis 2"),
        ({"sizes": [1, 1]}, "do not make 2 parts"),
        ({"sizes": [-1, 5]}, "do not make 2 parts"),
        ({"axis": 1}, "does not split in 2 equal parts"),
    ],
)
def test_bad_splits(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(TransformError, match=message):
        transforms.split("w", ["a", "b"], **arguments)(checkpoint({"w": rows(4, 3)}))  # type: ignore[arg-type]


def test_splitting_an_owner_frees_its_aliases() -> None:
    found = transforms.split("embed.weight", ["e.0", "e.1"])(tied())
    assert found.aliases == {"copy.weight": "head.weight"}


# --- ties


def test_s2_dedupe_ties_equal_bytes_of_equal_type_and_shape() -> None:
    source = checkpoint(
        {
            "shared.weight": rows(3, 2),
            "other": rows(3, 2) + 1,
            "encoder.embed_tokens.weight": rows(3, 2),
            "flat": rows(6),
            "bits": rows(3, 2).view(np.int32),
            "empty": rows(0),
            "empty2": rows(0),
        },
        aliases={"tied": "encoder.embed_tokens.weight"},
    )
    found = transforms.dedupe()(source)
    assert found.aliases == {"encoder.embed_tokens.weight": "shared.weight", "tied": "shared.weight"}
    assert list(found.tensors) == list(source.tensors)


def test_untie_makes_owners_of_all() -> None:
    found = transforms.untie()(tied())
    assert found.aliases == {}
    assert raw_bytes(found.tensors["head.weight"]) == rows(4, 3).tobytes()


# --- damage


def test_skip_damaged_drops_what_its_checksum_denies() -> None:
    good, bad = tensor("good", rows(8), check=True), tensor("bad", rows(8), check=True)
    bad.checks[0].crc32 ^= 1
    source = checkpoint(
        {"good": good, "bad": bad, "gone": tensor("gone", rows(2), damaged="beyond the end")},
        aliases={"bad.too": "bad"},
        problems=[
            Problem("fatal", "beyond the end", tensor="gone"),
            Problem("fatal", "not in any shard", tensor="absent"),
            Problem("fatal", "is missing", where="shard-2"),
        ],
    )
    found = transforms.skip_damaged()(source)
    assert list(found.tensors) == ["good"]
    assert not found.fatal()
    (loss,) = found.losses
    assert (loss.kind, loss.count) == ("damaged", 5)
    assert "bad, gone, bad.too and 2 more" in loss.detail
    (alone,) = transforms.skip_damaged()(replace(source, tensors={"good": good})).losses
    assert "gone, absent, shard-2: is missing" in alone.detail


def test_skip_damaged_leaves_the_intact_alone_and_refuses_when_nothing_is_left() -> None:
    source = checkpoint({"a": tensor("a", rows(3), check=True)})
    assert transforms.skip_damaged()(source).tensors == source.tensors
    assert transforms.skip_damaged()(source).losses == []
    with pytest.raises(TransformError, match="no tensor is intact"):
        transforms.skip_damaged()(checkpoint({"a": tensor("a", rows(3), damaged="torn")}))


def test_a_shared_checksum_that_fails_is_read_once() -> None:
    class Counting(BytesSource):
        reads = 0

        def read_into(self, offset: int, buffer: memoryview) -> None:
            self.reads += 1
            super().read_into(offset, buffer)

    whole = tensor("whole", rows(64), check=True)
    whole.checks[0].crc32 ^= 1
    source = Counting(rows(64).tobytes())
    whole.checks[0].span = replace(whole.checks[0].span, source=source)
    parts = {f"p{k}": replace(whole, info=replace(whole.info, name=f"p{k}")) for k in range(20)}
    with pytest.raises(TransformError, match="no tensor is intact"):
        transforms.skip_damaged()(checkpoint(parts))
    assert source.reads == 1


def test_expanded_views_need_leave() -> None:
    storage = rows(3)
    node = view(storage, BytesSource(storage.tobytes()), np.broadcast_to(storage, (1000, 3)))
    source = checkpoint({"wide": node, "plain": rows(2)})
    with pytest.raises(TransformError, match=r"wide: a view that repeats its storage.*12,000 bytes"):
        transforms.allow_expanded(False)(source)
    found = transforms.allow_expanded(True)(source)
    assert [(loss.kind, loss.count) for loss in found.losses] == [("expand", 1)]
    assert np.array_equal(found.tensors["wide"].numpy(), np.broadcast_to(storage, (1000, 3)))
    assert transforms.allow_expanded(False)(checkpoint({"plain": rows(2)})).losses == ()


def test_a_channels_last_view_is_not_expanded_and_packs() -> None:
    storage = rows(2, 4, 4, 3)
    array = storage.transpose(0, 3, 1, 2)
    source = checkpoint({"s4": view(storage, BytesSource(storage.tobytes()), array)})
    packed = transforms.allow_expanded(False)(source).tensors["s4"]
    assert packed.shape == (2, 3, 4, 4)
    assert raw_bytes(packed) == np.ascontiguousarray(array).tobytes()


def test_s3_placeholders_of_weights_that_were_not_gathered_are_refused() -> None:
    empty = {f"w{k}": rows(0) for k in range(3)}
    with pytest.raises(TransformError, match="all 3 tensors are empty"):
        transforms.refuse_ungathered()(checkpoint(empty))
    fine = checkpoint({**empty, "b": rows(1)})
    assert transforms.refuse_ungathered()(fine) is fine


@pytest.mark.parametrize("use", [lambda: transforms.select(["[z-a]"]), lambda: transforms.rename(["[z-a]=b"])])
def test_a_broken_glob_is_called_a_pattern(use: Callable[[], Transform]) -> None:
    with pytest.raises(TransformError, match=r"'\[z-a\]' is no pattern: bad character range"):
        use()(tied())


def test_globs_take_the_shortest_and_do_not_go_back() -> None:
    slow = lambda pattern: glob_regex(pattern).replace("(?>(.*?)", "(?:(.*?)")  # noqa: E731
    texts = ["".join(letters) for n in range(7) for letters in itertools.product("ab", repeat=n)]
    for pattern in ("*a*b", "**a", "a*b*a*", "*?a*[!a]*b", "*ab*ba*", "a", "?*", "*a*a*a"):
        for text in texts:
            found, wanted = (re.fullmatch(make(pattern), text) for make in (glob_regex, slow))
            assert (found and found.groups()) == (wanted and wanted.groups()), (pattern, text)
    assert not matcher(["*norm*weight*norm*bias"])("norm.weight" * 5900)
