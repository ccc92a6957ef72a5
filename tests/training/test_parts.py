# SPDX-License-Identifier: Apache-2.0
"""Training checkpoints: which part is which, and what is left when one is taken."""

from __future__ import annotations

import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from building import checkpoint
from tael.convert import convert
from tael.core.checkpoint import Checkpoint
from tael.errors import TransformError
from tael.formats import open_checkpoint
from tael.training.parts import parts, select
from tael.training.prefixes import auto_names
from tael.training.summary import summarize

VECTORS = Path(__file__).parent.parent / "vectors" / "torch"


@pytest.fixture
def saved(tmp_path: Path) -> Any:
    """Opens a checkpoint of plain Python and numpy, as if some training had saved it."""

    def save(content: Any) -> Checkpoint:
        path = tmp_path / "checkpoint.pkl"
        path.write_bytes(pickle.dumps(content))
        return open_checkpoint(path)

    return save


def f32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def weights(scale: float = 1.0) -> OrderedDict[str, np.ndarray]:
    return OrderedDict(
        [("fc.weight", f32(1, 2) * scale), ("fc.bias", f32(3) * scale), ("bn.running_mean", f32(4) * scale)]
    )


def adam() -> dict[str, Any]:
    state = {n: {"step": 5, "exp_avg": f32(n), "exp_avg_sq": f32(n)} for n in range(2)}
    group = {"lr": 1e-3, "betas": (0.9, 0.999), "amsgrad": False, "weight_decay": 0.1, "params": [0, 1]}
    return {"state": state, "param_groups": [group]}


def values(checkpoint: Checkpoint) -> dict[str, list[float]]:
    return {name: tensor.numpy().tolist() for name, tensor in checkpoint.tensors.items()}


def kinds(checkpoint: Checkpoint) -> dict[str, str]:
    return {part.name: part.kind for part in parts(checkpoint)}


PLAIN = {"fc.weight": [1, 2], "fc.bias": [3], "bn.running_mean": [4]}


def test_p3_the_weights_alone_and_what_is_left_out_is_said(saved: Any) -> None:
    content = {"epoch": 7, "state_dict": weights(), "optimizer": adam(), "lr_scheduler": {"step_size": 1, "gamma": 0.1}}
    with saved(content) as checkpoint:
        sizes = {part.kind: (len(part.tensors), part.nbytes) for part in parts(checkpoint)}
        assert sizes == {"state": (0, 0), "weights": (3, 16), "optimizer": (4, 16), "scheduler": (0, 0)}
        only = select(checkpoint)
        assert values(only) == PLAIN
        assert only.metadata == {"epoch": 7}
        losses = [str(loss) for loss in only.losses]
        assert losses == ["extras: optimizer 'optimizer': 4 tensors, 16 bytes", "metadata: scheduler 'lr_scheduler'"]
        assert select(checkpoint, keep_all=True).tensors.keys() == checkpoint.tensors.keys()


def test_every_tensor_is_in_exactly_one_part(saved: Any) -> None:
    with saved(
        {"model": weights(), "ema": weights(), "optimizer": adam(), "rng_state": f32(1), "best": f32(2)}
    ) as checkpoint:
        listed = [name for part in parts(checkpoint) for name in part.tensors]
        assert sorted(listed) == sorted(checkpoint.tensors)
        assert len(listed) == len(set(listed))


KEYS = [
    "state_dict", "model_state_dict", "model", "module", "net", "network", "network_weights", "weights", "params",
    "generator", "G", "best_state",
]  # fmt: skip


@pytest.mark.parametrize("key", KEYS)
def test_names_under_which_weights_are_kept(key: str, saved: Any) -> None:
    with saved({key: weights(), "optimizer_states": [adam()], "step": 3}) as checkpoint:
        assert values(select(checkpoint)) == PLAIN


def test_an_unknown_name_beside_an_optimizer_holds_the_weights(saved: Any) -> None:
    with saved({"my_thing": weights(), "optimizer": adam()}) as checkpoint:
        assert values(select(checkpoint)) == PLAIN
    with saved({"encoder": weights(), "decoder": weights(2), "opt": adam()}) as checkpoint:
        assert list(select(checkpoint).tensors)[::3] == ["encoder.fc.weight", "decoder.fc.weight"]


@pytest.mark.parametrize(
    "content",
    [
        weights(),
        {"encoder": weights(), "decoder": weights()},
        {**weights(), "qtype": "nf4"},
        [weights(), {"lr": 1}],
        {"model.weight": f32(1), "optimizer.weight": f32(2), "ema.decay": f32(3)},
    ],
)  # fmt: skip
def test_a_plain_state_dict_is_left_alone(content: Any, saved: Any) -> None:
    with saved(content) as checkpoint:
        assert select(checkpoint) is checkpoint
        assert [part.kind for part in parts(checkpoint)] == ["weights"]
        assert summarize(checkpoint) is None
        with pytest.raises(TransformError, match="no training checkpoint"):
            select(checkpoint, "optimizer")


