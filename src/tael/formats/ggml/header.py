# SPDX-License-Identifier: Apache-2.0
"""Magic, version, hyperparameters and vocabulary: which of the layouts a file has, as a table.

The magic says only which program family wrote a file. What follows is a fixed list of 32-bit numbers per family, with
nothing that names it, and the words. `LAYOUTS` has one row for each; reader.py tries those that the magic allows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tael.core.limits import Limits
from tael.core.source import ByteSource
from tael.errors import CorruptFileError, UnsupportedFormatError
from tael.formats.ggml.cursor import Cursor

# First four bytes (the u32 0x67676d6c little-endian is b"lmgg") -> name, versions that exist.
MAGICS: dict[bytes, tuple[str, tuple[int, ...]]] = {
    b"lmgg": ("ggml", ()),
    b"fmgg": ("ggmf", (1,)),
    b"tjgg": ("ggjt", (1, 2, 3)),
}

QUANTIZATION_VERSION_FACTOR = 1000  # ftype is file type + 1000 * version of the block layouts
MOST_WORDS = 1 << 21
_MOST = {"n_vocab": MOST_WORDS, "n_embd": 1 << 20, "n_head": 1 << 16, "n_layer": 1 << 16, "n_ctx": 1 << 30}


@dataclass(frozen=True, slots=True)
class Layout:
    """One family. `fields`: names in file order, i32 or (`floats`) f32; `counted`: the words' count is repeated."""

    id: str
    title: str
    fields: tuple[str, ...]
    counted: bool = False
    scored: bool = False  # a score behind every word
    floats: frozenset[str] = frozenset()
    given: Mapping[str, float] = field(default_factory=dict)  # fields that this variant does not store


_GPT2 = ("n_vocab", "n_ctx", "n_embd", "n_head", "n_layer", "ftype")
_NEOX = ("n_vocab", "n_ctx", "n_embd", "n_head", "n_layer", "n_rot", "par_res", "ftype")
_MPT = ("n_embd", "n_ctx", "n_head", "n_layer", "n_vocab", "alibi_bias_max", "clip_qkv", "ftype")
_LLAMA = ("n_vocab", "n_embd", "n_mult", "n_head", "n_layer", "n_rot", "ftype")

LAYOUTS: tuple[Layout, ...] = (
    Layout("llama", "LLaMA", _LLAMA),
    Layout("gpt2", "GPT-2", _GPT2, counted=True),
    Layout("gptj", "GPT-J", ("n_vocab", "n_ctx", "n_embd", "n_head", "n_layer", "n_rot", "ftype"), counted=True),
    Layout("gptneox", "GPT-NeoX", _NEOX),
    Layout("gptneox", "GPT-NeoX", tuple(n for n in _NEOX if n != "par_res"), given={"par_res": 1}),
    Layout("mpt", "MPT", _MPT, floats=frozenset({"alibi_bias_max", "clip_qkv"})),
    Layout(
        "replit", "Replit", ("n_embd", "n_ctx", "n_head", "n_layer", "n_vocab", "ftype"), scored=True,
        given={"alibi_bias_max": 8.0, "clip_qkv": 0.0},
    ),
    Layout("bloom", "BLOOM", ("n_vocab", "n_embd", "n_mult", "n_head", "n_layer", "ftype")),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Magic:
    name: str
    version: int | None
    end: int  # offset of what follows

    def __str__(self) -> str:
        return f"{self.name} v{self.version}" if self.version is not None else f"{self.name} (unversioned)"


@dataclass(frozen=True, slots=True)
class Header:
    """What stands before the tensors. `params`: the fields by name; ftype without the version of its blocks."""

    magic: Magic
    layout: Layout
    params: Mapping[str, int]
    floats: Mapping[str, float]
    words: list[bytes]
    scores: list[float]
    blocks: int  # 1, 2 or 3: the block layouts of ggjt v1, v2, v3
    end: int


def read_magic(source: ByteSource) -> Magic:
    """Raises `UnsupportedFormatError` for a version that does not exist."""
    cursor = Cursor(source, window=64)
    found = MAGICS.get(raw := cursor.take(4, "its magic"))
    if found is None:
        raise CorruptFileError(f"starts with {raw.hex(' ')}, not with a GGML magic", path=source.name)
    name, versions = found
    if not versions:
        return Magic(name, None, 4)
    version = int.from_bytes(cursor.take(4, "its version"), "little")
    if version not in versions:
        known = ", ".join(map(str, versions))
        raise UnsupportedFormatError(f"a {name} file of version {version}: known are {known}", path=source.name)
    return Magic(name, version, 8)


def layouts_of(magic: Magic) -> list[Layout]:
    """Only the LLaMA family ever wrote the two younger magics; it put scores into them."""
    if magic.name == "ggml":
        return list(LAYOUTS)
    llama = LAYOUTS[0]
    return [Layout(llama.id, llama.title, llama.fields, scored=True)]


def read_header(source: ByteSource, magic: Magic, layout: Layout, limits: Limits) -> Header:
    """The header read as `layout`. Raises `CorruptFileError` when its numbers cannot be those of that layout."""
    cursor = Cursor(source, magic.end)
    letters = "".join("f" if name in layout.floats else "i" for name in layout.fields)
    values = dict(zip(layout.fields, cursor.unpack(letters, "the hyperparameters"), strict=True)) | dict(layout.given)
    floats: dict[str, float] = {
        name: float(values.pop(name)) for name in ("alibi_bias_max", "clip_qkv") if name in values
    }
    params = {name: int(value) for name, value in values.items()}
    _check(params, source.name, magic.end)
    version, params["ftype"] = divmod(params["ftype"], QUANTIZATION_VERSION_FACTOR)
    blocks = magic.version or 1 if magic.name != "ggml" else version + 1
    if not 1 <= blocks <= 3:
        raise CorruptFileError(f"block layouts of version {version} are unknown", path=source.name, offset=magic.end)
    count = params["n_vocab"]
    if layout.counted:
        (again,) = cursor.unpack("i", "the number of words")
        if again != count:
            raise CorruptFileError(
                f"counts {count:,} words, then {int(again):,}", path=source.name, offset=cursor.offset - 4
            )
    if count * (8 if layout.scored else 4) > cursor.left:
        raise CorruptFileError(
            f"should hold {count:,} words, but has only {cursor.left:,} bytes left",
            path=source.name,
            offset=cursor.offset,
            hint="the file is cut short inside its vocabulary; fetch it again",
        )
    words, scores = cursor.words(
        count, layout.scored, limits.name_bytes, limits.header_bytes, lambda index: f"word {index:,} of {count:,}"
    )
    return Header(magic, layout, params, floats, words, scores, blocks, cursor.offset)


def _check(params: Mapping[str, int], path: str, offset: int) -> None:
    for name, value in params.items():
        least = 1 if name in ("n_vocab", "n_embd", "n_head", "n_layer") else 0
        if not least <= value <= _MOST.get(name, (1 << 31) - 1):
            raise CorruptFileError(f"{name} is {value:,}", path=path, offset=offset)
    if params["n_embd"] % params["n_head"]:
        raise CorruptFileError(
            f"{params['n_embd']} numbers of a word do not divide among {params['n_head']} heads",
            path=path,
            offset=offset,
        )
