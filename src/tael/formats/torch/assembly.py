# SPDX-License-Identifier: Apache-2.0
"""From a loaded pickle and its storages to a `Checkpoint`: the part that all layouts of torch files share.

Tensors are named by their path (tree.py), of a pickled nn.Module by its state dict. What is no tensor goes to the
metadata where JSON can hold it, else to the extras:

    torch.tree           the nested structure, a TensorLeaf for each tensor
    torch.layout         "zip", "legacy", "tar", "torchscript" or "pickle"
    torch.objects        name -> one line about a value that is neither tensor nor plain
    torch.globals        classes and functions that the file names and tael does not know, never imported
    torch.modules        where a whole nn.Module was pickled: path -> class
    torch.expanded       names of views that have more elements than their storage
    torch.requires_grad  names
    torch.records        small records of the zip: version, byteorder, ...
    torch.constants, torch.code, torch.attributes    of a TorchScript archive
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tael.core.checkpoint import Checkpoint
from tael.core.limits import Limits
from tael.core.problem import Problem
from tael.core.source import ByteSource, read
from tael.formats.torch import report
from tael.formats.torch import tree as torch_tree
from tael.formats.torch.objects import Remainder
from tael.formats.torch.storage import Find
from tael.formats.torch.survey import Survey
from tael.formats.torch.tensors import QUANTIZATION, TensorMaker, is_tensor
from tael.formats.torch.tree import TensorLeaf
from tael.pickle import GlobalUse, LazyBytes, Loaded, decode


@dataclass(slots=True)
class Parsed:
    """A torch file, read but not yet named: one object, the storages its tensors lie in, and what was noticed.

    source: where `LazyBytes` lie. sources: every source to close. quiet: prefixes of classes that are no news.
    """

    path: str
    layout: str
    value: Any
    find: Find
    source: ByteSource
    sources: Sequence[ByteSource]
    globals: Sequence[GlobalUse] = ()
    notes: Sequence[str] = ()
    problems: list[Problem] = field(default_factory=list)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    extras: dict[str, Any] = field(default_factory=dict)
    quiet: tuple[str, ...] = ()

    def take(self, loaded: Loaded) -> None:
        self.globals, self.notes = loaded.globals, loaded.notes


def assemble(parsed: Parsed, limits: Limits) -> Checkpoint:
    """The checkpoint. Raises `LimitExceededError` for too many tensors or values."""
    path = parsed.path
    maker = TensorMaker(parsed.find, parsed.source, limits, path)
    survey = Survey(parsed.value, limits, path, text_reader(parsed.source))
    remainder = Remainder(parsed.value, survey, limits)
    found, tree = torch_tree.flatten(parsed.value, is_tensor, view=survey.view, limits=limits, path=path)
    limits.check("the number of tensors", len(found), limits.tensors, path=path)
    tensors = {name: maker.make(name, value) for name, value in found}
    for tensor in maker.added:
        if tensor.name not in tensors and isinstance(tree, dict):
            tensors[tensor.name] = tensor
            tree[tensor.name] = TensorLeaf(tensor.name)
    metadata = {**remainder.metadata, **parsed.metadata}
    if maker.quantization:
        metadata[QUANTIZATION] = {**metadata.get(QUANTIZATION, {}), **maker.quantization}
    extras = {"torch.layout": parsed.layout, torch_tree.KEY: tree, **parsed.extras}
    unknown = [use for use in parsed.globals if not use.known and not use.qualified.startswith(parsed.quiet or "\0")]
    for key, value in (
        ("torch.objects", remainder.objects),
        ("torch.modules", next(iter(remainder.modules.values()), None)),
        ("torch.globals", tuple(use.qualified for use in unknown)),
        ("torch.expanded", tuple(maker.expanded)),
        ("torch.requires_grad", tuple(maker.requires_grad)),
    ):
        if value:
            extras[key] = value
    problems = [
        *parsed.problems,
        *(Problem("note", note, path) for note in parsed.notes),
        *report.about_globals(unknown, path),
        *report.about_rest(remainder.mixed, maker, path),
        *report.about_tensors(found, path),
        *maker.problems,
    ]
    return Checkpoint("torch", path, tensors, metadata, extras, tuple(problems), sources=tuple(parsed.sources))


def text_reader(source: ByteSource) -> Callable[[LazyBytes], str]:
    """Reads a long string that the pickle machine stepped over."""

    def read_text(lazy: LazyBytes) -> str:
        text = decode(lazy, read(source, lazy.offset, lazy.nbytes))
        return text if isinstance(text, str) else text.decode("latin-1")

    return read_text
