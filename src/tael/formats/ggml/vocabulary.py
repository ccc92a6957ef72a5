# SPDX-License-Identifier: Apache-2.0
"""Words of a GGML file -> the `tokenizer.ggml.*` keys of GGUF.

LLaMA files hold SentencePiece's pieces with a space for its mark, single bytes as such. The GPT families hold the
bytes of each word; GGUF spells these as byte-level BPE does, one printable character a byte. The order of merges is in
no GGML file. It is found again: a word's number is its rank, and the two shorter words that BPE joins last to make it
are its merge.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, overload

NORMAL, UNKNOWN, CONTROL, UNUSED, BYTE = 1, 2, 3, 5, 6  # token types of GGUF

_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
BYTE_LEVEL = {byte: chr(byte) for byte in _PRINTABLE} | {byte: chr(256 + n) for n, byte in enumerate(_OTHERS)}
_TABLE = [BYTE_LEVEL[byte] for byte in range(256)]

# What BPE vocabularies mark off as words of their own: <|endoftext|>, <fim_prefix>, <s>, ...
_SPECIAL = re.compile(rb"<\|[^<>]{1,60}\|>|</?s>|<unk>|<pad>|<fim[-_][a-z]{1,10}>|<(filename|reponame|gh_stars)>")
_LONGEST_MERGE = 256  # bytes; looking for merges costs the square of it


class Merges(Sequence[str]):
    """The merges of a byte-level BPE vocabulary, "left right", worked out when they are first asked for."""

    def __init__(self, words: Sequence[bytes], special: frozenset[int]) -> None:
        self._words, self._special = words, special
        self._found: list[str] | None = None

    def _list(self) -> list[str]:
        if self._found is None:
            self._found = list(_merges(self._words, self._special))
        return self._found

    def __len__(self) -> int:
        return len(self._list())

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        return self._list()[index]

    def __iter__(self) -> Iterator[str]:
        return iter(self._list())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]


def byte_level(word: bytes) -> str:
    return "".join([_TABLE[byte] for byte in word])


def _merges(words: Sequence[bytes], special: frozenset[int]) -> Iterator[str]:
    ranks: dict[bytes, int] = {}
    for number, word in enumerate(words):
        if word and number not in special:
            ranks.setdefault(word, number)
    for word, rank in ranks.items():
        if not 2 <= len(word) <= _LONGEST_MERGE:
            continue
        splits = [cut for cut in range(1, len(word)) if word[:cut] in ranks and word[cut:] in ranks]
        splits = [cut for cut in splits if ranks[word[:cut]] < rank > ranks[word[cut:]] or len(word) == 2]
        if len(splits) > 1:
            splits = _last_merge(word, rank, ranks)
        if splits:
            yield f"{byte_level(word[: splits[0]])} {byte_level(word[splits[0] :])}"


def _last_merge(word: bytes, rank: int, ranks: dict[bytes, int]) -> list[int]:
    """Where `word` splits when it is encoded with the words before it; [] when that leaves more than two pieces."""
    parts = [bytes([byte]) for byte in word]
    while len(parts) > 2:
        joined = [(ranks.get(parts[n] + parts[n + 1], rank), n) for n in range(len(parts) - 1)]
        best, at = min(joined)
        if best >= rank:
            return []
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return [len(parts[0])]


def sentencepiece(words: Sequence[bytes], scores: Sequence[float]) -> dict[str, Any]:
    """The keys of a LLaMA vocabulary: number 0 is unknown, 1 begins a text, 2 ends it, then 256 bytes, then pieces."""
    texts, types = [], []
    for number, word in enumerate(words):
        if number < 3:
            text, kind = ("<unk>", "<s>", "</s>")[number], (UNKNOWN, CONTROL, CONTROL)[number]
        elif not word:
            text, kind = "", CONTROL
        elif number <= 258 and len(word) == 1:
            text, kind = f"<0x{word[0]:02X}>", BYTE
        else:
            text, kind = word.decode("utf-8", "surrogateescape").replace(" ", "\u2581"), NORMAL
        texts.append(text)
        types.append(kind)
    if not scores:  # unversioned files: SentencePiece numbers the pieces in the order of their merges
        scores = [0.0 if number <= 258 else float(258 - number) for number in range(len(words))]
    keys = _keys("llama", texts, types)
    keys["tokenizer.ggml.scores"] = list(scores)
    for name, number in (("unknown", 0), ("bos", 1), ("eos", 2)):
        if number < len(words):
            keys[f"tokenizer.ggml.{name}_token_id"] = number
    return keys


def bpe(words: Sequence[bytes], pre: str, ends: Sequence[bytes]) -> dict[str, Any]:
    """The keys of a byte-level BPE vocabulary. `ends`: the words that begin and end a text."""
    special = frozenset(number for number, word in enumerate(words) if _SPECIAL.fullmatch(word))
    texts = [word.decode() if number in special else byte_level(word) for number, word in enumerate(words)]
    types = [CONTROL if number in special else NORMAL for number in range(len(words))]
    keys = _keys("gpt2", texts, types, pre)
    keys["tokenizer.ggml.merges"] = Merges(words, special)
    first, last = ends
    numbers = {word: number for number, word in enumerate(words) if number in special}
    for name, word in (("bos", first), ("eos", last)):
        if word in numbers:
            keys[f"tokenizer.ggml.{name}_token_id"] = numbers[word]
    return keys


def unigram(words: Sequence[bytes], scores: Sequence[float]) -> dict[str, Any]:
    """The keys of Replit's SentencePiece vocabulary, a unigram one; its pieces have their marks already."""
    special = {number for number, word in enumerate(words) if _SPECIAL.fullmatch(word)}
    texts = [word.decode("utf-8", "surrogateescape") for word in words]
    types = [CONTROL if number in special else NORMAL for number in range(len(words))]
    keys = _keys("t5", texts, types)
    keys["tokenizer.ggml.scores"] = list(scores)
    for switch in ("add_space_prefix", "remove_extra_whitespaces", "add_bos_token", "add_eos_token"):
        keys[f"tokenizer.ggml.{switch}"] = False
    for name, word in (("unknown", b"<|unk|>"), ("eos", b"<|endoftext|>"), ("padding", b"<|pad|>")):
        if word in words:
            keys[f"tokenizer.ggml.{name}_token_id"] = words.index(word)
    return keys


def _keys(model: str, texts: list[str], types: list[int], pre: str = "default") -> dict[str, Any]:
    """llama.cpp stops at a text that stands twice: a later one becomes a placeholder that nothing is read as."""
    seen: set[str] = set()
    for number, text in enumerate(texts):
        if text in seen:
            texts[number], types[number] = f"[PAD{number}]", UNUSED
        if text:
            seen.add(text)
    return {
        "tokenizer.ggml.model": model,
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.token_type": types,
    }


def from_characters(words: Sequence[bytes]) -> list[bytes]:
    """MPT files write a byte as the character of its number, in UTF-8. Words that hold others stay as they are."""
    found = []
    for word in words:
        try:
            found.append(word.decode("utf-8").encode("latin-1"))
        except UnicodeError:
            found.append(word)
    return found
