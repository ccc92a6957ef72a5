# SPDX-License-Identifier: Apache-2.0
"""tael: open any neural-network weight file safely, see what is inside, convert it, prove the result right.

    import tael
    with tael.open("model.pt") as checkpoint:          # headers only, nothing is executed
        for tensor in checkpoint.tensors.values():
            print(tensor.name, tensor.dtype, tensor.shape)
    tael.convert("model.pt", "model.safetensors")
    assert tael.verify("model.pt", "model.safetensors").equal

Everything here is loaded on first use; no framework is ever needed to read a file.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tael.api import diff as diff
    from tael.api import hash as hash
    from tael.api import inspect as inspect
    from tael.api import verify as verify
    from tael.convert import convert as convert
    from tael.core.checkpoint import Checkpoint as Checkpoint
    from tael.core.dtypes import DType as DType
    from tael.core.dtypes import dtype as dtype
    from tael.core.limits import Limits as Limits
    from tael.core.problem import Loss as Loss
    from tael.core.problem import Problem as Problem
    from tael.core.tensor import Tensor as Tensor
    from tael.core.tensor import TensorInfo as TensorInfo
    from tael.edit import edit as edit
    from tael.errors import TaelError as TaelError
    from tael.formats import open_checkpoint as open
    from tael.formats.registry import Format as Format
    from tael.quantize import quantize as quantize

__version__ = "0.1.0"

_WHERE = {
    "open": "tael.formats:open_checkpoint",
    "inspect": "tael.api:inspect",
    "convert": "tael.convert:convert",
    "quantize": "tael.quantize:quantize",
    "edit": "tael.edit:edit",
    "verify": "tael.api:verify",
    "diff": "tael.api:diff",
    "hash": "tael.api:hash",
    "Checkpoint": "tael.core.checkpoint:Checkpoint",
    "Tensor": "tael.core.tensor:Tensor",
    "TensorInfo": "tael.core.tensor:TensorInfo",
    "DType": "tael.core.dtypes:DType",
    "dtype": "tael.core.dtypes:dtype",
    "Problem": "tael.core.problem:Problem",
    "Loss": "tael.core.problem:Loss",
    "Limits": "tael.core.limits:Limits",
    "Format": "tael.formats.registry:Format",
    "TaelError": "tael.errors:TaelError",
}

__all__ = [
    "Checkpoint",
    "DType",
    "Format",
    "Limits",
    "Loss",
    "Problem",
    "TaelError",
    "Tensor",
    "TensorInfo",
    "convert",
    "diff",
    "dtype",
    "edit",
    "hash",
    "inspect",
    "open",
    "quantize",
    "verify",
]


def __getattr__(name: str) -> Any:
    where = _WHERE.get(name)
    if where is None:
        raise AttributeError(f"module 'tael' has no attribute {name!r}")
    module, _, attribute = where.partition(":")
    value = getattr(importlib.import_module(module), attribute)
    globals()[name] = value  # the next access is direct, and wins over the submodule of the same name
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
