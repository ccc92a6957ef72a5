# SPDX-License-Identifier: Apache-2.0
"""`tael hash`: ids of tensors, the same in every container."""

from __future__ import annotations

from typing import Annotated

from tael.cli import options, output, screen
from tael.cli.help import Example
from tael.cli.options import flag
from tael.cli.progress import bar
from tael.cli.text import safe

EXAMPLES = (
    Example("tael hash model.safetensors", "one line for each tensor, the whole last"),
    Example("tael hash --whole model.pt", "one id; equal for any container, order and sharding of the same tensors"),
    Example("diff <(tael hash a.pt) <(tael hash b.safetensors)", "which tensors differ, with the tools you know"),
)


def hash(
    path: options.SourcePath,
    whole: Annotated[bool, flag("--whole", "Print only the id of the whole.")] = False,
    source_format: options.SourceFormat = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> int:
    """Ids of the tensors and of the whole, the same in every container.

    An id is the BLAKE3 of dtype, shape and values: it does not depend on the container, the order of the tensors, the
    sharding or the metadata. Stored checksums are compared on the way.
    """
    from tael.formats import open_checkpoint
    from tael.verify.fingerprint import hash_checkpoint

    with open_checkpoint(path, source_format) as checkpoint:
        ids = hash_checkpoint(checkpoint, bar(quiet))
    if as_json:
        tensors = {} if whole else {"tensors": [{"name": name, "id": id} for name, id in ids.tensors.items()]}
        output.document(
            "tael.hash/1", {"path": checkpoint.path, "format": checkpoint.format, "whole": ids.whole} | tensors
        )
        return 0
    out = screen.stdout()
    for name, id in () if whole else ids.tensors.items():
        out.line(f"{id}  {safe(name)}")
    out.line(f"{out.paint(ids.whole, 'bold')}  {safe(checkpoint.path)}")
    return 0
