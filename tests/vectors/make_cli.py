# SPDX-License-Identifier: Apache-2.0
"""Writes tests/vectors/cli: a training checkpoint as people's training scripts save them, for the command tests.

python tests/vectors/make_cli.py        (needs torch)
"""

from __future__ import annotations

import copy
import hashlib
import json
import zipfile
from pathlib import Path

import torch

HERE = Path(__file__).parent / "cli"


def train(steps: int) -> dict[str, object]:
    """A small classifier after some steps of AdamW, with an average of its weights."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Sequential()
    model.add_module("conv1", torch.nn.Conv2d(1, 8, 3))
    model.add_module("norm1", torch.nn.BatchNorm2d(8))
    model.add_module("head", torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(8 * 36, 10)))
    average = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 1, 8, 8)).square().mean().backward()
        optimizer.step()
        scheduler.step()
        with torch.no_grad():
            for kept, now in zip(average.parameters(), model.parameters(), strict=True):
                kept.lerp_(now, 0.01)
    return {
        "epoch": 3,
        "global_step": steps,
        "model_state_dict": {f"module.{name}": tensor for name, tensor in model.state_dict().items()},
        "ema": {f"module.{name}": tensor for name, tensor in average.state_dict().items()},
        "optimizer_state_dict": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "config": {"lr": 1e-3, "batch_size": 4, "dataset": "noise"},
    }


def main() -> None:
    HERE.mkdir(exist_ok=True)
    path = HERE / "train.ckpt"
    torch.save(train(12), path)
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
    entry = {"by": f"torch {torch.__version__}", "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    record = {"made with": "make_cli.py", "files": {path.name: entry}}
    (HERE / "PROVENANCE.json").write_text(json.dumps(record, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
