# SPDX-License-Identifier: Apache-2.0
"""A Hugging Face model folder: one set of weights, and the files that go with it.

    config.json                         architecture, and the dtype of the weights
    model.safetensors                   the weights, or
    model-00001-of-00002.safetensors    shards of them with model.safetensors.index.json, or
    pytorch_model.bin                   the same from PyTorch, alone or as shards with an index
    tokenizer.json, README.md, *.py, .gitattributes, subfolders, ...

Often several copies of the weights lie there. The first of these that is there is the checkpoint, and what is
ignored is said: an indexed set of SafeTensors, a single model.safetensors, an indexed set of .bin, a single
pytorch_model.bin, a set without an index, an adapter, any other single file, the union of several.

All that is not weights is carried along, unread and never run. config.json is rewritten only where the dtype it
speaks of is not that of the tensors.

Source: transformers 5, diffusers, peft and huggingface_hub, which read and write such folders.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from tael.convert.plan import FileBuilder, OutputFile, Plan, Target
from tael.core.checkpoint import Checkpoint
from tael.core.limits import Limits
from tael.core.location import Location
from tael.core.node import Span
from tael.core.problem import Problem
from tael.core.source import ByteSource, read
from tael.errors import CorruptFileError, NotAWeightFileError, SourceError, UnsafeContentError, clip
from tael.formats import hf_config, safetensors, shards
from tael.formats.detect import Probe
from tael.formats.registry import Confidence, Format

CONFIG = "config.json"
PIPELINE = "model_index.json"
ADAPTER = "adapter_model"
BASES = ("model", "pytorch_model", "diffusion_pytorch_model", ADAPTER)  # names that libraries look for
WEIGHTS = (".safetensors", ".bin", ".pt", ".pth")
# Weights in other containers, and training state: not copied into a folder that gets new weights.
OTHER_WEIGHTS = (*WEIGHTS, ".ckpt", ".h5", ".msgpack", ".onnx", ".onnx_data", ".gguf", ".tflite", ".ot", ".npz", ".pb")
UNFINISHED = (".part", ".incomplete")
NOT_CARRIED = frozenset({".git", ".cache", "__pycache__"})
_TRAINING = ("training_args.bin", "optimizer.", "scheduler.", "rng_state", "scaler.")
_ANY_INDEX = re.compile(r"\.index(\.[\w-]+)?\.json$")
_DEEPEST = 16


def match(probe: Probe) -> Confidence:
    if not probe.is_dir:
        return Confidence.NONE
    if any(shards.INDEX_NAME.fullmatch(name) for name in probe.names):
        return Confidence.CERTAIN
    weights = [name for name in probe.names if _is_weights(name)]
    if any(name.startswith(BASES) for name in weights):
        return Confidence.CERTAIN
    if PIPELINE in probe.names or (weights and CONFIG in probe.names):
        return Confidence.LIKELY
    return Confidence.POSSIBLE if any(name.endswith(".safetensors") for name in weights) else Confidence.NONE


def open(location: Location, limits: Limits) -> Checkpoint:
    """One checkpoint of the weights that win; the rest of the folder in `extras`."""
    if not location.is_dir:
        raise NotAWeightFileError(
            "this is a file; a Hugging Face repository is a folder", path=location.path, hint="name the folder"
        )
    chosen, ignored = _choose(location, limits)
    opened = _open_weights(chosen, location, limits)
    problems = list(opened.problems)
    if ignored:
        problems.append(Problem("note", f"{chosen.title} is read; ignored: {_listed(ignored)}", location.path))
    elif chosen.how == "union":
        problems.append(Problem("warning", f"no index: {chosen.title} is read", location.path))
    files, left_out = _side_files(location, limits, problems)
    left_out = sorted(set(left_out) - chosen.files - set(ignored))
    if left_out:
        problems.append(Problem("note", f"not carried along: {_listed(left_out)}", location.path))
    code = [name for name in files if name.endswith(".py")]
    if code:
        problems.append(Problem("note", f"code, carried along and not run: {_listed(code)}", location.path))
    config = _config(files.get(CONFIG), opened, problems)
    extras = {
        **opened.extras,
        "hf.weights": chosen.base,
        "hf.config": config,
        "hf.side_files": SideFiles(files),
    }
    sources = [*opened.sources, *files.values()]
    return replace(opened, format="hf", path=location.path, extras=extras, problems=problems, sources=sources)


def layout(checkpoint: Checkpoint, target: Target) -> Plan:
    """A folder: side files, config.json with the right dtype, weights as SafeTensors, their index last."""
    from tael.formats.safetensors_files import weight_files

    base = checkpoint.extras.get("hf.weights", "model")
    weights = weight_files(checkpoint, base, target.shard_size, pytorch=True)
    files: list[OutputFile] = []
    config = checkpoint.extras.get("hf.config") or {}
    wrong = hf_config.changes(config, checkpoint.tensors.values())
    side_files: SideFiles = checkpoint.extras.get("hf.side_files", SideFiles({}))
    for name, source in side_files.sources.items():
        builder = FileBuilder(name)
        if name == CONFIG and wrong:
            builder.literal(hf_config.corrected(config, wrong))
        elif source.size:
            builder.copy(Span(source, 0, source.size), name)
        files.append(builder.finish())
    return Plan("hf", target.path, True, (*files, *weights))


class SideFiles(dict[str, int]):
    """Relative name -> bytes of what is carried along; `sources` reads it."""

    def __init__(self, sources: Mapping[str, ByteSource]) -> None:
        super().__init__({name: source.size for name, source in sources.items()})
        self.sources = sources


class _Candidate(NamedTuple):
    """One copy of the weights: how to open it, and the names of its files in this folder."""

    title: str
    base: str
    how: str  # "index", "shard", "single" or "union"
    entry: str
    files: frozenset[str]


def _choose(location: Location, limits: Limits) -> tuple[_Candidate, list[str]]:
    """The candidate that wins, and the files of the others."""
    names = location.names()
    if names is None:
        raise NotAWeightFileError(
            "this folder cannot be listed", path=location.path, hint="name the index or the weight file in it"
        )
    candidates = sorted(_candidates(location, names, limits), key=_rank)
    if not candidates:
        inside = " (a pipeline: its parts lie in subfolders)" if PIPELINE in names else ""
        raise NotAWeightFileError(
            f"no weight files in this folder{inside}", path=location.path, hint="name the folder that holds the weights"
        )
    # An index none of whose shards is here is a leftover, unless there is nothing else.
    here = [c for c in candidates if c.how != "index" or not (c.files - {c.entry}).isdisjoint(names)]
    best = (here or candidates)[0]
    others = {name for candidate in candidates for name in candidate.files} - best.files
    return best, sorted(others.intersection(names))


def _candidates(location: Location, names: list[str], limits: Limits) -> Iterator[_Candidate]:
    covered: set[str] = set()
    for name in names:
        index = shards.INDEX_NAME.fullmatch(name)
        if index:
            files = frozenset(shards.read_index(location.child(name), limits).files)
            covered |= files
            base = index["base"] + (index["variant"] or "")
            yield _Candidate(name, _target_base(base), "index", name, files | {name})
    singles = []
    for name in names:
        if name in covered or not _is_weights(name):
            continue
        part = shards.shard_name(name)
        if part and int(part["count"]) > 1:
            same = part.group("base", "count", "rest")
            files = frozenset(
                n for n in names if (other := shards.shard_name(n)) and other.group("base", "count", "rest") == same
            )
            covered |= files
            yield _Candidate(f"the set of {name}", _target_base(part["base"]), "shard", name, files)
        else:
            singles.append(name)
    for name in singles:
        yield _Candidate(name, _target_base(name.rsplit(".", 1)[0]), "single", name, frozenset({name}))
    for suffix in WEIGHTS:
        several = [name for name in singles if name.endswith(suffix) and not name.startswith(BASES)]
        if len(several) > 1:
            yield _Candidate(f"the union of {_listed(several)}", "model", "union", suffix, frozenset(several))


def _rank(candidate: _Candidate) -> tuple[Any, ...]:
    """Smaller wins; see the module's docstring."""
    is_torch = not any(name.endswith(".safetensors") for name in candidate.files)
    stem = candidate.entry.rsplit(".", 1)[0]
    unusual = not candidate.entry.startswith(BASES)
    kind = {"index": 0, "single": 1, "shard": 2, "union": 4}[candidate.how]
    if candidate.how == "single" and stem not in BASES:
        kind = 5
    if stem == ADAPTER:
        kind = 3
    where = (0, is_torch, kind) if kind < 2 else (1, kind, is_torch)
    return (*where, unusual, len(candidate.entry), candidate.entry)


