# SPDX-License-Identifier: Apache-2.0
"""Every reader times every writer, from the registry: the torture checkpoint goes A -> B and must arrive bit-exact."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tael.convert import plan_conversion
from tael.convert.execute import execute
from tael.core.checkpoint import Checkpoint
from tael.core.dtypes import DTYPES
from tael.core.problem import LossKind
from tael.formats import open_checkpoint, registry
from tael.formats.registry import Format
from tael.testing import torture
from tael.testing.conformance import raw

WRITERS = [fmt for fmt in registry.builtin() if fmt.layout is not None]
PAIRS = list(itertools.product(WRITERS, WRITERS))
HARMLESS: set[LossKind] = {"shared-storage"}  # the values are all there


def name_in(folder: Path, fmt: Format, stem: str) -> Path:
    return folder / f"{stem}{next(iter(fmt.suffixes), '')}"


def cases(a: Format, b: Format) -> Iterator[Checkpoint]:
    names = [name for name in DTYPES if name in a.dtypes and name in b.dtypes]
    whole = torture(names)
    if "one-tensor" in a.capabilities or "one-tensor" in b.capabilities:
        for tensor in whole.owners:
            yield whole.with_tensors([tensor])
    else:
        yield whole


@pytest.mark.parametrize(("a", "b"), PAIRS, ids=[f"{a.id}-{b.id}" for a, b in PAIRS])
def test_round_trip(a: Format, b: Format, tmp_path: Path) -> None:
    for number, case in enumerate(cases(a, b)):
        folder = tmp_path / str(number)
        folder.mkdir()
        one = "one-tensor" in a.capabilities or "one-tensor" in b.capabilities
        first = plan_conversion(case, name_in(folder, a, "a"), to=a.id)
        execute(first)
        with open_checkpoint(name_in(folder, a, "a")) as between:
            second = plan_conversion(between, name_in(folder, b, "b"), to=b.id)
            execute(second)
        with open_checkpoint(name_in(folder, b, "b")) as back:
            losses = {loss.kind for plan in (first, second) for loss in plan.losses} - HARMLESS
            wanted, found = raw(case), raw(back)
            if one:
                wanted = {"": next(iter(wanted.values()))}
                found = {"": next(iter(found.values()))}
            if "dtype" in losses:
                assert {n: v[2] for n, v in found.items()} == {n: v[2] for n, v in wanted.items()}
            else:
                assert found == wanted
            assert "alias" in losses or back.aliases == case.aliases
            if "metadata" not in losses:
                assert {k: v for k, v in back.metadata.items() if k in case.metadata} == dict(case.metadata)
