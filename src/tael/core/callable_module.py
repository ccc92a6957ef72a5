# SPDX-License-Identifier: Apache-2.0
"""Lets `tael.convert(...)` and `import tael.convert.plan` live side by side: the package itself can be called."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


def make_callable(module_name: str, function: Callable[..., Any]) -> None:
    """Calling the module `module_name` calls `function`."""
    kind = type("CallableModule", (ModuleType,), {"__call__": staticmethod(function), "__doc__": function.__doc__})
    sys.modules[module_name].__class__ = kind
