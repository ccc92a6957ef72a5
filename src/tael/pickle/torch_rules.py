# SPDX-License-Identifier: Apache-2.0
"""How calls of torch's names become descriptions. The arguments come from the file.

Checked here: sizes, strides and offsets are integers from 0 to 2**63 - 1, as many strides as sizes, rank within the
limits. Not checked here: whether a storage holds that many bytes, because only the container knows.
Source: torch/_utils.py, _tensor.py, storage.py, serialization.py of 2.13, and of 0.3 to 2.x for what these replaced.
"""

from __future__ import annotations

from typing import Any

from tael.errors import CorruptFileError
from tael.pickle.budget import Budget
from tael.pickle.numpy_types import NumpyArray
from tael.pickle.stubs import Call, Global, LazyBytes, Rule, StubDict
from tael.pickle.torch_types import (
    TOO_LARGE,
    EmbeddedStorage,
    StorageType,
    TensorRef,
    TorchConstant,
    TorchDevice,
    TorchDtype,
)

_NO_STORAGE = frozenset({
    type(None), bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset, StubDict, Call,
    Global, LazyBytes, NumpyArray,
})  # fmt: skip
_EXTRA_BYTES = 512  # of a dict for `extra`


def _geometry(offset: object, size: object, stride: object, budget: Budget) -> None:
    if type(size) is not tuple or type(stride) is not tuple or len(size) != len(stride):
        raise CorruptFileError("a tensor whose size and stride do not match")
    if len(size) > budget.limits.rank:
        budget.limits.check("the rank of a tensor", len(size), budget.limits.rank, path=budget.path)
    if type(offset) is not int or not 0 <= offset < TOO_LARGE:
        raise CorruptFileError("a tensor with an impossible storage offset")
    for number in size + stride:
        if type(number) is not int or not 0 <= number < TOO_LARGE:
            raise CorruptFileError("a tensor with an impossible size or stride")


def _dtype_of(value: object) -> TorchDtype:
    if type(value) is not TorchDtype:
        raise CorruptFileError("a tensor whose dtype is none")
    return value


def _arity(args: tuple[Any, ...], *allowed: int) -> None:
    if len(args) not in allowed:
        raise CorruptFileError(f"a torch object made from {len(args)} arguments")


def _tensor_v2(args: tuple[Any, ...], budget: Budget) -> Any:
    if not 4 <= len(args) <= 7:
        _arity(args, 4, 6)
    storage, offset, size, stride = args[:4]
    if type(storage) in _NO_STORAGE:
        raise CorruptFileError(f"a tensor whose storage is a {type(storage).__name__}")
    _geometry(offset, size, stride, budget)
    tensor = TensorRef(storage, offset, size, stride, len(args) > 4 and args[4] is True)
    if len(args) == 7:
        tensor.metadata = args[6]
    return tensor


def _tensor_v3(args: tuple[Any, ...], budget: Budget) -> Any:
    _arity(args, 7, 8)
    tensor = _tensor_v2(args[:6], budget)
    tensor.dtype = _dtype_of(args[6])
    tensor.metadata = args[7] if len(args) == 8 else None
    return tensor


def _parameter(args: tuple[Any, ...], budget: Budget) -> Any:
    _arity(args, 2, 3, 4)
    if type(args[0]) is not TensorRef:
        return Call(Global("torch._utils", "_rebuild_parameter"), args)
    tensor = args[0].again()
    tensor.parameter, tensor.requires_grad = True, args[1] is True
    if len(args) == 4:
        tensor.state = args[3]
    return tensor


def _quantized(args: tuple[Any, ...], budget: Budget) -> Any:
    _arity(args, 6, 7)
    budget.keep(_EXTRA_BYTES)
    tensor = _tensor_v2(args[:4], budget)
    tensor.kind, tensor.requires_grad, tensor.extra = "quantized", args[5] is True, {"quantizer": args[4]}
    if type(args[4]) is not tuple or not args[4]:
        raise CorruptFileError("a quantized tensor without its quantizer")
    return tensor


def _no_data(
    kind: str, dtype: TorchDtype | None, size: object, grad: object, budget: Budget, **extra: Any
) -> TensorRef:
    size = () if size is None else size
    _geometry(0, size, size, budget)
    budget.keep(_EXTRA_BYTES)
    tensor = TensorRef(None, 0, size, (), grad is True, dtype, kind)  # type: ignore[arg-type]
    tensor.extra = extra
    return tensor


