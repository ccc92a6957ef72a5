# SPDX-License-Identifier: Apache-2.0
"""Runs the ```console blocks of a Markdown file, and compares what they print with what they say they print.

    ```console
    $ tael formats --json | head -c 26
    {"schema": "tael.formats/1
    $ tael verify a.npz b.npz || echo "exit code $?"
    ...
    exit code 1
    ```

A line after `$ ` runs in bash, with standard output and standard error together, in the folder of the corpus
(cli/corpus.py); blocks of one file run in order and see each other's files. `...` stands for anything within a line,
and on a line of its own for any number of lines. `> ` continues a command.

To write down what the commands of a file print now (then read the difference, and put the `...` where they belong):

    python tests/console.py tests/cli/inspect.md
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tael.cli import app

UNSET = ("NO_COLOR", "FORCE_COLOR", "TAEL_DEBUG")  # of the environment: what is compared is plain
_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Step:
    """One command, the line of the document it stands on, and the output that is expected."""

    line: int
    command: str
    expected: list[str]


def steps(markdown: str) -> Iterator[Step]:
    """Every command of every console block, in order."""
    for block in _BLOCK.finditer(markdown):
        first = markdown.count("\n", 0, block.start(1)) + 1
        lines = block[1].splitlines()
        starts = [number for number, line in enumerate(lines) if line.startswith("$ ")]
        for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
            body = lines[start + 1 : end]
            more = [line[2:] for line in body if line.startswith("> ")]
            yield Step(first + start, "\n".join([lines[start][2:], *more]), body[len(more) :])


def run(command: str, folder: Path) -> list[str]:
    """What `command` prints in `folder`. What is no more than a call of tael runs in this process, to be quick."""
    quoted = re.sub(r"'[^']*'|\"[^\"$`\\]*\"", "", command)
    if command.startswith("tael ") and not re.search(r"[|&;<>()$`\\*?\[{~#\n]", quoted):
        return _call(shlex.split(command)[1:], folder)
    return _shell(command, folder)


def _call(line: list[str], folder: Path) -> list[str]:
    printed = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    before = {name: os.environ.pop(name) for name in UNSET if name in os.environ}
    here = os.getcwd()
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            app.main(line)
    finally:
        os.chdir(here)
        os.environ.update(before)
    return _lines(printed.buffer.getvalue())  # type: ignore[attr-defined]


def _shell(command: str, folder: Path) -> list[str]:
    environment = {
        **{name: value for name, value in os.environ.items() if name not in UNSET},
        "PATH": os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")]),
        "PYTHONUTF8": "1",
        "TZ": "UTC",
    }
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, timeout=120, check=False,
    )  # fmt: skip
    return _lines(done.stdout)


def _lines(printed: bytes) -> list[str]:
    return [line.rstrip() for line in printed.decode("utf-8", "backslashreplace").splitlines()]


def matches(expected: list[str], printed: list[str]) -> bool:
    """Are they the same, `...` aside? Blank lines at the end do not count."""
    pattern = ""
    for line in _stripped(expected):
        if line.strip() == "...":
            pattern += r"(?:.*\n)*?"
        else:
            pattern += ".*?".join(re.escape(piece) for piece in line.rstrip().split("...")) + r"\n"
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in _stripped(printed))) is not None


def _stripped(lines: list[str]) -> list[str]:
    while lines and not lines[-1].strip():
        lines = lines[:-1]
    return lines


def differences(markdown: str, folder: Path) -> list[str]:
    """Run the whole document; one text for each command that printed something else."""
    found = []
    for step in steps(markdown):
        printed = run(step.command, folder)
        if not matches(step.expected, printed):
            wanted, got = "\n".join(step.expected), "\n".join(printed)
            found.append(f"line {step.line}: $ {step.command}\n--- expected\n{wanted}\n--- printed\n{got}\n")
    return found


def rewrite(markdown: str, folder: Path) -> str:
    """The document with the present output of each command that prints something else."""
    lines = markdown.splitlines()
    for step in reversed([(step, run(step.command, folder)) for step in steps(markdown)]):
        (where, command, expected), printed = (step[0].line, step[0].command, step[0].expected), step[1]
        if not matches(expected, printed):
            start = where + command.count("\n")
            lines[start : start + len(expected)] = _stripped(printed)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    from cli import corpus

    for name in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as scratch:
            corpus.build(Path(scratch))
            path = Path(name)
            path.write_text(rewrite(path.read_text(), Path(scratch)))
