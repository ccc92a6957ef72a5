# SPDX-License-Identifier: Apache-2.0
"""Averaged weights (EMA, SWA, a teacher): found beside or inside the plain ones, and given their names.

beside   a container of its own: {"model": ..., "ema": ...}; often with a wrapper's prefix ("module.", "ema_model.")
inside   among the weights: `model_ema.diffusion_modelinput_blocks00weight` of latent diffusion, whose names have lost
         their dots; or a submodule `ema_model.x` that mirrors `model.x`
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from tael.errors import TransformError, clip

# Components in which weights keep their averages, and what the plain ones may be called beside them.
_INSIDE = {
    "model_ema": ("model.", ""), "ema_model": ("model.", "net.", ""), "ema": ("model.", "net.", ""),
    "net_ema": ("net.",), "ema_net": ("net.",), "averaged_model": ("model.",), "swa_model": ("model.", "net.", ""),
    "teacher": ("student.",),
}  # fmt: skip
_MARKED = re.compile(rf"(?:^|\.)(?:{'|'.join(_INSIDE)})\.")
_COUNTERS = frozenset({"decay", "num_updates", "n_averaged", "initted", "step", "updates"})
_WRAPPERS = ("", "module.", "ema_model.", "ema_model.module.", "model.", "shadow.", "ema.", "averaged_model.")


def inside(names: Sequence[str]) -> dict[str, str | None]:
    """Those of `names` that are averages of others -> the plain name (None: a counter of the averaging)."""
    found: dict[str, str | None] = {}
    marked = [name for name in names if _MARKED.search(name)]
    for component, plain in _INSIDE.items():
        marker = f"{component}."
        groups: dict[str, list[str]] = {}
        for name in marked:
            at = 0 if name.startswith(marker) else name.find(f".{marker}") + 1
            if at or name.startswith(marker):
                groups.setdefault(name[:at], []).append(name)
        for above, members in groups.items():
            matched = _match(above, marker, members, names, plain)
            if matched and any(matched.values()):
                found.update(matched)
    return found


def _match(
    above: str, marker: str, members: Sequence[str], names: Sequence[str], plain: Sequence[str]
) -> dict[str, str | None] | None:
    """`members` (below `above` + `marker`) with the names they average; None unless every one has such a name."""
    start = f"{above}{marker}"
    others = [name for name in names if name.startswith(above) and not name.startswith(start)]
    for prefix in plain:
        below = {name.removeprefix(f"{above}{prefix}"): name for name in others if name.startswith(f"{above}{prefix}")}
        dotless: dict[str, list[str]] = {}
        for rest, name in below.items():
            dotless.setdefault(rest.replace(".", ""), []).append(name)
        matched: dict[str, str | None] = {}
        for member in members:
            rest = member.removeprefix(start).removeprefix("module.")
            same = [below[rest]] if rest in below else dotless.get(rest, []) if "." not in rest else []
            if len(same) > 1:
                raise TransformError(f"the average {clip(member)!r} may be that of {' or '.join(map(clip, same[:2]))}")
            if same or rest in _COUNTERS:
                matched[member] = same[0] if same else None
        if len(matched) == len(members):
            return matched
    return None


def place(name: str) -> str:
    """The component, with all before it, in which an average that `inside` found lies."""
    for component in _INSIDE:
        at = 0 if name.startswith(f"{component}.") else name.find(f".{component}.") + 1
        if at or name.startswith(f"{component}."):
            return name[: at + len(component)]
    return name


def beside(averaged: Sequence[str], plain: Sequence[str]) -> dict[str, str]:
    """Averaged name -> plain name, by the wrapper's prefix that explains most of them. Counters have none."""
    wanted = set(plain)
    best: dict[str, str] = {}
    for prefix in _WRAPPERS:
        for added in ("", "module.", "model."):
            found = {}
            for name in averaged:
                new = added + name.removeprefix(prefix)
                if name.startswith(prefix) and new in wanted:
                    found[name] = new
            if len(found) > len(best):
                best = found
    return best


def is_counter(name: str) -> bool:
    return name.rsplit(".", 1)[-1] in _COUNTERS


def by_position(
    averaged: Sequence[tuple[str, tuple[int, ...]]], plain: Sequence[tuple[str, tuple[int, ...]]]
) -> Mapping[str, str]:
    """(name, shape) of averages that are a nameless list -> plain names, if all their shapes agree in order."""
    shapes = [shape for _, shape in averaged]
    if shapes != [shape for _, shape in plain]:
        raise TransformError(
            "the averaged weights are a list without names, and do not line up with the plain ones",
            hint="load them with the class that wrote them",
        )
    return {name: new for (name, _), (new, _) in zip(averaged, plain, strict=True)}