def _sparse(args: tuple[Any, ...], budget: Budget) -> Any:
    _arity(args, 2)
    layout, data = args
    if type(data) is not tuple or len(data) not in (3, 4) or type(layout) is not TorchConstant:
        raise CorruptFileError("a sparse tensor with malformed parts")
    if layout.name == "sparse_coo":
        names = ("indices", "values", "size", "coalesced")
    else:
        names = ("compressed", "plain", "values", "size")
    parts = dict(zip(names, data, strict=False))
    values = parts["values"]
    dtype = values.dtype if type(values) is TensorRef else None
    return _no_data("sparse", dtype, parts.pop("size", None), False, budget, layout=layout.name, **parts)


def _nested(args: tuple[Any, ...], budget: Budget) -> Any:
    _arity(args, 4)
    buffer, sizes, strides, offsets = args
    dtype = buffer.dtype if type(buffer) is TensorRef else None
    return _no_data("nested", dtype, None, False, budget, buffer=buffer, sizes=sizes, strides=strides, offsets=offsets)


def _meta(args: tuple[Any, ...], budget: Budget) -> Any:
    _arity(args, 4)
    dtype, size, stride, grad = args
    _geometry(0, size, stride, budget)
    return _no_data("meta", _dtype_of(dtype), size, grad, budget, stride=stride)


def _wrapper(args: tuple[Any, ...], budget: Budget) -> Any:
    _arity(args, 8)
    cls, dtype, size, stride, offset, layout, device, grad = args
    _geometry(offset, size, stride, budget)
    tensor = _no_data("wrapper", _dtype_of(dtype), size, grad, budget, layout=layout, device=device)
    tensor.python_type = cls if type(cls) is Global else None
    return tensor


def _from_numpy(args: tuple[Any, ...], budget: Budget) -> Any:
    _arity(args, 4)
    data, dtype, device, grad = args
    if type(data) is not NumpyArray:
        raise CorruptFileError("a tensor made from something that is no numpy array")
    return _no_data("numpy", _dtype_of(dtype), data.shape, grad, budget, data=data, device=device)


def _from_cpu_tensor(args: tuple[Any, ...], budget: Budget) -> Any:
    _arity(args, 4)
    if type(args[0]) is not TensorRef:
        raise CorruptFileError("a tensor made from something that is no tensor")
    budget.keep(_EXTRA_BYTES)
    tensor = args[0].again()
    tensor.requires_grad, tensor.extra = args[3] is True, {"device": args[2], "wanted_dtype": _dtype_of(args[1])}
    return tensor


def _from_type(args: tuple[Any, ...], budget: Budget) -> Any:
    """(function, subclass, its arguments, attributes): the plain tensor, with the others noted on it."""
    _arity(args, 4)
    func, cls, inner, state = args
    rule = func.rule if type(func) is Global else None
    if rule is None or rule.build is None or rule.build is _from_type or type(inner) is not tuple:
        return Call(Global("torch._tensor", "_rebuild_from_type_v2"), args)
    func.use.called = True
    tensor = rule.build(inner, budget)
    if type(tensor) is not TensorRef:
        return Call(Global("torch._tensor", "_rebuild_from_type_v2"), args)
    tensor.python_type = cls if type(cls) is Global else None
    tensor.state = state
    return tensor


def _size(args: tuple[Any, ...], budget: Budget) -> Any:
    sizes = args[0] if len(args) == 1 else ()
    if len(args) > 1 or type(sizes) not in (tuple, list) or set(map(type, sizes)) - {int}:
        raise CorruptFileError("a torch.Size of something else than integers")
    budget.limits.check("the rank of a torch.Size", len(sizes), budget.limits.rank, path=budget.path)
    budget.keep(8 * len(sizes))
    return tuple(sizes)


def _device(args: tuple[Any, ...], budget: Budget) -> Any:
    if len(args) not in (1, 2) or type(args[0]) is not str or type(args[-1]) not in (str, int):
        raise CorruptFileError("a malformed torch.device")
    kind, _, index = args[0].partition(":")
    if len(args) == 2:
        return TorchDevice(kind, args[1])
    return TorchDevice(kind, int(index) if index.isascii() and index.isdigit() and len(index) < 10 else None)


def _layout(args: tuple[Any, ...], budget: Budget) -> Any:
    if len(args) != 1 or type(args[0]) is not str or args[0].removeprefix("torch.") not in _LAYOUTS:
        raise CorruptFileError("an unknown torch.layout")
    return TorchConstant("layout", args[0].removeprefix("torch."))


def _version(args: tuple[Any, ...], budget: Budget) -> Any:
    if len(args) != 1 or type(args[0]) is not str:
        raise CorruptFileError("a malformed torch version")
    return args[0]


