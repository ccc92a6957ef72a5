# SPDX-License-Identifier: Apache-2.0
"""GGML files, laid out by tests/ggml_files.py; that their like is read by real programs is in test_ggml_peers.py."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import building
import ggml_files as made
import tael
from tael.cli import app
from tael.convert import plan_conversion
from tael.convert.execute import execute
from tael.core.checkpoint import Checkpoint
from tael.core.dtypes import DTYPES
from tael.core.limits import DEFAULT, Limits
from tael.core.location import locate
from tael.core.tensor import Tensor
from tael.errors import LimitExceededError, TaelError, UnsupportedFormatError, UnsupportedTensorError
from tael.formats import ggml
from tael.formats.detect import detect
from tael.formats.ggml.records import TYPES
from tael.testing import ReaderConformance

VECTORS = Path(__file__).parent.parent / "vectors" / "ggml"


def opened(folder: Path, data: bytes, name: str = "model.bin", limits: Limits = DEFAULT) -> Checkpoint:
    path = folder / name
    path.write_bytes(data)
    return ggml.open(locate(path), limits)


def llama_file(items: list[made.Record], version: int = 3) -> bytes:
    """The smallest LLaMA header before `items`."""
    fields = made.numbers(3, 32, 32, 1, 1, 32, 1)
    return made.file("ggjt", version, fields, made.words([b"", b"", b""], [0.0, 0.0, 0.0]), items)


class TestConformance(ReaderConformance):
    format = ggml.FORMAT

    def cases(self) -> Iterator[Checkpoint]:
        """No scalars: a record has 1 to 4 dimensions."""
        for case in super().cases():
            held = {t.name: t for t in case.owners if 1 <= len(t.shape) <= 4}
            yield replace(case, tensors=held)

    def write(self, checkpoint: Checkpoint, path: Path) -> Path:
        items = []
        for tensor in checkpoint.owners:
            kind, shape = tensor.dtype.name, tensor.shape
            if kind in ("U8", "I8"):  # bytes for their own sake
                kind, shape = "F32", (tensor.nbytes // 4,)
            items.append((tensor.name, kind, shape, building.raw_bytes(tensor)))
        path.write_bytes(llama_file(items))
        return path

    def stated(self, checkpoint: Checkpoint, path: Path) -> set[str]:
        return {"alias", "metadata"}


# --- layouts

MADE = {
    "llama": (made.llama(), "llama", "llama"),
    "gpt2": (made.gpt2(head=True), "gpt2", "gpt2"),
    "starcoder": (made.starcoder(), "gpt2", "starcoder"),
    "gptneox": (made.gptneox(), "gptneox", "gptneox"),
    "stablelm of the first days": (made.gptneox(parallel=None), "gptneox", "gptneox"),
    "gptj": (made.gptj(), "gptj", "gptj"),
    "mpt": (made.mpt(), "mpt", "mpt"),
    "replit": (made.replit(), "replit", "mpt"),
    "bloom": (made.bloom(), "bloom", "bloom"),
}


@pytest.mark.parametrize("family", MADE)
def test_the_layout_is_found_by_what_fits(family: str, tmp_path: Path) -> None:
    data, layout, architecture = MADE[family]
    checkpoint = opened(tmp_path, data)
    assert checkpoint.extras["ggml.header"]["layout"] == layout
    assert checkpoint.metadata["general.architecture"] == architecture
    assert all(name.startswith(("blk.0.", "token_embd", "output", "position_embd")) for name in checkpoint.tensors)
    assert checkpoint.extras["ggml.names"].keys() == checkpoint.tensors.keys()
    assert len(set(checkpoint.extras["ggml.names"].values())) == len(checkpoint.tensors)
    assert {problem.severity for problem in checkpoint.problems} == {"note"}
    assert not any("stay as they are" in problem.what for problem in checkpoint.problems)
    assert detect(locate(tmp_path / "model.bin")).id == "ggml"


def test_a_llama_has_what_gguf_wants(tmp_path: Path) -> None:
    checkpoint = opened(tmp_path, made.llama(kind="Q4_0"))
    metadata = dict(checkpoint.metadata)
    tokens, types = metadata.pop("tokenizer.ggml.tokens"), metadata.pop("tokenizer.ggml.token_type")
    assert metadata.pop("tokenizer.ggml.scores")[-2:] == [-13.0, -14.0]
    assert metadata == {
        "general.architecture": "llama",
        "general.file_type": 2,
        "general.quantization_version": 2,
        "llama.context_length": 2048,
        "llama.embedding_length": 32,
        "llama.block_count": 1,
        "llama.feed_forward_length": 96,
        "llama.attention.head_count": 2,
        "llama.attention.head_count_kv": 2,
        "llama.rope.dimension_count": 16,
        "llama.attention.layer_norm_rms_epsilon": 5e-6,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    assert tokens[:5] == ["<unk>", "<s>", "</s>", "<0x00>", "<0x01>"]
    assert (tokens[259], types[259]) == ("\u2581t", 1)
    assert (types[:5], types[258]) == ([2, 3, 3, 6, 6], 6)
    assert checkpoint.extras["ggml.names"]["blk.0.ffn_gate.weight"] == "layers.0.feed_forward.w1.weight"
    assert checkpoint.tensors["blk.0.ffn_down.weight"].shape == (32, 96)


def test_keys_of_fewer_heads_are_seen_in_the_tensors(tmp_path: Path) -> None:
    data = made.llama(size=made.Size(64, 4))
    whole = opened(tmp_path, data)
    assert whole.metadata["llama.attention.head_count_kv"] == 4
    items = [("layers.0.attention.wk.weight", "F32", (32, 64), bytes(8192))]
    fields = made.numbers(3, 64, 32, 4, 1, 16, 0)
    grouped = made.file("ggjt", 3, fields, made.words([b"", b"", b""], [0.0] * 3), items)
    metadata = opened(tmp_path, grouped).metadata
    assert metadata["llama.attention.head_count_kv"] == 2
    assert metadata["llama.attention.layer_norm_rms_epsilon"] == 1e-5  # only LLaMA 2 has it


def test_gpt2_has_what_gguf_wants(tmp_path: Path) -> None:
    metadata = opened(tmp_path, made.gpt2("Q4_0")).metadata
    keys = {key: value for key, value in metadata.items() if key.startswith("gpt2.")}
    assert keys == {
        "gpt2.context_length": 64,
        "gpt2.embedding_length": 32,
        "gpt2.block_count": 1,
        "gpt2.feed_forward_length": 128,
        "gpt2.attention.head_count": 2,
        "gpt2.attention.layer_norm_epsilon": 1e-5,
    }
    assert metadata["tokenizer.ggml.model"] == "gpt2"
    assert metadata["tokenizer.ggml.pre"] == "gpt-2"
    assert metadata["tokenizer.ggml.tokens"][32] == "Ġ"
    assert metadata["tokenizer.ggml.eos_token_id"] == metadata["tokenizer.ggml.bos_token_id"] == 266
    assert metadata["tokenizer.ggml.token_type"][266] == 3


def test_what_only_some_families_have(tmp_path: Path) -> None:
    neox = opened(tmp_path, made.gptneox(parallel=0)).metadata
    assert (neox["gptneox.use_parallel_residual"], neox["gptneox.rope.dimension_count"]) == (False, 8)
    first = opened(tmp_path, made.gptneox(parallel=None))
    assert first.metadata["gptneox.use_parallel_residual"] is True
    assert any("parallel residuals" in problem.what for problem in first.problems)
    mpt = opened(tmp_path, made.mpt(clip=6.0)).metadata
    assert (mpt["mpt.attention.max_alibi_bias"], mpt["mpt.attention.clamp_kqv"]) == (8.0, 6.0)
    replit = opened(tmp_path, made.replit()).metadata
    assert replit["tokenizer.ggml.model"] == "t5"
    assert "mpt.attention.clamp_kqv" not in replit
    assert any("does not run it" in problem.what for problem in opened(tmp_path, made.gptj()).problems)


@pytest.mark.parametrize(("kind", "version"), [("F32", 3), ("F16", 3), ("Q8_0", 3), ("Q8_0", 2), ("Q4_0", 1)])
def test_neox_rows_go_from_heads_to_roles(kind: str, version: int, tmp_path: Path) -> None:
    """[head, role, row] in the file, [role, head, row] in GGUF; whole rows, so the blocks stay."""
    size = made.Size(64, 4)
    old = opened(tmp_path, made.gptneox(kind, version, size))
    today = made.gptneox(kind, 3, size) if version < 3 else (tmp_path / "model.bin").read_bytes()
    for name in ("weight", "bias"):
        tensor = old.tensors[f"blk.0.attn_qkv.{name}"]
        spelled = f"gpt_neox.layers.0.attention.query_key_value.{name}".encode()
        start = today.index(spelled) + len(spelled)
        rows = np.frombuffer(today[start:], np.uint8, tensor.nbytes).reshape(4, 3, 16, -1)
        assert building.raw_bytes(tensor) == rows.transpose(1, 0, 2, 3).tobytes()


def test_rows_of_no_neox_shape_stay(tmp_path: Path) -> None:
    names = [f"gpt_neox.layers.0.attention.query_key_value.{x}" for x in ("weight", "bias")]
    for shape, kind in [((7, 4), "F32"), ((0, 4), "F32"), ((96, 0), "F32"), ((192,), "Q8_0"), ((7,), "F32")]:
        raw = bytes(number % 251 for number in range(DTYPES[kind].nbytes(shape)))
        records = [(name, kind, shape, raw) for name in names]
        fields = made.numbers(3, 64, 32, 2, 1, 8, 1, 2001)
        checkpoint = opened(tmp_path, made.file("ggml", None, fields, made.words([b"a", b"b", b"c"]), records))
        assert [building.raw_bytes(tensor) for tensor in checkpoint.tensors.values()] == [raw, raw]


def test_gpt2_files_of_2022_are_noticed(tmp_path: Path) -> None:
    fields = made.numbers(1, 8, 4, 1, 1, 0)
    items = [("model/h0/attn/c_attn/w", "F32", (4, 12), bytes(192))]
    problems = opened(tmp_path, made.file("ggml", None, fields, made.numbers(1) + made.words([b"a"]), items)).problems
    assert any("stored transposed" in problem.what for problem in problems)


# --- versions and blocks


@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0"])
@pytest.mark.parametrize(("magic", "version"), [("ggml", None), ("ggmf", 1), ("ggjt", 1), ("ggjt", 2)])
def test_old_blocks_become_those_of_today(kind: str, magic: str, version: int | None, tmp_path: Path) -> None:
    old = opened(tmp_path, made.llama(magic, version, kind), "old.bin")
    new = opened(tmp_path, made.llama("ggjt", 3, kind), "new.bin")
    assert {n: (t.dtype, building.raw_bytes(t)) for n, t in old.tensors.items()} == {
        n: (t.dtype, building.raw_bytes(t)) for n, t in new.tensors.items()
    }
    assert any("9 tensors have F32 scales" in problem.what for problem in old.problems)
    assert not any("F32 scales" in problem.what for problem in new.problems)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_the_examples_say_the_version_of_blocks_in_the_file_type(version: int, tmp_path: Path) -> None:
    old, new = opened(tmp_path, made.gpt2("Q8_0", version), "old.bin"), opened(tmp_path, made.gpt2("Q8_0"), "new.bin")
    for name, tensor in old.tensors.items():
        assert building.raw_bytes(tensor) == building.raw_bytes(new.tensors[name])
    assert old.metadata["general.file_type"] == 7


def test_unversioned_files_get_scores_from_the_order_of_words(tmp_path: Path) -> None:
    old, new = opened(tmp_path, made.llama("ggml", None), "old.bin"), opened(tmp_path, made.llama(), "new.bin")
    assert old.metadata["tokenizer.ggml.scores"][:260] == [0.0] * 259 + [-1.0]
    assert old.metadata["tokenizer.ggml.tokens"] == new.metadata["tokenizer.ggml.tokens"]
    assert any("no scores" in problem.what for problem in old.problems)


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (b"lmgg", "ggml (unversioned) file"),
        (b"fmgg\1\0\0\0", "ggmf v1 file"),
        *((b"tjgg" + bytes([v, 0, 0, 0]), f"ggjt v{v} file") for v in (1, 2, 3)),
    ],
)
def test_z1_inspect_names_magic_and_version(
    head: bytes, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    version = head[4] if len(head) > 4 else None
    whole = made.llama({b"l": "ggml", b"f": "ggmf", b"t": "ggjt"}[head[:1]], version)
    assert whole.startswith(head)
    path = tmp_path / "whole.bin"
    path.write_bytes(whole)
    assert app.main(["inspect", str(path)]) == 0
    assert said in capsys.readouterr().out
    with pytest.raises(TaelError, match=said.replace("(", r"\(").replace(")", r"\)").removesuffix(" file")):
        opened(tmp_path, head + b"\1\2", "cut.bin")  # a header and nothing else


def test_unknown_versions_are_said(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedFormatError, match="a ggjt file of version 4: known are 1, 2, 3"):
        opened(tmp_path, b"tjgg\4\0\0\0" + bytes(100))
    with pytest.raises(UnsupportedFormatError, match="a ggmf file of version 2"):
        opened(tmp_path, b"fmgg\2\0\0\0" + bytes(100))


@pytest.mark.parametrize(("number", "name"), [(4, "Q4_2"), (5, "Q4_3")])
def test_types_that_ggml_dropped_are_refused_by_name(number: int, name: str, tmp_path: Path) -> None:
    data = bytearray(llama_file([("output.weight", "Q4_0", (32,), bytes(18))], 1))
    at = data.index(b"output.weight")
    data[at - 8 : at - 4] = struct.pack("<i", number)
    with pytest.raises(UnsupportedTensorError, match=name) as error:
        opened(tmp_path, bytes(data))
    assert error.value.tensor == "output.weight"


def test_parts_are_refused_as_such(tmp_path: Path) -> None:
    data = made.llama("ggml", None)
    with pytest.raises(UnsupportedFormatError, match="several parts"):
        opened(tmp_path, data, "ggml-model-f16.bin.1")
    with pytest.raises(UnsupportedFormatError, match="several parts"):
        opened(tmp_path, data, "ggml-model-f16.bin")
    opened(tmp_path, data, "another.bin")


@pytest.mark.parametrize("family", MADE)
def test_a_gguf_holds_all_of_it_as_keys_of_its_own(family: str, tmp_path: Path) -> None:
    old = opened(tmp_path, MADE[family][0])
    execute(plan_conversion(old, tmp_path / "new.gguf"))
    with tael.open(tmp_path / "new.gguf") as new:
        assert {n: building.raw_bytes(t) for n, t in new.tensors.items()} == {
            n: building.raw_bytes(t) for n, t in old.tensors.items()
        }
        for key, value in old.metadata.items():  # f32 in the file
            assert new.metadata[key] == (pytest.approx(value, rel=1e-6) if isinstance(value, float) else value), key
    assert b"tael.metadata" not in (tmp_path / "new.gguf").read_bytes()  # what llama.cpp would not see


# --- damage and hostility


def record(n_dims: int, length: int, number: int, ne: list[int], name: bytes, data: bytes = b"") -> bytes:
    return made.numbers(n_dims, length, number, *ne) + name + data


EMPTY = llama_file([])
HOSTILE = {
    "no header": (b"tjgg\3\0\0\0", "ends inside the hyperparameters"),
    "no words": (b"tjgg\3\0\0\0" + made.numbers(2**20, 32, 32, 1, 1, 32, 1), "should hold 1,048,576 words"),
    "too many words": (b"tjgg\3\0\0\0" + made.numbers(2**31 - 1, 32, 32, 1, 1, 32, 1), "n_vocab is 2,147,483,647"),
    "negative": (b"tjgg\3\0\0\0" + made.numbers(3, -32, 32, 1, 1, 32, 1) + bytes(64), "n_embd is -32"),
    "no heads": (b"tjgg\3\0\0\0" + made.numbers(3, 32, 32, 0, 1, 32, 1) + bytes(64), "n_head is 0"),
    "uneven heads": (b"tjgg\3\0\0\0" + made.numbers(3, 32, 32, 5, 1, 32, 1) + bytes(64), "do not divide"),
    "endless word": (b"tjgg\3\0\0\0" + made.numbers(3, 32, 32, 1, 1, 32, 1) + b"\xff" * 64, "word 0 of 3"),
    "0 dims": (EMPTY + record(0, 1, 0, [], b"a"), "a tensor of 0 dimensions"),
    "5 dims": (EMPTY + record(5, 1, 0, [1] * 5, b"a"), "a tensor of 5 dimensions"),
    "many dims": (EMPTY + record(2**31 - 1, 1, 0, [1], b"a"), "a tensor of 2,147,483,647 dimensions"),
    "negative dims": (EMPTY + record(2, 1, 0, [-4, 4], b"a"), r"dimensions \[-4, 4\]"),
    "endless name": (EMPTY + record(1, 2**31 - 1, 0, [4], b"a"), "name of a tensor has 2,147,483,647 bytes"),
    "negative name": (EMPTY + record(1, -1, 0, [4], b"a"), "name of a tensor has -1 bytes"),
    "name past the end": (EMPTY + record(1, 100, 0, [4], b"a"), "ends inside the name of a tensor"),
    "unknown type": (EMPTY + record(1, 1, 99, [4], b"a", bytes(64)), "its type is 99"),
    "cut block": (EMPTY + record(1, 1, 2, [33], b"a", bytes(64)), "no multiple of Q4_0's block"),
    "overflow": (EMPTY + record(4, 1, 0, [2**31 - 1] * 4, b"a", bytes(64)), "beyond any file"),
    "overflow mod 2^64": (EMPTY + record(4, 1, 0, [2**16] * 4, b"a", bytes(64)), "beyond any file"),
    "block version 9": (b"lmgg" + made.numbers(3, 8, 32, 1, 1, 8, 9002) + made.words([b""] * 3), "no known layout"),
    "no tensors": (b"lmgg" + made.numbers(3, 8, 32, 1, 1, 8, 1) + made.words([b""] * 3), "no known layout"),
    "nothing fits": (b"lmgg" + b"\xff" * 100, "no known layout fits"),
    "zeros": (b"lmgg" + bytes(10_000), "no known layout fits"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused_in_few_words(name: str, tmp_path: Path) -> None:
    data, said = HOSTILE[name]
    with pytest.raises(TaelError, match=said) as error:
        opened(tmp_path, data)
    assert len(str(error.value)) < 700
    assert error.value.path is not None


def test_a_name_that_stands_twice_is_refused(tmp_path: Path) -> None:
    twice = [("a", "F32", (4,), bytes(16))] * 2
    with pytest.raises(TaelError, match="stands twice"):
        opened(tmp_path, llama_file(twice))


def test_two_names_for_one_gguf_name_are_refused(tmp_path: Path) -> None:
    items = [("norm.weight", "F32", (4,), bytes(16)), ("output_norm.weight", "F32", (4,), bytes(16))]
    with pytest.raises(TaelError, match="GGUF name of two tensors"):
        opened(tmp_path, llama_file(items))


def test_a_name_of_no_layout_stays_and_is_noted(tmp_path: Path) -> None:
    items = [("layers.0.attention.wq.weight", "F32", (4, 4), bytes(64)), ("lora.a", "F32", (4,), bytes(16))]
    checkpoint = opened(tmp_path, llama_file(items))
    assert list(checkpoint.tensors) == ["blk.0.attn_q.weight", "lora.a"]
    assert any("1 names are not those of LLaMA and stay as they are: lora.a" in p.what for p in checkpoint.problems)


@pytest.mark.parametrize("family", ["llama", "gpt2", "gptneox"])
def test_a_file_cut_short_lists_what_is_there(family: str, tmp_path: Path) -> None:
    whole = MADE[family][0]
    names = list(opened(tmp_path, whole).tensors)
    cut = opened(tmp_path, whole[:-10])
    assert list(cut.tensors) == names
    (problem,) = cut.fatal()
    assert problem.tensor == names[-1]
    assert "cut short" in problem.what
    with pytest.raises(UnsupportedTensorError):
        next(cut.tensors[names[-1]].chunks())
    building.raw_bytes(cut.tensors[names[0]])
    header = opened(tmp_path, whole + b"\1\0\0\0\5")
    assert list(header.tensors) == names
    assert "ends inside the header of tensor" in header.fatal()[0].what


def test_a_file_that_ends_behind_its_words_is_no_whole_model(tmp_path: Path) -> None:
    (problem,) = opened(tmp_path, EMPTY).fatal()
    assert "holds no tensors" in problem.what


def test_tensors_are_bounded(tmp_path: Path) -> None:
    with pytest.raises(LimitExceededError, match="number of tensors"):
        opened(tmp_path, made.llama(), limits=Limits(tensors=5))


def test_the_table_of_types_is_that_of_the_writer() -> None:
    assert {name: number for number, name in TYPES.items()} == made.CODES
    assert set(TYPES.values()) <= DTYPES.keys()


@pytest.mark.parametrize("path", sorted(VECTORS.glob("*.bin")), ids=lambda path: path.stem)
def test_golden_files_open(path: Path) -> None:
    checkpoint = ggml.open(locate(path), DEFAULT)
    assert not checkpoint.fatal()
    for tensor in checkpoint.tensors.values():
        assert isinstance(tensor, Tensor)
        assert len(building.raw_bytes(tensor)) == tensor.nbytes
