# SPDX-License-Identifier: Apache-2.0
"""The seam by its hardest users: tiles from two files, a quantizing op, deferred checksums, a kill and a resume."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
import zlib
from pathlib import Path

import numpy as np
import pytest

from tael.convert import execute as execution
from tael.convert import plan as planning
from tael.convert.execute import cut, execute
from tael.convert.plan import Compute, Copy, FileBuilder, Plan
from tael.core import ops
from tael.core.dtypes import DTYPES
from tael.core.node import Contiguous, Node, Span, Tiled, strided
from tael.core.source import BytesSource, FileSource
from tael.core.tensor import Check, Tensor, TensorInfo
from tael.errors import ChecksumError, ResumeError, SourceChangedError, TargetExistsError, TargetIsInputError

F32, BF16, Q8_0 = DTYPES["F32"], DTYPES["BF16"], DTYPES["Q8_0"]


def tensor(name: str, node: Node) -> Tensor:
    return Tensor(TensorInfo(name, node.dtype, node.shape), node)


def hard_plan(folder: Path, rows: int = 64) -> tuple[Plan, bytes]:
    """A file with a header, a tensor tiled from two files, its transpose, a cast and a quantization; and its bytes."""
    values = np.random.default_rng(5).standard_normal((rows, 256), dtype=np.float32)
    for name, half in (("a", values[: rows // 2]), ("b", values[rows // 2 :])):
        if not (folder / name).exists():
            (folder / name).write_bytes(half.tobytes())
    halves = [Contiguous(F32, (rows // 2, 256), Span(FileSource(folder / name), 0, rows * 512)) for name in "ab"]
    boxes = (((0, rows // 2), (0, 256)), ((rows // 2, rows), (0, 256)))
    whole = Tiled(F32, (rows, 256), tuple(zip(boxes, halves, strict=True)))
    file = FileBuilder("out.bin")
    file.literal(b"HEADER")
    file.pad(64)
    nodes = [whole, ops.transpose(whole, (1, 0)), ops.cast(whole, BF16), ops.quantize(whole, Q8_0), halves[1]]
    for number, node in enumerate(nodes):
        file.tensor(tensor(f"t{number}", node))
    plan = Plan("test", str(folder / "out.bin"), False, (file.finish(),))
    import ml_dtypes

    from tael import kernels

    quantized = bytearray(values.nbytes // 128 * 34)
    assert kernels.quantize("Q8_0", values, quantized, 256) == -1
    wanted = [values.tobytes(), values.T.tobytes(), values.astype(ml_dtypes.bfloat16).tobytes(), bytes(quantized)]
    return plan, b"".join((b"HEADER".ljust(64, b"\0"), *wanted, values[rows // 2 :].tobytes()))


def small_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "UNIT_BYTES", 4096)
    monkeypatch.setattr(planning, "UNIT_BYTES", 4096)
    monkeypatch.setattr(planning, "UNIT_ELEMENTS", 4096)


@pytest.mark.parametrize("threads", [1, 3])
def test_tiles_transposes_casts_and_quantization_in_one_plan(
    tmp_path: Path, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_units(monkeypatch)
    plan, wanted = hard_plan(tmp_path)
    report = execute(plan, threads=threads)
    assert (tmp_path / "out.bin").read_bytes() == wanted
    assert report.nbytes == len(wanted)
    assert sorted(os.listdir(tmp_path)) == ["a", "b", "out.bin"]


def test_units_cover_every_part_once(tmp_path: Path) -> None:
    plan, _ = hard_plan(tmp_path, rows=8192)
    (file,) = plan.files
    units = cut(file, 0)
    assert len(units) > 3
    for index, part in enumerate(file.parts):
        width = part.node.dtype.block_bytes if isinstance(part, Compute) else 1
        pieces = sorted((s.start, s.count) for unit in units for s in unit.slices if s.part == index)
        end = 0
        for start, count in pieces:
            assert start == end
            end += count
        assert end * width == part.nbytes


KILLED = """
import sys, time
from pathlib import Path
sys.path.insert(0, {tests!r})
from tael.convert import execute as execution, plan as planning
from convert.test_execute import hard_plan
execution.JOURNAL_FROM = 1 << 20
execution.JOURNAL_EVERY = 2 << 20
execution.UNIT_BYTES = planning.UNIT_BYTES = 1 << 20
plan, _ = hard_plan(Path(sys.argv[1]), rows=8192)
inner = execution._Run._execute
def slow(self, unit):
    time.sleep(0.05)
    return inner(self, unit)
