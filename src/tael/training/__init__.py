# SPDX-License-Identifier: Apache-2.0
"""Training checkpoints: which entries are weights, averaged weights, optimizer, scheduler, hyperparameters.

roles.py        the tables: what a top-level key of a checkpoint means
structure.py    `parts`: what is in a checkpoint
parts.py        `select`: one part of it; cut.py and extras.py: what becomes of the rest
ema.py          averaged weights under the names of the plain ones
prefixes.py     what DDP, torch.compile, FSDP and Lightning put before names
names.py        LayerNorm's old names, weight norm's two spellings
summary.py      what `tael inspect` says about a training run
"""
