# SPDX-License-Identifier: Apache-2.0
"""Recipes as TOML files, to keep and to share. Their keys are the options of `tael quantize`:

    type = "Q4_K_M"
    embedding = "Q8_0"
    output = "Q6_K"
    tensors = ["attn_v=Q6_K"]           REGEX=TYPE, the first that matches decides
    layers = ["0-3=Q6_K", "88%-100%=Q6_K"]
    keep = ["ffn_gate_inp"]
    leave_output = false
    pure = false

The folder strategies/ has some that are known by name.
"""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path
from typing import Any

from tael.errors import SourceNotFoundError, TransformError, clip
from tael.quantize.options import Options
from tael.quantize.recipes import recipe_of

SHIPPED = Path(__file__).parent / "strategies"
_TEXTS, _LISTS, _FLAGS = ("type", "embedding", "output"), ("tensors", "layers", "keep"), ("leave_output", "pure")
_LARGEST = 1 << 20


def shipped() -> list[str]:
    """Names of the recipes that tael brings."""
    return sorted(path.stem for path in SHIPPED.glob("*.toml"))


def load(recipe: str | os.PathLike[str]) -> tuple[str, Options]:
    """The type and the choices of a recipe file, or of a shipped recipe by its name. Raises `TransformError`."""
    path = Path(recipe)
    if not path.exists() and path.name in shipped() and str(path) == path.name:
        path = SHIPPED / f"{path.name}.toml"
    where = os.fspath(path)
    try:
        if path.stat().st_size > _LARGEST:
            raise TransformError("is far too large for a recipe", path=where)
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SourceNotFoundError(
            "there is no such recipe", path=where, hint=f"tael brings {', '.join(shipped())}"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise TransformError(f"is no recipe: {clip(str(error))}", path=where) from None
    try:
        return _parsed(content)
    except TransformError as error:
        error.path = error.path or where
        raise


def _parsed(content: dict[str, Any]) -> tuple[str, Options]:
    for key, value in content.items():
        if key not in (*_TEXTS, *_LISTS, *_FLAGS):
            known = ", ".join((*_TEXTS, *_LISTS, *_FLAGS))
            raise TransformError(f"unknown key {clip(key)!r}", hint=f"keys are {known}")
        is_list = isinstance(value, list) and all(isinstance(item, str) for item in value)
        if not (isinstance(value, str) if key in _TEXTS else is_list if key in _LISTS else isinstance(value, bool)):
            kind = "text" if key in _TEXTS else "a list of texts" if key in _LISTS else "true or false"
            raise TransformError(f"{key} is not {kind}")
    options = Options.of(
        tensor_types=content.get("tensors", ()),
        layers=content.get("layers", ()),
        embedding=content.get("embedding"),
        output=content.get("output"),
        keep=content.get("keep", ()),
        leave_output=content.get("leave_output", False),
        pure=content.get("pure", False),
    )
    if "type" not in content:
        raise TransformError("says no type", hint='such as type = "Q4_K_M"')
    recipe_of(content["type"], pure=options.pure)
    return content["type"], options


def dumps(recipe: str, options: Options) -> str:
    """The text of a recipe file that `load` reads back."""
    fields: dict[str, Any] = {"type": recipe}
    if options.embedding is not None:
        fields["embedding"] = options.embedding.name
    if options.output is not None:
        fields["output"] = options.output.name
    fields["tensors"] = [f"{pattern.pattern}={dtype}" for pattern, dtype in options.tensors]
    fields["layers"] = [layer.text for layer in options.layers]
    fields["keep"] = [pattern.pattern for pattern in options.keep]
    fields |= {"leave_output": options.leave_output, "pure": options.pure}
    # A JSON text is a TOML text, and so is a list of them.
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in fields.items() if value)