def _embedded(args: tuple[Any, ...], budget: Budget) -> Any:
    if len(args) != 1 or type(args[0]) not in (bytes, LazyBytes):
        raise CorruptFileError("an embedded torch storage without its bytes")
    return EmbeddedStorage(args[0])


_LAYOUTS = ("strided", "sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc", "jagged", "_mkldnn")

_DTYPES = {
    name: name
    for name in (
        "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool",
        "uint16", "uint32", "uint64", "complex32", "complex64", "complex128",
        "qint8", "qint32", "quint8", "quint4x2", "quint2x4", "bits8", "bits16", "bits1x8", "bits2x4", "bits4x2",
        "float8_e5m2", "float8_e4m3fn", "float8_e5m2fnuz", "float8_e4m3fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2",
        *(f"{kind}{bits}" for kind in ("int", "uint") for bits in range(1, 8)),
    )
} | {
    "double": "float64", "float": "float32", "half": "float16", "long": "int64", "int": "int32", "short": "int16",
    "chalf": "complex32", "cfloat": "complex64", "cdouble": "complex128",
}  # fmt: skip

STORAGES = {
    "DoubleStorage": "float64", "FloatStorage": "float32", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
    "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8",
    "ByteStorage": "uint8", "BoolStorage": "bool", "ComplexDoubleStorage": "complex128",
    "ComplexFloatStorage": "complex64", "QInt8Storage": "qint8", "QInt32Storage": "qint32",
    "QUInt8Storage": "quint8", "QUInt4x2Storage": "quint4x2", "QUInt2x4Storage": "quint2x4",
}  # fmt: skip

_CONSTANTS = {
    "qscheme": (
        "per_tensor_affine", "per_tensor_symmetric", "per_channel_affine", "per_channel_symmetric",
        "per_channel_affine_float_qparams",
    ),
    "memory_format": ("contiguous_format", "channels_last", "channels_last_3d", "preserve_format"),
    "layout": _LAYOUTS,
}  # fmt: skip

_UTILS = {
    "_rebuild_tensor": _tensor_v2,
    "_rebuild_tensor_v2": _tensor_v2,
    "_rebuild_tensor_v3": _tensor_v3,
    "_rebuild_parameter": _parameter,
    "_rebuild_parameter_with_state": _parameter,
    "_rebuild_qtensor": _quantized,
    "_rebuild_sparse_tensor": _sparse,
    "_rebuild_sparse_csr_tensor": _sparse,
    "_rebuild_nested_tensor": _nested,
    "_rebuild_meta_tensor_no_storage": _meta,
    "_rebuild_wrapper_subclass": _wrapper,
    "_rebuild_device_tensor_from_numpy": _from_numpy,
    "_rebuild_xla_tensor": _from_numpy,
    "_rebuild_device_tensor_from_cpu_tensor": _from_cpu_tensor,
}

_TENSORS = [name.replace("Storage", "Tensor") for name in STORAGES]

RULES: dict[str, Rule] = {
    **{f"torch._utils.{name}": Rule(build) for name, build in _UTILS.items()},
    "torch._tensor._rebuild_from_type_v2": Rule(_from_type),
    "torch._tensor._rebuild_from_type": Rule(_from_type),
    "torch.tensor._rebuild_from_type": Rule(_from_type),
    "torch.Size": Rule(_size),
    "torch.device": Rule(_device),
    "torch.torch_version.TorchVersion": Rule(_version, new=True),
    "torch.serialization._get_layout": Rule(_layout),
    "torch.storage._load_from_bytes": Rule(_embedded),
    "torch.Tensor": Rule(),
    "torch._tensor.Tensor": Rule(),
    "torch.nn.parameter.Parameter": Rule(),
    "torch.nn.parameter.Buffer": Rule(),
    "torch._subclasses.fake_tensor.FakeTensor": Rule(),
    **{f"torch.{name}": Rule(value=TorchDtype(meant)) for name, meant in _DTYPES.items()},
    **{f"torch.{name}": Rule(value=TorchConstant(kind, name)) for kind, names in _CONSTANTS.items() for name in names},
    **{
        f"torch.{device}{name}": Rule(value=StorageType(name, TorchDtype(dtype)))
        for device in ("", "cuda.")
        for name, dtype in STORAGES.items()
    },
    **{
        f"torch.storage.{private}{name}": Rule(value=StorageType(name, None))
        for private in ("", "_")
        for name in ("UntypedStorage", "TypedStorage")
    },
    **{f"torch.{device}{name}": Rule() for device in ("", "cuda.") for name in _TENSORS},
}