def test_the_choice_among_several_is_by_rule_and_said(saved: Any) -> None:
    content = {"discriminator": weights(3), "g_ema": weights(2), "g": weights(), "d_optim": adam()}
    with saved(content) as checkpoint:
        assert kinds(checkpoint) == {"discriminator": "other", "g_ema": "ema", "g": "weights", "d_optim": "optimizer"}
        only = select(checkpoint)
        assert values(only) == PLAIN
        assert "took the weights from 'g'; 'g_ema' is there too (--part)" in str(only.problems[-1])
        assert values(select(checkpoint, "discriminator"))["fc.weight"] == [3, 6]
        with pytest.raises(TransformError, match="did you mean discriminator"):
            select(checkpoint, "discriminators")


def test_an_optimizer_is_known_by_what_is_in_it(saved: Any) -> None:
    with saved({"model": weights(), "trainer_thing": adam(), "args": {"lr": 1}}) as checkpoint:
        assert kinds(checkpoint) == {"model": "weights", "trainer_thing": "optimizer", "args": "hyperparameters"}
        assert list(select(checkpoint, "optimizer").tensors)[:2] == ["state.0.exp_avg", "state.0.exp_avg_sq"]


def test_metadata_goes_with_its_part(saved: Any) -> None:
    content = {
        "model": {**weights(), "qtype": "nf4"}, "optimizer": adam(), "callbacks": {"best": 1}, "hparams": {"lr": 1},
        "global_step": 9, "notes": {"by": "me"}, "loops": {},
    }  # fmt: skip
    with saved(content) as checkpoint:
        only = select(checkpoint)
        assert only.metadata == {"qtype": "nf4", "hparams": {"lr": 1}, "global_step": 9, "notes": {"by": "me"}}
        assert [loss.kind for loss in only.losses] == ["extras", "metadata"]


def test_ties_across_parts_survive(saved: Any) -> None:
    shared = f32(1, 2)
    content = {
        "optimizer": {"state": {0: {"exp_avg": shared}}, "param_groups": []},
        "model": {"a": shared, "b": shared},
    }
    with saved(content) as checkpoint:
        assert checkpoint.tensors["model.a"].info.alias_of == "optimizer.state.0.exp_avg"
        assert select(checkpoint).aliases == {"b": "a"}


# --- averages


def test_ema_beside_the_weights_has_their_names_and_other_values(saved: Any) -> None:
    for ema in ({"module." + n: a for n, a in weights(2).items()} | {"n_averaged": f32(1)}, weights(2)):
        with saved({"model": weights(), "ema": ema, "optimizer": adam()}) as checkpoint:
            assert values(select(checkpoint)) == PLAIN
            averaged = select(checkpoint, "ema")
            assert values(averaged) == {"fc.weight": [2, 4], "fc.bias": [6], "bn.running_mean": [8]}
            assert "3 averaged weights" in str(averaged.problems[-1])


def test_what_has_no_average_is_taken_from_the_weights_and_said(saved: Any) -> None:
    with saved({"state_dict": weights(), "state_dict_ema": {"fc.weight": f32(9, 9)}, "epoch": 1}) as checkpoint:
        averaged = select(checkpoint, "ema")
        assert values(averaged) == {**PLAIN, "fc.weight": [9, 9]}
        assert "2 that have no average are the plain ones: fc.bias, bn.running_mean" in str(averaged.problems[-1])


def latent_diffusion() -> dict[str, Any]:
    return {
        "model.diffusion_model.x": f32(0), "model.diffusion_model.in.0.w": f32(0, 0), "first_stage_model.w": f32(5),
        "model_ema.diffusion_modelx": f32(1), "model_ema.diffusion_modelin0w": f32(1, 1),
        "model_ema.decay": f32(0.9), "model_ema.num_updates": f32(100),
    }  # fmt: skip


def test_n8_ema_inside_the_weights_without_dots(saved: Any) -> None:
    plain = {"model.diffusion_model.x": [0], "model.diffusion_model.in.0.w": [0, 0], "first_stage_model.w": [5]}
    averaged = {"model.diffusion_model.x": [1], "model.diffusion_model.in.0.w": [1, 1], "first_stage_model.w": [5]}
    with saved({"state_dict": latent_diffusion(), "global_step": 3}) as checkpoint:
        assert kinds(checkpoint) == {"state_dict": "weights", "state_dict.model_ema": "ema", "global_step": "state"}
        assert values(select(checkpoint)) == plain
        assert values(select(checkpoint, "ema")) == averaged
    with saved(latent_diffusion()) as checkpoint:  # a bare state dict: as it is, unless EMA is asked for
        assert select(checkpoint) is checkpoint
        assert values(select(checkpoint, "ema")) == averaged


