# SPDX-License-Identifier: Apache-2.0
"""What torch's names in a pickle become: descriptions of tensors and storages, dtypes, devices (see torch_rules.py)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tael.errors import CorruptFileError
from tael.pickle.stubs import Global, LazyBytes

TOO_LARGE = 1 << 63


@dataclass(frozen=True, slots=True)
class TorchDtype:
    """torch.float32 and so on; `name` without "torch."."""

    name: str


@dataclass(frozen=True, slots=True)
class TorchConstant:
    """A layout ("strided"), a quantization scheme ("per_tensor_affine") or a memory format ("channels_last")."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class TorchDevice:
    type: str
    index: int | None = None


@dataclass(frozen=True, slots=True)
class StorageType:
    """torch.FloatStorage and so on; `dtype` is None for UntypedStorage (bytes) and TypedStorage."""

    name: str
    dtype: TorchDtype | None


@dataclass(slots=True, eq=False)
class StorageRef:
    """A storage by its `key` in the container. `numel` counts elements of `dtype`, bytes when that is None.

    `view`: (key, offset, numel) of a part of it, as legacy files of torch before 0.4 have.
    """

    key: str
    dtype: TorchDtype | None
    location: str
    numel: int
    view: tuple[str, int, int] | None = None


@dataclass(slots=True, eq=False)
class EmbeddedStorage:
    """A storage pickled on its own (pickle.dump of a tensor): `data` is a whole legacy torch file holding it."""

    data: bytes | LazyBytes


class TensorRef:
    """A tensor that was not built. `storage` is what `persistent` returned for it, or an EmbeddedStorage.

    `kind`: "strided", "quantized", "sparse", "nested", "meta", "wrapper" (a subclass without data, FakeTensor) or
    "numpy" (made on a device from an array). Only the first two have a storage. `dtype` is None where the storage's
    own holds. `extra` holds what the kind needs: quantizer; layout, indices, values, coalesced; buffer, sizes, ...
    `python_type` is the subclass's Global; `metadata` torch's conj and neg bits; `state` a subclass's attributes.
    """

    __slots__ = (
        "dtype", "extra", "kind", "metadata", "offset", "parameter", "python_type", "requires_grad", "size", "state",
        "storage", "stride",
    )  # fmt: skip

    def __init__(
        self,
        storage: Any,
        offset: int,
        size: tuple[int, ...],
        stride: tuple[int, ...],
        requires_grad: bool = False,
        dtype: TorchDtype | None = None,
        kind: str = "strided",
    ) -> None:
        self.storage = storage
        self.offset = offset
        self.size = size
        self.stride = stride
        self.requires_grad = requires_grad
        self.dtype = dtype
        self.kind = kind
        self.parameter = False
        self.metadata: Any = None
        self.python_type: Global | None = None
        self.state: Any = None
        self.extra: dict[str, Any] | None = None

    @property
    def is_flat(self) -> bool:
        """Whether nothing hangs on it that could be nested."""
        return self.extra is None and self.state is None and self.metadata is None and type(self.storage) is StorageRef

    def again(self) -> TensorRef:
        """A copy, because a Parameter and the tensor that it was made from are two objects."""
        copy = TensorRef(self.storage, self.offset, self.size, self.stride, self.requires_grad, self.dtype, self.kind)
        copy.parameter, copy.metadata, copy.python_type = self.parameter, self.metadata, self.python_type
        copy.state, copy.extra = self.state, self.extra
        return copy

    def __repr__(self) -> str:
        return f"<{self.kind} tensor {self.size}>"


def storage_ref(saved_id: object) -> StorageRef:
    """The storage that a persistent id of torch names: ("storage", type, key, location, numel[, view])."""
    if type(saved_id) is not tuple or len(saved_id) not in (5, 6) or saved_id[0] != "storage":
        raise CorruptFileError("a persistent id that names no torch storage")
    _, kind, key, location, numel = saved_id[:5]
    if type(kind) is not StorageType or type(key) is not str or type(location) is not str:
        raise CorruptFileError("a persistent id of torch with a malformed storage")
    if type(numel) is not int or not 0 <= numel < TOO_LARGE:
        raise CorruptFileError("a torch storage of an impossible size")
    view = saved_id[5] if len(saved_id) == 6 else None
    if view is not None:
        if type(view) is not tuple or len(view) != 3 or type(view[0]) is not str:
            raise CorruptFileError("a torch storage with a malformed view")
        if type(view[1]) is not int or type(view[2]) is not int or not 0 <= view[1] <= view[1] + view[2] <= numel:
            raise CorruptFileError("a torch storage with a view beyond its end")
    return StorageRef(key, kind.dtype, location, numel, view)
