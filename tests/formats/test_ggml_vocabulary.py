# SPDX-License-Identifier: Apache-2.0
"""Words as GGUF spells them, and merges found again."""

from __future__ import annotations

import time

import pytest

import ggml_files as made
from tael.formats.ggml.vocabulary import BYTE_LEVEL, Merges, bpe, byte_level, from_characters, sentencepiece, unigram


def test_bytes_are_spelled_as_gpt2_does() -> None:
    assert byte_level(b" a\n\x00\xad\xff~") == "ĠaĊĀŃÿ~"
    assert len(set(BYTE_LEVEL.values())) == 256


def test_merges_are_in_the_order_of_the_words() -> None:
    keys = bpe(made.byte_words(), "gpt-2", (b"<|endoftext|>", b"<|endoftext|>"))
    assert list(keys["tokenizer.ggml.merges"]) == [
        "h e", "l l", "Ġ t", "he ll", "hell o", "i n", "Ġt h", "Ġt he", "a n", "an d",
    ]  # fmt: skip


def test_of_several_splits_the_last_merge_counts() -> None:
    letters = [bytes([byte]) for byte in range(256)]
    words = [*letters, b"ab", b"bc", b"abc"]  # a text "abc" is ab + c, for ab comes first
    assert list(Merges(words, frozenset()))[-1] == "ab c"
    words = [*letters, b"bc", b"ab", b"abc"]
    assert list(Merges(words, frozenset()))[-1] == "a bc"


def test_words_that_no_merge_makes_have_none() -> None:
    words = [*(bytes([byte]) for byte in range(256)), b"xyz", b"<|endoftext|>"]
    assert list(bpe(words, "gpt-2", (b"", b""))["tokenizer.ggml.merges"]) == []


@pytest.mark.peer
def test_merges_of_a_trained_tokenizer_are_found_again() -> None:
    import json
    from pathlib import Path

    from tokenizers import Tokenizer
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel
    from tokenizers.trainers import BpeTrainer

    text = [path.read_text("utf-8") for path in sorted((Path(__file__).parents[2] / "docs").glob("*.md"))]
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    trainer = BpeTrainer(
        vocab_size=3000, initial_alphabet=ByteLevel.alphabet(), special_tokens=["<|endoftext|>"], show_progress=False
    )
    tokenizer.train_from_iterator(text, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    numbers = {character: byte for byte, character in BYTE_LEVEL.items()}
    spelled = sorted(model["vocab"], key=model["vocab"].__getitem__)
    words = [w.encode() if w == "<|endoftext|>" else bytes(numbers[c] for c in w) for w in spelled]
    found = list(bpe(words, "gpt-2", (b"", b""))["tokenizer.ggml.merges"])
    # Two merges may make one word; its number tells the first of them only.
    wanted = {"".join(pair): " ".join(pair) for pair in reversed(model["merges"])}
    assert len(found) > 2000
    assert found == [wanted[merge.replace(" ", "")] for merge in found]
    assert len(found) == len(wanted)


def test_looking_for_merges_is_bounded() -> None:
    words = [*(bytes([byte]) for byte in range(256)), *(b"a" * n for n in range(2, 2000))]
    start = time.perf_counter()
    merges = Merges(words, frozenset())
    assert time.perf_counter() - start < 0.1, "worked out before it was asked for"
    assert len(merges) == 255
    assert time.perf_counter() - start < 20


def test_a_text_that_stands_twice_becomes_a_placeholder() -> None:
    keys = bpe([b"a", b"\xef\xbf\xbd", b"\xef\xbf\xbd", b"a"], "gpt-2", (b"", b""))
    assert keys["tokenizer.ggml.tokens"] == ["a", "ï¿½", "[PAD2]", "[PAD3]"]
    assert keys["tokenizer.ggml.token_type"] == [1, 1, 5, 5]


def test_special_words_keep_their_text() -> None:
    keys = bpe([b"<s>", b"</s>", b"<|a b|>", b"<b>"], "bloom", (b"<s>", b"</s>"))
    assert keys["tokenizer.ggml.tokens"] == ["<s>", "</s>", "<|a b|>", "<b>"]
    assert keys["tokenizer.ggml.token_type"] == [3, 3, 3, 1]
    assert (keys["tokenizer.ggml.bos_token_id"], keys["tokenizer.ggml.eos_token_id"]) == (0, 1)


def test_mpt_words_are_characters_of_their_bytes() -> None:
    assert from_characters(["é".encode("latin-1").decode("latin-1").encode(), "層".encode(), b"\xff"]) == [
        b"\xe9",
        "層".encode(),
        b"\xff",
    ]


def test_pieces_that_are_no_utf8_survive() -> None:
    keys = sentencepiece([b"", b"", b"", b"\xe5", b" a\xff"], [0.0] * 5)
    assert keys["tokenizer.ggml.tokens"] == ["<unk>", "<s>", "</s>", "<0xE5>", "\u2581a\udcff"]
    assert sentencepiece([b"x"], [])["tokenizer.ggml.scores"] == [0.0]


def test_replit_pieces_are_taken_as_they_are() -> None:
    keys = unigram(["\u2581a".encode(), b"<|endoftext|>", b"<|unk|>"], [-1.0, 0.0, 0.0])
    assert keys["tokenizer.ggml.tokens"][0] == "\u2581a"
    assert (keys["tokenizer.ggml.eos_token_id"], keys["tokenizer.ggml.unknown_token_id"]) == (1, 2)
