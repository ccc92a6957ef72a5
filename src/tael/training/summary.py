# SPDX-License-Identifier: Apache-2.0
"""What `tael inspect` says about the training run that a checkpoint is a state of."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tael.core.checkpoint import Checkpoint
from tael.training import ema
from tael.training.parts import parts
from tael.training.roles import LIGHTNING
from tael.training.structure import top_level

_EPOCH = ("epoch", "epochs", "trained_epochs", "current_epoch")
_STEP = ("global_step", "step", "steps", "iteration", "iter", "num_updates", "updates")
# Keys of a param group, or of a scheduler's state, that only one class has: their state dicts do not name the class.
_OPTIMIZERS = (
    ({"betas", "amsgrad", "decoupled_weight_decay"}, "Adam or AdamW"),
    ({"betas", "amsgrad"}, "Adam or AdamW"),
    ({"betas", "momentum_decay"}, "NAdam"),
    ({"betas", "decoupled_weight_decay"}, "RAdam"),
    ({"betas"}, "Adam-like"),
    ({"momentum", "nesterov"}, "SGD"),
    ({"alpha", "centered"}, "RMSprop"),
    ({"etas", "step_sizes"}, "Rprop"),
    ({"rho"}, "Adadelta"),
    ({"lr_decay"}, "Adagrad"),
    ({"max_iter", "line_search_fn"}, "LBFGS"),
    ({"lambd", "t0"}, "ASGD"),
)
_SCHEDULERS = (
    ({"step_size", "gamma"}, "StepLR"),
    ({"milestones", "gamma"}, "MultiStepLR"),
    ({"T_0", "T_mult"}, "CosineAnnealingWarmRestarts"),
    ({"T_max", "eta_min"}, "CosineAnnealingLR"),
    ({"total_steps", "_schedule_phases"}, "OneCycleLR"),
    ({"patience", "cooldown"}, "ReduceLROnPlateau"),
    ({"lr_lambdas"}, "LambdaLR"),
    ({"total_iters", "power"}, "PolynomialLR"),
    ({"start_factor", "end_factor"}, "LinearLR"),
    ({"gamma"}, "ExponentialLR"),
)


def summarize(checkpoint: Checkpoint) -> dict[str, Any] | None:
    """None for what is no training checkpoint; else what is known of:

    framework, epoch, step, optimizers and schedulers (class, lr), hyperparameters; parts (name, kind, tensors, nbytes).
    """
    if top_level(checkpoint) is None and not ema.inside(tuple(checkpoint.tensors)):
        return None
    found = parts(checkpoint)
    if len(found) == 1:
        return None
    values = checkpoint.metadata
    out: dict[str, Any] = {
        "framework": f"PyTorch Lightning {values[LIGHTNING]}" if LIGHTNING in values else None,
        "epoch": _first_number(values, _EPOCH),
        "step": _first_number(values, _STEP),
        "optimizers": [
            _optimizer(group) for part in found if part.kind == "optimizer" for group in _groups(part.values)
        ],
        "schedulers": [about for part in found if part.kind == "scheduler" for about in _schedulers(part.values)],
        "hyperparameters": {n: v for part in found if part.kind == "hyperparameters" for n, v in part.values.items()},
    }
    out = {key: value for key, value in out.items() if value not in (None, [], {})}
    out["parts"] = [
        {"name": part.name, "kind": part.kind, "tensors": len(part.tensors), "nbytes": part.nbytes}
        for part in found
        if part.tensors
    ]
    return out


def _first_number(values: Any, names: Iterable[str]) -> int | float | None:
    for name in names:
        if type(values.get(name)) in (int, float):
            return values[name]  # type: ignore[no-any-return]
    return None


def _groups(values: Any) -> list[dict[str, Any]]:
    """The first param group of every optimizer."""
    found = []
    for name, value in values.items():
        if name.endswith("param_groups") and isinstance(value, list) and value and isinstance(value[0], dict):
            found.append({**value[0], "groups": len(value)})
        elif isinstance(value, dict):  # an optimizer without state: its whole dict is one value
            found += _groups(value)
    return found


def _optimizer(group: dict[str, Any]) -> dict[str, Any]:
    about = {"class": _class_of(group, _OPTIMIZERS), "groups": group["groups"]}
    return about | {key: group[key] for key in ("lr", "weight_decay") if key in group}


def _schedulers(values: Any) -> list[dict[str, Any]]:
    states = [state for value in values.values() for state in (value if isinstance(value, list) else [value])]
    return [{"class": _class_of(state, _SCHEDULERS), **_last_lr(state)} for state in states if isinstance(state, dict)]


def _last_lr(state: dict[str, Any]) -> dict[str, Any]:
    rates = state.get("_last_lr")
    return {"lr": rates[0]} if isinstance(rates, list) and rates else {}


def _class_of(keys: dict[str, Any], table: Iterable[tuple[set[str], str]]) -> str:
    return next((name for marks, name in table if marks <= keys.keys()), "unknown")
