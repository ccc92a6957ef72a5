# SPDX-License-Identifier: Apache-2.0
"""What the user says of single tensors, from the command line or from a recipe file: it overrides the recipe."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tael.core.dtypes import DType
from tael.errors import TransformError, clip
from tael.quantize.recipes import tensor_type


@dataclass(frozen=True, slots=True)
class Layers:
    """Layers `first` to `last` get `dtype`; with `fractions` these are parts of the depth, from 0 to 1."""

    first: float
    last: float
    fractions: bool
    dtype: DType
    text: str  # as it was typed


@dataclass(frozen=True, slots=True)
class Options:
    """What overrides the recipe. Patterns are regular expressions that may match anywhere in the name."""

    tensors: Sequence[tuple[re.Pattern[str], DType]] = ()
    layers: Sequence[Layers] = ()
    embedding: DType | None = None
    output: DType | None = None
    keep: Sequence[re.Pattern[str]] = ()
    leave_output: bool = False
    pure: bool = False
    has_imatrix: bool = False

    @classmethod
    def of(
        cls,
        *,
        tensor_types: Sequence[str] = (),
        layers: Sequence[str] = (),
        embedding: str | None = None,
        output: str | None = None,
        keep: Sequence[str] = (),
        leave_output: bool = False,
        pure: bool = False,
    ) -> Options:
        """From what is typed: `REGEX=TYPE`, `0-10=TYPE`, `25%-75%=TYPE`."""
        return cls(
            [_pattern_and_type(text) for text in tensor_types],
            [_layers(text) for text in layers],
            None if embedding is None else tensor_type(embedding),
            None if output is None else tensor_type(output),
            [_regex(text) for text in keep],
            leave_output,
            pure,
        )

    def over(self, saved: Options) -> Options:
        """These, and `saved` where these say nothing."""
        return replace(
            self,
            tensors=[*self.tensors, *saved.tensors],
            layers=[*self.layers, *saved.layers],
            embedding=self.embedding or saved.embedding,
            output=self.output or saved.output,
            keep=[*self.keep, *saved.keep],
            leave_output=self.leave_output or saved.leave_output,
            pure=self.pure or saved.pure,
        )


def _regex(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise TransformError(f"{clip(text)!r} is no regular expression: {error}") from None


def _pattern_and_type(text: str) -> tuple[re.Pattern[str], DType]:
    pattern, sign, kind = text.rpartition("=")
    if not sign or not pattern:
        raise TransformError(f"{clip(text)!r} is no REGEX=TYPE", hint="such as --tensor 'attn_v=Q6_K'")
    return _regex(pattern), tensor_type(kind)


_RANGE = re.compile(r"(\d{1,6})(%?)(?:-(\d{1,6})(%?))?=(\w+)")


def _layers(text: str) -> Layers:
    found = _RANGE.fullmatch(text.strip())
    if not found or (found[3] is not None and found[2] != found[4]) or (found[2] and found[3] is None):
        raise TransformError(f"{clip(text)!r} is no RANGE=TYPE", hint="such as --layers 0-10=Q6_K, or 0%-25%=Q6_K")
    first, last = int(found[1]), int(found[3] or found[1])
    if last < first:
        raise TransformError(f"the layers {clip(text)!r} end before they begin")
    fractions = bool(found[2])
    scale = 100 if fractions else 1
    return Layers(first / scale, last / scale, fractions, tensor_type(found[5]), text.strip())