def _target_base(base: str) -> str:
    """The name under which new weights are looked for."""
    return base if base in (ADAPTER, "diffusion_pytorch_model") else "model"


def _open_weights(chosen: _Candidate, location: Location, limits: Limits) -> Checkpoint:
    if chosen.how in ("index", "shard"):
        return shards.open(location.child(chosen.entry), limits)
    if chosen.how == "single":
        return shards.open_member(location.child(chosen.entry), limits)
    return shards.open_union([location.child(name) for name in sorted(chosen.files)], location.path, limits)


def _side_files(location: Location, limits: Limits, problems: list[Problem]) -> tuple[dict[str, ByteSource], list[str]]:
    """Every file that is not weights, by relative name, and the names of what is left out."""
    files: dict[str, ByteSource] = {}
    left_out: list[str] = []
    pending = [("", location)]
    while pending:
        prefix, folder = pending.pop(0)
        try:
            names = folder.names() or []
        except SourceError as error:
            problems.append(Problem("warning", f"not carried along: {error.cause}", prefix))
            continue
        for name in names:
            relative = prefix + name
            if name in NOT_CARRIED:
                continue
            if _is_other_weights(name):
                left_out.append(relative)
                continue
            try:
                child = folder.child(name)
                if not child.is_dir:
                    files[relative] = child.source()
                # A link to a folder may lead back to where it lies.
                elif os.path.islink(child.path) or relative.count("/") >= _DEEPEST:
                    left_out.append(relative + "/")
                else:
                    pending.append((relative + "/", child))
            except (UnsafeContentError, SourceError) as error:
                problems.append(Problem("warning", f"not carried along: {error.cause}", relative))
        limits.check("the number of files", len(files), limits.shards, path=location.path)
    return files, left_out


