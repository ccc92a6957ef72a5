# SPDX-License-Identifier: Apache-2.0
"""Training checkpoints: which entries are weights, averaged weights, optimizer, scheduler, hyperparameters.

roles.py   the tables: what a top-level key of a checkpoint means
parts.py   `parts`, and `select`, which keeps one part
ema.py     averaged weights under the names of the plain ones
names.py   wrappers' prefixes, LayerNorm's old names, weight norm
summary.py what `tael inspect` says about a training run
"""
