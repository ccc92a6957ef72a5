# SPDX-License-Identifier: Apache-2.0
"""Proof: the same tensors? (compare.py) what changed? (diff.py), and ids that say so later (fingerprint.py)."""
