# SPDX-License-Identifier: Apache-2.0
"""What every format must do, whatever it is: subclass `FormatConformance` (or the reader's half) and set `format`."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from tael.convert import plan_conversion
from tael.convert.execute import execute
from tael.convert.plan import to_dict
from tael.core.checkpoint import Checkpoint
from tael.core.dtypes import DTYPES
from tael.core.limits import DEFAULT
from tael.core.location import locate
from tael.core.node import Contiguous, Span
from tael.core.source import BytesSource, FileSource
from tael.core.tensor import Tensor, TensorInfo
from tael.errors import TaelError, UnsupportedTensorError
from tael.formats.detect import Probe
from tael.formats.registry import Confidence, Format
from tael.testing.torture import torture


def raw(checkpoint: Checkpoint) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Name -> dtype, shape and canonical bytes of every tensor."""
    tensors = checkpoint.tensors.values()
    return {t.name: (t.dtype.name, t.shape, b"".join(bytes(piece) for piece in t.chunks(1000))) for t in tensors}


class ReaderConformance:
    """For a format that is only read: subclasses say how its files are made (`write`). pytest collects them."""

    format: ClassVar[Format]
    suffix: ClassVar[str | None] = None  # of the files written here; the format's first by default

    # --- what is written and read

    def cases(self) -> Iterator[Checkpoint]:
        """Checkpoints this format must hold."""
        names = [name for name in DTYPES if name in self.format.dtypes]
        whole = torture(names)
        if "one-tensor" not in self.format.capabilities:
            yield whole
            yield torture(names, ties=False, views=False)
            return
        for tensor in whole.owners:
            yield replace(whole, tensors={tensor.name: tensor}, metadata={})

    def target(self, folder: Path) -> Path:
        suffix = self.suffix if self.suffix is not None else next(iter(self.format.suffixes), "")
        return folder / f"written{suffix}"

    def write(self, checkpoint: Checkpoint, path: Path) -> Path:
        """Make a file of this format at or near `path`; returns what to open."""
        raise NotImplementedError

    def stated(self, checkpoint: Checkpoint, path: Path) -> set[str]:
        """The kinds of losses that are stated when `checkpoint` is written to `path`."""
        return set()

    def read(self, path: Path) -> Checkpoint:
        assert self.format.open is not None
        return self.format.open(locate(path), DEFAULT)

    # --- the tests

    def test_round_trip_is_bit_exact(self, tmp_path: Path) -> None:
        for number, case in enumerate(self.cases()):
            folder = tmp_path / str(number)
            folder.mkdir()
            with self.read(self.write(case, self.target(folder))) as back:
                wanted, found = raw(case), raw(back)
                if "one-tensor" in self.format.capabilities:
                    wanted, found = {"": next(iter(wanted.values()))}, {"": next(iter(found.values()))}
                if "dtype" in self.stated(
                    case, self.target(folder)
                ):  # opaque bytes under another type: the bits must still be there
                    assert {n: v[2] for n, v in found.items()} == {n: v[2] for n, v in wanted.items()}
                else:
                    assert found == wanted

    def test_ties_and_metadata_come_back_or_are_stated_as_lost(self, tmp_path: Path) -> None:
        for number, case in enumerate(self.cases()):
            folder = tmp_path / str(number)
            folder.mkdir()
            kinds = self.stated(case, self.target(folder))
            with self.read(self.write(case, self.target(folder))) as back:
                assert "alias" in kinds or back.aliases == case.aliases
                kept = {key: value for key, value in back.metadata.items() if key in case.metadata}
                assert "metadata" in kinds or kept == dict(case.metadata)

    def test_opening_does_not_read_the_payload(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        kind = "U8" if "U8" in self.format.dtypes else "I8"
        big = Checkpoint("memory", "big", {"big": _zeros("big", kind, 8 << 20)})
        path = self.write(big, self.target(tmp_path))
        taken = 0
        real = FileSource.read_into

        def count(self: FileSource, offset: int, buffer: memoryview) -> None:
            nonlocal taken
            taken += buffer.nbytes
            real(self, offset, buffer)

        monkeypatch.setattr(FileSource, "read_into", count)
        with self.read(path) as checkpoint:
            assert [tensor.nbytes for tensor in checkpoint.tensors.values()] == [8 << 20]
        assert taken < 1 << 20

    def test_damage_gives_a_clear_error_or_a_fatal_problem(self, tmp_path: Path) -> None:
        case = next(self.cases())
        path = self.write(case, self.target(tmp_path))
        victim = path if path.is_file() else max((p for p in path.iterdir()), key=lambda p: p.stat().st_size)
        whole = victim.read_bytes()
        size = len(whole)
        cuts = {0, 1, 7, 8, 9, size // 3, size // 2, size - 1, *range(10, min(size, 400), 13)}
        flips = [*range(0, min(size, 600), 7), *range(max(0, size - 200), size, 11)]
        damaged = [whole[:cut] for cut in cuts] + [_flip(whole, at) for at in flips] + [whole + b"\0trailing"]
        for number, data in enumerate(damaged):
            victim.write_bytes(data)
            try:
                with self.read(path) as checkpoint:
                    for tensor in checkpoint.tensors.values():
                        for _ in tensor.chunks():
                            pass
            except TaelError as error:
                text = str(error)
                assert len(text) < 4000, f"damage {number}: {text}"
                assert text.count("\n") < 4, f"damage {number}: {text}"


class FormatConformance(ReaderConformance):
    """For a format that is read and written. Override `cases` for a container that holds less than a checkpoint."""

    def write(self, checkpoint: Checkpoint, path: Path) -> Path:
        execute(plan_conversion(checkpoint, path, to=self.format.id), force=True)
        return path

    def stated(self, checkpoint: Checkpoint, path: Path) -> set[str]:
        return {loss.kind for loss in plan_conversion(checkpoint, path, to=self.format.id).losses}

    def test_a_dtype_it_cannot_hold_is_refused(self, tmp_path: Path) -> None:
        for name in DTYPES.keys() - self.format.dtypes - {"STRING"}:
            case = torture([name], ties=False, views=False)
            with pytest.raises(UnsupportedTensorError, match=name):
                plan_conversion(case, self.target(tmp_path), to=self.format.id)

    def test_the_plan_is_pure_data_exact_and_repeatable(self, tmp_path: Path) -> None:
        for case in self.cases():
            plan = plan_conversion(case, self.target(tmp_path), to=self.format.id)
            text = json.dumps(to_dict(plan), sort_keys=True)
            again = plan_conversion(case, self.target(tmp_path), to=self.format.id)
            assert text == json.dumps(to_dict(again), sort_keys=True)
            for file in plan.files:
                spots = sorted((part.offset, part.nbytes) for part in file.parts)
                assert all(a + n <= b for (a, n), (b, _) in itertools.pairwise(spots)), "parts overlap"
                assert all(at + n <= file.size for at, n in spots), "a part lies past the end"
            report = execute(plan, force=True)
            assert [os.path.getsize(path) for path in report.files] == [file.size for file in plan.files]

    def test_planning_reads_no_payload(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(self: BytesSource, offset: int, buffer: memoryview) -> None:
            raise AssertionError("layout read a tensor")

        monkeypatch.setattr(BytesSource, "read_into", refuse)
        for case in self.cases():
            plan_conversion(case, self.target(tmp_path), to=self.format.id)

    def test_what_was_written_is_recognised_by_its_content(self, tmp_path: Path) -> None:
        from tael.formats.detect import detect

        for number, case in enumerate(self.cases()):
            folder = tmp_path / str(number)
            folder.mkdir()
            path = self.write(case, self.target(folder))
            if path.is_file():
                path = path.rename(path.with_name("renamed.xyz"))
            assert self.format.match(Probe(locate(path))) > Confidence.NONE
            assert detect(locate(path)).id == self.format.id


def _flip(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :]


def _zeros(name: str, kind: str, size: int) -> Tensor:
    node = Contiguous(DTYPES[kind], (size,), Span(BytesSource(bytes(size), name), 0, size))
    return Tensor(TensorInfo(name, node.dtype, node.shape), node)
