# SPDX-License-Identifier: Apache-2.0
"""Runs a plan: cuts its parts into units, computes or copies them on a few threads, and finishes the files.

A unit is about 8 MiB of output. Its slices' CRC-32s are taken in passing: they feed stored checksums
(`Deferred`), compare with the source's (`Check`), and let a resumed job prove what is already on disk.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tael import kernels
from tael.convert.atomic import Output, target_error
from tael.convert.journal import Finished
from tael.convert.plan import (
    FINISHERS,
    UNIT_BYTES,
    Compute,
    Copy,
    Deferred,
    Finisher,
    Literal,
    OutputFile,
    Plan,
    plan_hash,
    spans_of,
    unit_blocks,
)
from tael.core.block_ops import is_quantize, sharing
from tael.core.evaluate import Counters, as_bytes, block_dtype, read_blocks
from tael.core.progress import SILENT, Progress
from tael.core.source import ByteSource, FileSource, read
from tael.core.tensor import Check
from tael.errors import MemoryLimitError, ResumeError, SourceReadError, TaelError, TargetError

JOURNAL_FROM = 256 << 20  # smaller outputs are simply written again
JOURNAL_EVERY = 256 << 20  # bytes between syncs


@dataclass(frozen=True, slots=True)
class Slice:
    """Blocks (of a `Compute`) or bytes (of anything else) `start ... start + count` of one part."""

    part: int
    start: int
    count: int


@dataclass(frozen=True, slots=True)
class Unit:
    file: int
    number: int
    slices: tuple[Slice, ...]
    nbytes: int


@dataclass(slots=True)
class ExecutionReport:
    """What came of a plan. Counts are elements, by tensor."""

    files: list[str]
    nbytes: int
    seconds: float = 0.0
    resumed_bytes: int = 0
    overflow: dict[str, int] = field(default_factory=dict)
    nan_lost: dict[str, int] = field(default_factory=dict)
    errors: dict[tuple[int, str], kernels.Errors] = field(default_factory=dict)  # by number of the file and tensor


def default_threads() -> int:
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(4, available)


def execute(
    plan: Plan,
    *,
    inputs: Sequence[ByteSource] = (),
    input_folder: str | None = None,
    threads: int | None = None,
    max_memory: int | None = None,
    force: bool = False,
    resume: bool = False,
    measure: bool = False,
    progress: Progress = SILENT,
) -> ExecutionReport:
    """Write the plan's files. `measure`: compare what is quantized with its source; a resumed run then starts anew.
    `inputs` (and what the parts read) are protected and checked for change at the end.

       Raises `TargetError` kinds before writing, any reading error while writing. Bad input removes what was
       written; an interrupt, a full disk or a failing network keep it for `resume`.
    """
    threads = threads or default_threads()
    if max_memory is not None and plan.peak_memory(threads) > max_memory:
        raise MemoryLimitError(
            f"needs up to {plan.peak_memory(threads):,} bytes of memory, {max_memory:,} are allowed",
            path=plan.path,
            hint="fewer --threads need less",
        )
    sources = {id(source): source for source in (*inputs, *(span.source for span in _spans(plan)))}
    output = Output(plan)
    output.check(force=force, inputs=list(sources.values()), input_folder=input_folder)
    output.check_space()
    started = time.monotonic()
    run = _Run(plan, output, threads, progress, measure)
    try:
        begun = output.open(plan_hash(plan) if run.records else "", resume=resume)
    except BaseException:
        output.close()
        raise
    progress.start(plan.nbytes, os.path.basename(plan.path))
    try:
        if begun and not measure:
            run.take_over()
        run.units()
        run.remaining_checks()
        for source in sources.values():
            source.check_unchanged()
        run.deferred()
        output.commit()
    except BaseException as error:
        if not run.may_resume(error):
            output.discard()
        if isinstance(error, OSError):
            raise target_error(error, plan.path) from None
        raise
    finally:
        progress.finish()
        output.close()
    run.report.seconds = time.monotonic() - started
    return run.report


def _spans(plan: Plan) -> Iterator[Any]:
    for file in plan.files:
        yield from spans_of(file.parts)


def cut(file: OutputFile, number: int) -> list[Unit]:
    """The units of one file, in file order. Small parts share a unit; sequential sources are never split."""
    units: list[Unit] = []
    slices: list[Slice] = []
    size = 0

    def flush() -> None:
        nonlocal slices, size
        if slices:
            units.append(Unit(number, len(units), tuple(slices), size))
        slices, size = [], 0

    for index, part in enumerate(file.parts):
        if isinstance(part, Deferred):
            continue
        alone = isinstance(part, Compute) and is_quantize(part.node)  # so that other files are cut at the same rows
        if alone:
            flush()
        if isinstance(part, Compute):
            width = part.node.dtype.block_bytes
            step = unit_blocks(part.node)
        else:
            width, step = 1, UNIT_BYTES
        sequential = any(getattr(span.source, "sequential", False) for span in spans_of([part]))
        for start in range(0, part.nbytes // width, step):
            count = min(step, part.nbytes // width - start)
            if size and size + count * width > UNIT_BYTES and not (sequential and start):
                flush()
            slices.append(Slice(index, start, count))
            size += count * width
            if alone:
                flush()
    flush()
    return units


def grouped(units: Sequence[Unit], plan: Plan) -> list[list[Unit]]:
    """Units that one thread runs in a row: those of several files that quantize the same rows of one tensor."""
    if len(plan.files) == 1:
        return [[unit] for unit in units]
    groups: dict[object, list[Unit]] = {}
    for unit in units:
        first = unit.slices[0]
        part = plan.files[unit.file].parts[first.part]
        key: object = (unit.file, unit.number)
        if isinstance(part, Compute) and is_quantize(part.node):
            key = (part.tensor, first.start * part.node.dtype.block)
        groups.setdefault(key, []).append(unit)
    return list(groups.values())


class _Run:
    """The state of one execution."""

    def __init__(self, plan: Plan, output: Output, threads: int, progress: Progress, measure: bool) -> None:
        self.plan, self.output, self.threads, self.progress = plan, output, threads, progress
        self.todo = grouped([unit for number, file in enumerate(plan.files) for unit in cut(file, number)], plan)
        self.measure = measure
        self.report = ExecutionReport(list(output.finals), plan.nbytes)
        self.records = plan.nbytes >= JOURNAL_FROM
        self.crcs: dict[tuple[int, int], list[tuple[int, int, int]]] = {}  # file, part -> (start, crc, bytes)
        self.errors: dict[tuple[int, str], list[tuple[int, kernels.Errors]]] = {}  # start and errors, of each piece
        self.checks: dict[tuple[int, int, int], list[Check]] = {}
        for check in plan.checks:
            key = (id(check.span.source), check.span.offset, check.span.nbytes)
            self.checks.setdefault(key, []).append(check)
        self._unsaved: dict[tuple[int, int], Finished] = {}
        self._unsaved_bytes = 0
        self._lock = threading.Lock()  # guards the above
        self._saving = threading.Lock()
        self._stop = threading.Event()

    # --- resuming

    def take_over(self) -> None:
        """Believe the journal, after comparing every finished unit with what is on disk."""
        finished = self.output.journal.load(self.plan.path)
        self.todo = [left for group in self.todo if (left := [u for u in group if not self._taken_over(u, finished)])]

    def _taken_over(self, unit: Unit, finished: Mapping[tuple[int, int], Finished]) -> bool:
        done = finished.get((unit.file, unit.number))
        if done is None or done.crcs != tuple(self._crc_on_disk(unit, piece) for piece in unit.slices):
            return False
        self._account(unit, done)
        self.report.resumed_bytes += unit.nbytes
        self.progress.advance(unit.nbytes)
        return True

    def _crc_on_disk(self, unit: Unit, piece: Slice) -> int:
        offset, size = self._range(unit, piece)
        return kernels.crc32_range(self.output.fds[unit.file], offset, size)

    def _range(self, unit: Unit, piece: Slice) -> tuple[int, int]:
        part = self.plan.files[unit.file].parts[piece.part]
        width = part.node.dtype.block_bytes if isinstance(part, Compute) else 1
        return part.offset + piece.start * width, piece.count * width

    def may_resume(self, error: BaseException) -> bool:
        """Is what was written worth keeping after `error`? Not after bad input; and only what is recorded helps."""
        bad_input = isinstance(error, TaelError) and not isinstance(error, (TargetError, SourceReadError, ResumeError))
        return self.records and not bad_input

    # --- units

    def units(self) -> None:
        """Run all units that are left."""
        if self.threads == 1 or len(self.todo) <= 1:
            for group in self.todo:
                for size in self._run_group(group):
                    self.progress.advance(size)
        else:
            self._run_threads()
        self._save()
        for key, pieces in self.errors.items():  # in order: float sums are then the same every time
            pieces.sort(key=lambda piece: piece[0])
            self.report.errors[key] = functools.reduce(kernels.Errors.merged, (errors for _, errors in pieces))

    def _run_threads(self) -> None:
        pending = iter(self.todo)
        done: queue.SimpleQueue[int | BaseException | None] = queue.SimpleQueue()

        def work() -> None:
            try:
                while not self._stop.is_set():
                    with self._lock:
                        group = next(pending, None)
                    if group is None:
                        break
                    for size in self._run_group(group):
                        done.put(size)
            except BaseException as error:
                self._stop.set()
                done.put(error)
            finally:
                done.put(None)

        workers = [threading.Thread(target=work, daemon=True) for _ in range(min(self.threads, len(self.todo)))]
        for worker in workers:
            worker.start()
        failure: BaseException | None = None
        alive = len(workers)
        try:
            while alive:
                message = done.get()
                if message is None:
                    alive -= 1
                elif isinstance(message, BaseException):
                    failure = failure or message
                else:
                    self.progress.advance(message)
        except BaseException as error:  # Ctrl-C: let the units under way end, and record them
            failure = error
        if failure is not None:
            self._stop.set()
            for worker in workers:
                worker.join()
            if self.may_resume(failure):
                with contextlib.suppress(OSError):
                    self._save()
            raise failure

    def _run_group(self, group: Sequence[Unit]) -> Iterator[int]:
        """Executes the units one after the other; yields the bytes of each."""
        with sharing() if len(group) > 1 else contextlib.nullcontext():
            for unit in group:
                self._finish_unit(unit, self._execute(unit))
                yield unit.nbytes

    def _execute(self, unit: Unit) -> Finished:
        fd = self.output.fds[unit.file]
        parts = self.plan.files[unit.file].parts
        crcs: list[int] = []
        counts: dict[str, tuple[int, int]] = {}
        for piece in unit.slices:
            part = parts[piece.part]
            offset, size = self._range(unit, piece)
            match part:
                case Literal(data=data):
                    data = data[piece.start : piece.start + piece.count]
                    _write(fd, memoryview(data), offset)
                    crcs.append(kernels.crc32(data))
                case Copy(span=span, tensor=tensor):
                    where = span.offset + piece.start
                    try:
                        crcs.append(self._copy(span.source, where, fd, offset, size, self._wants_crc(part)))
                    except TaelError as error:
                        error.tensor = error.tensor or tensor
                        raise
                case Compute(node=node, tensor=tensor):
                    out = np.empty(piece.count, block_dtype(node.dtype))
                    counters = Counters(measure=self.measure)
                    try:
                        read_blocks(node, piece.start, out, counters)
                    except TaelError as error:
                        error.tensor = error.tensor or tensor
                        raise
                    _write(fd, as_bytes(out), offset)
                    crcs.append(kernels.crc32(as_bytes(out)))
                    if counters.errors is not None:
                        with self._lock:
                            self.errors.setdefault((unit.file, tensor), []).append((piece.start, counters.errors))
                    if counters.overflow or counters.nan_lost:
                        before = counts.get(tensor, (0, 0))
                        counts[tensor] = (before[0] + counters.overflow, before[1] + counters.nan_lost)
                case Deferred():
                    pass
        return Finished(tuple(crcs), counts)

    def _wants_crc(self, part: Copy) -> bool:
        return part.digest or self.records or _key(part) in self.checks

    def _copy(self, source: ByteSource, where: int, fd: int, offset: int, size: int, want_crc: bool) -> int:
        if isinstance(source, FileSource):
            try:
                return kernels.copy_range(source.fd, where, fd, offset, size, want_crc)
            except EOFError:
                read(source, where, size)  # says where the file ends
                raise SourceReadError("a read ended early", path=source.name, offset=where) from None
        buffer = memoryview(bytearray(size))
        source.read_into(where, buffer)
        _write(fd, buffer, offset)
        return kernels.crc32(buffer)

    def _finish_unit(self, unit: Unit, done: Finished) -> None:
        save = False
        with self._lock:
            self._account(unit, done)
            if self.records:
                self._unsaved[unit.file, unit.number] = done
                self._unsaved_bytes += unit.nbytes
                save = self._unsaved_bytes >= JOURNAL_EVERY
                if save:
                    self._unsaved_bytes = 0
        if save:
            self._save()

    def _account(self, unit: Unit, done: Finished) -> None:
        for piece, crc in zip(unit.slices, done.crcs, strict=True):
            size = self._range(unit, piece)[1]
            self.crcs.setdefault((unit.file, piece.part), []).append((piece.start, crc, size))
        for name, (overflow, nan_lost) in done.counts.items():
            for table, count in ((self.report.overflow, overflow), (self.report.nan_lost, nan_lost)):
                if count:
                    table[name] = table.get(name, 0) + count

    def _save(self) -> None:
        if not self.records:
            return
        with self._saving:
            with self._lock:
                finished, self._unsaved = self._unsaved, {}
            if finished:
                self.output.sync()
                self.output.journal.add(finished)

    # --- what is left when all units are done

    def remaining_checks(self) -> None:
        """Compare stored checksums: in passing where a part is the checked range, else by one more read."""
        for number, file in enumerate(self.plan.files):
            for index, part in enumerate(file.parts):
                if isinstance(part, Copy) and part.nbytes and _key(part) in self.checks:
                    for check in self.checks[_key(part)]:
                        _named(check.compare, part.tensor)(self._part_crc(number, index))
        for checks in self.checks.values():
            for check in checks:
                check.verify()

    def _part_crc(self, file: int, part: int) -> int:
        crc = 0
        for _, piece, size in sorted(self.crcs.get((file, part), ())):
            crc = kernels.crc32_combine(crc, piece, size)
        return crc

    def deferred(self) -> None:
        """Write the parts that depend on other parts' digests."""
        for number, file in enumerate(self.plan.files):
            waiting = [part for part in file.parts if isinstance(part, Deferred)]
            if not waiting:
                continue
            digests: Mapping[int, int] = {
                index: self._part_crc(number, index)
                for index, part in enumerate(file.parts)
                if not isinstance(part, Deferred)
            }
            for part in waiting:
                data = _finisher(part.finisher)(part.params, digests)
                if len(data) != part.nbytes:
                    raise TargetError(f"{part.finisher} made {len(data)} bytes, {part.nbytes} were planned")
                _write(self.output.fds[number], memoryview(data), part.offset)


def _key(part: Copy) -> tuple[int, int, int]:
    return (id(part.span.source), part.span.offset, part.span.nbytes)


def _named(compare: Callable[[int], None], tensor: str) -> Callable[[int], None]:
    def run(crc: int) -> None:
        try:
            compare(crc)
        except TaelError as error:
            error.tensor = tensor
            raise

    return run


def _finisher(name: str) -> Finisher:
    module, _, function = FINISHERS[name].partition(":")
    found: Finisher = getattr(importlib.import_module(module), function)
    return found


def _write(fd: int, data: memoryview, offset: int) -> None:
    while data:
        written = os.pwrite(fd, data, offset)
        data, offset = data[written:], offset + written
