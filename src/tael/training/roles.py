# SPDX-License-Identifier: Apache-2.0
"""What a top-level key of a training checkpoint means: by its name, and by what lies under it.

The names are those of PyTorch Lightning, timm, fairseq, Detectron2, MMEngine, BasicSR, YOLO, DINO, StyleGAN and of the
PyTorch tutorials. Where a name says nothing, a dict with `state` and `param_groups` is an optimizer, and a dict of
tensors is a set of weights.
"""

from __future__ import annotations

import re
from typing import Any, Literal

from tael.formats.torch.tree import TensorLeaf, leaf_names

Kind = Literal["weights", "ema", "optimizer", "scheduler", "hyperparameters", "state", "other"]

# The weights, best first: what is there when several are.
WEIGHTS = (
    "state_dict", "model_state_dict", "model_state", "model_dict", "model_weights", "model", "module",
    "net_state_dict", "net", "network_state_dict", "network_weights", "network", "weights", "weight", "params",
    "best_state", "best_model", "student", "generator", "generator_state_dict", "g_state_dict", "netg", "net_g", "g",
    "policy", "actor", "current_model_state",
)  # fmt: skip
_EMA = re.compile(r"(^|_)(ema|swa|averaged?|avg|teacher|shadow|polyak)(_|$)")
_OPTIMIZER = re.compile(r"optim|^opt(_states?|_state_dict)?$|^[gd]_opt")
_SCHEDULER = re.compile(r"sched")
_STATE = re.compile(
    r"scaler|^amp(_|$)|rng|random_state|callback|^loops?$|sampler|dataloader|datamodule|extra_state|precision|"
    r"epoch|step|iter|best_|metric|loss|version|history|date|time|git|seed|fitness|updates|^averaging_state$"
)
_HYPERPARAMETERS = re.compile(
    r"hyper_?param|hparams|^args$|arguments|config|^cfg|^opt$|options|settings|_args$|^meta$|^dims$|^arch|_kwargs$"
)
# Lightning's WeightAveraging puts the average into state_dict and the weights beside it.
AVERAGED_IN_PLACE = ("state_dict", "current_model_state")
LIGHTNING = "pytorch-lightning_version"


def kind_of(key: str, subtree: Any) -> Kind:
    """What the value under the top-level `key` is. `subtree` is of torch.tree."""
    name = key.lower()
    if type(subtree) is TensorLeaf:
        return "state"
    holds = holds_tensors(subtree)
    if holds and (_is_optimizer(subtree) or _OPTIMIZER.search(name)):
        return "optimizer"
    if _SCHEDULER.search(name):
        return "scheduler"
    if holds and _EMA.search(name):
        return "ema"
    if holds and name in WEIGHTS:
        return "weights"
    if not holds and _HYPERPARAMETERS.search(name):
        return "hyperparameters"
    if not holds and (_OPTIMIZER.search(name) or _is_optimizer(subtree)):
        return "optimizer"
    return "state" if _STATE.search(name) else "other"


def holds_tensors(subtree: Any) -> bool:
    return next(leaf_names(subtree), None) is not None


def averages_of_callbacks(subtree: Any) -> tuple[tuple[Any, ...], Any] | None:
    """Below the state of callbacks: the path and the dict of tensors that one of them keeps under an averaging name."""
    pending: list[tuple[tuple[Any, ...], Any, bool]] = [((), subtree, False)]
    seen: set[int] = set()
    while pending:
        at, value, averaging = pending.pop(0)
        if not isinstance(value, dict) or id(value) in seen:
            continue
        seen.add(id(value))
        if averaging and any(type(item) is TensorLeaf for item in value.values()):
            return at, value
        for key, item in value.items():
            pending.append(((*at, key), item, averaging or bool(_EMA.search(str(key).lower()))))
    return None


def _is_optimizer(subtree: Any) -> bool:
    """The state dict of a torch optimizer, or a list of such."""
    if isinstance(subtree, list | tuple) and subtree:
        subtree = subtree[0]
    return isinstance(subtree, dict) and {"state", "param_groups"} <= subtree.keys()


def preference(key: str) -> int:
    """Rank among the weights: lower is better."""
    name = key.lower()
    return WEIGHTS.index(name) if name in WEIGHTS else len(WEIGHTS)
