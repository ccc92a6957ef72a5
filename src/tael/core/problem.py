# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a source (`Problem`) and what a target cannot hold (`Loss`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tael.errors import clip

Severity = Literal["note", "warning", "fatal"]


@dataclass(frozen=True, slots=True)
class Problem:
    """Something a reader noticed. `fatal`: the tensor (or, without one, part of the set) cannot be read."""

    severity: Severity
    what: str
    where: str | None = None  # file
    tensor: str | None = None

    def __str__(self) -> str:
        place = [part for part in (self.where, self.tensor and f"tensor {clip(self.tensor)!r}") if part]
        return f"{', '.join(place)}: {self.what}" if place else self.what


LossKind = Literal[
    "metadata",  # key/values the target has no place for
    "extras",  # optimizer state, config, objects, ...
    "alias",  # tied names written twice
    "shared-storage",  # views that overlap, written as independent copies
    "dtype",  # stored under another type or as opaque bytes
    "name",  # a name the target cannot spell
    "expand",  # a stride-0 view written out in full
    "damaged",  # tensors left out because their bytes cannot be read
    "attributes",  # strides, requires_grad and the like
]


@dataclass(frozen=True, slots=True)
class Loss:
    """One thing the output will not hold. `count` things of `kind`; `detail` names them, shortened."""

    kind: LossKind
    detail: str
    count: int = 1

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}"