execution._Run._execute = slow
print("ready", flush=True)
report = execution.execute(plan, resume=True)
print(report.resumed_bytes)
"""


def test_kill_9_leaves_no_final_name_and_resume_gives_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, wanted = hard_plan(tmp_path, rows=8192)
    before = {name: (tmp_path / name).read_bytes() for name in "ab"}
    script = textwrap.dedent(KILLED).format(tests=str(Path(__file__).parent.parent))
    command = [sys.executable, "-c", script, str(tmp_path)]
    resumed = 0
    for wait in (0.1, 0.25, 0.3):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            time.sleep(wait)
            child.send_signal(signal.SIGKILL)
        if child.returncode == 0:
            break
        assert not (tmp_path / "out.bin").exists()
    if not (tmp_path / "out.bin").exists():
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        resumed = int(done.stdout.split()[-1])
        assert resumed > 0
    assert (tmp_path / "out.bin").read_bytes() == wanted
    assert {name: (tmp_path / name).read_bytes() for name in "ab"} == before
    assert sorted(os.listdir(tmp_path)) == ["a", "b", "out.bin"]


def interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """Run until Ctrl-C in the middle; a journal and a .part file stay behind."""
    monkeypatch.setattr(execution, "JOURNAL_FROM", 1 << 10)
    small_units(monkeypatch)
    plan, _ = hard_plan(tmp_path)
    count = 0
    inner = execution._Run._execute

    def stop(self: object, unit: object) -> object:
        nonlocal count
        count += 1
        if count == 12:
            raise KeyboardInterrupt
        return inner(self, unit)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(execution._Run, "_execute", stop)
        with pytest.raises(KeyboardInterrupt):
            execute(plan, threads=2)
    assert not (tmp_path / "out.bin").exists()
    assert (tmp_path / "out.bin.part").exists()
    return plan


def test_ctrl_c_keeps_the_part_and_resume_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted(tmp_path, monkeypatch)
    plan, wanted = hard_plan(tmp_path)
    report = execute(plan, resume=True)
    assert 0 < report.resumed_bytes < report.nbytes
    assert (tmp_path / "out.bin").read_bytes() == wanted


def test_resume_notices_units_that_are_not_on_disk_as_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted(tmp_path, monkeypatch)
    part = tmp_path / "out.bin.part"
    part.write_bytes(bytes(part.stat().st_size))
    plan, wanted = hard_plan(tmp_path)
    assert execute(plan, resume=True).resumed_bytes == 0
    assert (tmp_path / "out.bin").read_bytes() == wanted


def test_a_torn_last_line_of_the_journal_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted(tmp_path, monkeypatch)
    journal = tmp_path / "out.bin.part.journal"
    journal.write_bytes(journal.read_bytes()[:-9])
    plan, wanted = hard_plan(tmp_path)
    execute(plan, resume=True)
    assert (tmp_path / "out.bin").read_bytes() == wanted


def test_resume_refuses_another_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted(tmp_path, monkeypatch)
    os.utime(tmp_path / "a", ns=(1, 1))
    plan, _ = hard_plan(tmp_path)
    with pytest.raises(ResumeError, match="not this job"):
        execute(plan, resume=True)
    assert (tmp_path / "out.bin.part").exists()


def copy_plan(path: Path, source: Path, **check: int) -> Plan:
    size = source.stat().st_size
    span = Span(FileSource(source), 0, size)
    file = FileBuilder(path.name)
    file.copy(span, "w")
    checks = (Check(span, check["crc"], "storage 0"),) if check else ()
    return Plan("test", str(path), False, (file.finish(),), checks=checks)


def test_stored_checksums_are_compared_in_passing(tmp_path: Path) -> None:
    data = os.urandom(20 << 20)
    (tmp_path / "in").write_bytes(data)
    execute(copy_plan(tmp_path / "good", tmp_path / "in", crc=zlib.crc32(data)), threads=2)
    assert (tmp_path / "good").read_bytes() == data
    with pytest.raises(ChecksumError, match=r"'w'.*storage 0"):
        execute(copy_plan(tmp_path / "bad", tmp_path / "in", crc=zlib.crc32(data) ^ 1), threads=2)
    assert sorted(os.listdir(tmp_path)) == ["good", "in"], "bad input leaves nothing behind"


def test_a_check_that_no_part_covers_is_still_compared(tmp_path: Path) -> None:
    data = os.urandom(1 << 16)
    (tmp_path / "in").write_bytes(data)
    storage = Span(FileSource(tmp_path / "in"), 0, len(data))
    view = strided(F32, (64, 4), storage, 0, (1, 64))
    file = FileBuilder("out")
    file.tensor(tensor("v", view))
    for crc, fails in ((zlib.crc32(data), False), (7, True)):
        plan = Plan("test", str(tmp_path / "out"), False, (file.finish(),), checks=(Check(storage, crc, "storage"),))
        if fails:
            with pytest.raises(ChecksumError):
                execute(plan, force=True)
        else:
            execute(plan)


def test_the_input_changing_meanwhile_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(bytes(1000))
    plan = copy_plan(tmp_path / "out", tmp_path / "in")
    (tmp_path / "in").write_bytes(bytes(999) + b"x")
    os.utime(tmp_path / "in", ns=(1, 1))
    with pytest.raises(SourceChangedError):
        execute(plan)
    assert os.listdir(tmp_path) == ["in"]


@pytest.mark.parametrize("how", ["same", "hard link", "symbolic link", "dots"])
def test_an_input_is_never_the_output(tmp_path: Path, how: str) -> None:
    source, target = tmp_path / "in", tmp_path / "in"
    source.write_bytes(b"weights" * 100)
    if how == "hard link":
        target = tmp_path / "other"
        os.link(source, target)
    elif how == "symbolic link":
        target = tmp_path / "other"
        target.symlink_to(source)
    elif how == "dots":
        (tmp_path / "sub").mkdir()
        target = tmp_path / "sub" / ".." / "in"
    with pytest.raises(TargetIsInputError):
        execute(copy_plan(target, source), force=True)
    assert source.read_bytes() == b"weights" * 100


def test_a_part_name_that_is_an_input_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "x.part"
    source.write_bytes(b"weights")
    with pytest.raises(TargetIsInputError):
        execute(copy_plan(tmp_path / "x", source), force=True)
    assert source.read_bytes() == b"weights"


def test_existing_targets_need_force_and_keep_their_mode(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"new")
    out = tmp_path / "out"
    out.write_bytes(b"old")
    out.chmod(0o640)
    with pytest.raises(TargetExistsError, match="exists"):
        execute(copy_plan(out, tmp_path / "in"))
    assert out.read_bytes() == b"old"
    execute(copy_plan(out, tmp_path / "in"), force=True)
    assert out.read_bytes() == b"new"
    assert out.stat().st_mode & 0o777 == 0o640


def test_plan_parts_are_copies_where_bytes_do_not_change(tmp_path: Path) -> None:
    plan, _ = hard_plan(tmp_path)
    kinds = [type(part) for part in plan.files[0].parts]
    assert kinds.count(Copy) == 1
    assert json.dumps([len(plan.files)])


def test_memory_sources_are_copied_too(tmp_path: Path) -> None:
    file = FileBuilder("out")
    file.copy(Span(BytesSource(b"abcdef"), 1, 4), "x")
    execute(Plan("test", str(tmp_path / "out"), False, (file.finish(),)))
    assert (tmp_path / "out").read_bytes() == b"bcde"
