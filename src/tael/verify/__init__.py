# SPDX-License-Identifier: Apache-2.0
"""Proof: the same tensors? (compare.py) what changed? (diff.py), and ids that say so later (fingerprint.py)."""

from __future__ import annotations

from tael.api import verify
from tael.core.callable_module import make_callable

make_callable(__name__, verify)  # `tael.verify(a, b)`, also once this package is loaded