def _config(source: ByteSource | None, opened: Checkpoint, problems: list[Problem]) -> Mapping[str, Any] | None:
    """The parsed config.json; what it says wrong of the dtypes goes to `problems`."""
    if source is None:
        return None
    try:
        config = hf_config.parse(read(source, 0, source.size), CONFIG)
    except CorruptFileError as error:
        problems.append(Problem("warning", f"cannot be read, and is carried along as it is: {error.cause}", CONFIG))
        return None
    for change in hf_config.changes(config, opened.tensors.values()):
        what = f"{change.key} is {change.said}, the tensors are {change.real}; converting puts it right"
        problems.append(Problem("warning", what, CONFIG))
    return config


def _is_weights(name: str) -> bool:
    return name.endswith(WEIGHTS) and not name.startswith((".", *_TRAINING))


def _is_other_weights(name: str) -> bool:
    return name.endswith((*OTHER_WEIGHTS, *UNFINISHED)) or _ANY_INDEX.search(name) is not None


def _listed(names: list[str]) -> str:
    most = 8
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(clip, names[:most])) + more


FORMAT = Format(
    id="hf",
    title="Hugging Face folder",
    suffixes=(),
    dtypes=safetensors.FORMAT.dtypes,
    capabilities=frozenset({"read", "write", "metadata", "aliases", "shards", "folder"}),
    match=match,
    open=open,
    layout=layout,
)