def test_n8_the_two_outputs_differ(tmp_path: Path) -> None:
    path = tmp_path / "ldm.ckpt"
    path.write_bytes(pickle.dumps({"state_dict": latent_diffusion()}))
    convert(path, tmp_path / "plain.safetensors")
    convert(path, tmp_path / "ema.safetensors", part="ema")
    with open_checkpoint(tmp_path / "plain.safetensors") as plain, open_checkpoint(tmp_path / "ema.safetensors") as ema:
        assert plain.tensors.keys() == ema.tensors.keys()
        assert values(plain) != values(ema)


def test_ema_as_a_submodule_that_mirrors_the_model(saved: Any) -> None:
    content = {f"model.{n}": a for n, a in weights().items()} | {
        f"ema_model.module.{n}": a for n, a in weights(2).items()
    }
    with saved({"state_dict": content, "pytorch-lightning_version": "2.6"}) as checkpoint:
        assert list(select(checkpoint).tensors) == [f"model.{name}" for name in PLAIN]
        assert values(select(checkpoint, "ema"))["model.fc.bias"] == [6]


def test_a_module_called_ema_that_mirrors_nothing_is_weights(saved: Any) -> None:
    with saved({"state_dict": {"ema.proj.weight": f32(1), "head.weight": f32(2)}, "epoch": 1}) as checkpoint:
        assert list(select(checkpoint).tensors) == ["ema.proj.weight", "head.weight"]


def test_ema_of_a_lightning_callback(saved: Any) -> None:
    callback = {"decay": 0.9, "ema_state_dict": {f"model.{n}": a for n, a in weights(2).items()}}
    plain = {f"model.{n}": a for n, a in weights().items()}
    with saved({"state_dict": plain, "callbacks": {"EMA": callback}, "epoch": 1}) as checkpoint:
        assert values(select(checkpoint, "ema"))["model.fc.weight"] == [2, 4]


def test_lightnings_weight_averaging_swaps_the_two(saved: Any) -> None:
    content = {
        "state_dict": weights(2),
        "current_model_state": weights(),
        "averaging_state": {"n_averaged": f32(3)},
        "epoch": 1,
    }
    with saved(content) as checkpoint:
        assert values(select(checkpoint)) == PLAIN
        assert values(select(checkpoint, "ema"))["fc.weight"] == [2, 4]


def test_averages_without_names_line_up_or_are_refused(saved: Any) -> None:
    shadow = {"decay": 0.9, "shadow_params": [f32(7, 7), f32(8)]}
    plain = {"a": f32(1, 1), "b": f32(2)}
    with saved({"model": plain, "ema": shadow}) as checkpoint:
        assert values(select(checkpoint, "ema")) == {"a": [7, 7], "b": [8]}
    more = saved({"model": {**plain, "buffer": f32(0)}, "ema": shadow})
    with more, pytest.raises(TransformError, match="without names"):
        select(more, "ema")


def test_a_file_of_averages_only(saved: Any) -> None:
    with saved({"params_ema": weights()}) as checkpoint:
        only = select(checkpoint)
        assert values(only) == PLAIN
        assert "averaged weights only" in str(only.problems[-1])


# --- Lightning, by the real one


def test_a_real_lightning_checkpoint() -> None:
    with open_checkpoint(VECTORS / "lightning.ckpt") as checkpoint:
        about = summarize(checkpoint)
        assert about is not None
        assert about["framework"] == "PyTorch Lightning 2.6.6"
        assert (about["epoch"], about["step"]) == (1, 2)
        assert about["optimizers"] == [{"class": "Adam or AdamW", "groups": 1, "lr": 1e-4, "weight_decay": 0}]
        assert about["schedulers"] == [{"class": "StepLR", "lr": 1e-4}]
        assert about["hyperparameters"]["hyper_parameters"] == {"width": 3, "name": "tiny"}
        assert {part["name"]: part["tensors"] for part in about["parts"]} == {"state_dict": 2, "optimizer_states": 6}
        only = select(checkpoint, strip_prefix="auto")
        assert list(only.tensors) == ["weight", "bias"]
        assert only.metadata["epoch"] == 1


def test_a_lightning_checkpoint_becomes_weights_alone(tmp_path: Path) -> None:
    done = convert(VECTORS / "lightning.ckpt", tmp_path / "model.safetensors")
    with open_checkpoint(tmp_path / "model.safetensors") as back:
        assert back.tensors.keys() == {"model.weight", "model.bias"}
        assert back.metadata["global_step"] == 2
    assert any("optimizer 'optimizer_states': 6 tensors" in str(loss) for loss in done.plan.losses)


def test_dots_in_front_are_no_wrapper() -> None:
    names = ["../../x", ".y", "_orig_mod._orig_mod.z", "a._fsdp_wrapped_module._orig_mod.b"]
    found = auto_names(checkpoint({name: f32(1) for name in names}))
    assert list(found.values()) == ["../../x", ".y", "z", "a.b"]
