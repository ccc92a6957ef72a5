# SPDX-License-Identifier: Apache-2.0
"""The dtypes that a config.json speaks of, compared with the tensors, and put right.

`torch_dtype` (or `dtype`, since transformers 5) stands at the top and in every nested config: vision_config,
text_config, ... Only keys that exist are touched. Each level is compared with its own tensors where names
tell which those are, else with all of them; the dtype that most of their elements have is the right one.
Only F64, F32, F16 and BF16 count: packed and 8-bit weights are described by `quantization_config`, and
what loads them wants to know the dtype of the rest.
"""

from __future__ import annotations

import copy
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

from tael.core.tensor import Tensor
from tael.errors import CorruptFileError
from tael.formats import strict_json

DTYPE_KEYS = ("dtype", "torch_dtype")
NAMES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}

# Nested config -> components of tensor names that belong to it, besides those made from the key itself.
COMPONENTS: dict[str, tuple[str, ...]] = {
    "vision": ("visual", "image_encoder", "vit"),
    "text": ("language_model", "llm"),
    "audio": ("speech_encoder",),
    "llm": ("language_model",),
    "thinker": ("thinker",),
}
_MOST_LEVELS = 64  # each costs a pass over the tensors; real configs have two to five
_SUFFIXES = ("", "_model", "_tower", "_encoder", "_decoder", "_backbone")


class Change(NamedTuple):
    """`key` (dotted) says `said`, the tensors say `real`."""

    key: str
    said: str
    real: str


def parse(raw: bytes, path: str) -> dict[str, Any]:
    """The object in a config.json. Raises `CorruptFileError`."""
    config = strict_json.parse(raw, "the config", path, constants=True)
    if not isinstance(config, dict) or strict_json.is_deep(config):
        raise CorruptFileError("the config is not an object", path=path)
    return config


def changes(config: Mapping[str, Any], tensors: Iterable[Tensor]) -> list[Change]:
    """Where the config and the tensors disagree."""
    found = []
    for path, level, mine in islice(_levels(config, list(tensors), ()), _MOST_LEVELS):
        real = _majority(mine)
        for key in DTYPE_KEYS:
            said = level.get(key)
            if real and isinstance(said, str) and said.removeprefix("torch.") in NAMES.values():
                prefix = "torch." if said.startswith("torch.") else ""
                if said != prefix + real:
                    found.append(Change(".".join((*path, key)), said, prefix + real))
    return found


def corrected(config: Mapping[str, Any], wrong: Iterable[Change]) -> bytes:
    """The config's text with `wrong` put right: order kept, two spaces of indent."""
    fixed = copy.deepcopy(dict(config))
    for change in wrong:
        *path, key = change.key.split(".")
        level = fixed
        for name in path:
            level = level[name]
        level[key] = change.real
    return json.dumps(fixed, ensure_ascii=False, indent=2).encode() + b"\n"


def _levels(
    config: Mapping[str, Any], tensors: list[Tensor], path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any], list[Tensor]]]:
    """Every nested config with the tensors that are its own."""
    yield path, config, tensors
    for key, inner in config.items():
        if isinstance(inner, dict) and "." not in key and _has_dtype(inner):
            yield from _levels(inner, _of_config(key, tensors) or tensors, (*path, key))


def _has_dtype(config: Mapping[str, Any]) -> bool:
    if any(key in config for key in DTYPE_KEYS):
        return True
    return any(isinstance(inner, dict) and _has_dtype(inner) for inner in config.values())


def _of_config(key: str, tensors: list[Tensor]) -> list[Tensor]:
    """The tensors that belong to the nested config `key`; empty if names do not tell."""
    stem = key.removesuffix("_config")
    components = {stem + suffix for suffix in _SUFFIXES}.union(COMPONENTS.get(stem, ()))
    return [tensor for tensor in tensors if not components.isdisjoint(tensor.name.split(".")[:4])]


def _majority(tensors: Iterable[Tensor]) -> str | None:
    kinds = Counter((tensor.info.dtype.name, tensor.info.shape) for tensor in tensors if tensor.info.alias_of is None)
    elements: Counter[str] = Counter()
    for (dtype, shape), count in kinds.items():
        if dtype in NAMES:
            elements[dtype] += count * math.prod(shape)
    return NAMES[elements.most_common(1)[0][0]] if elements else None
