# SPDX-License-Identifier: Apache-2.0
"""How a run ends: exit codes, words on standard error, nothing on standard output that does not belong there."""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer import Context

import console
import tael
from cli import corpus
from tael.cli import app, help, parser, screen
from tael.errors import CorruptFileError

RUN = [sys.executable, "-c", "import sys; from tael.cli.app import main; sys.exit(main(sys.argv[1:]))"]


def run(*line: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = app.main(line)
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture
def broken_verb(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """Makes `tael formats` raise whatever the test puts into the list."""
    raised: list[BaseException] = []

    def fail() -> None:
        raise raised[0]

    monkeypatch.setattr("tael.formats.registry.builtin", fail)
    return raised


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version", capsys=capsys) == (0, f"tael {tael.__version__}\n", "")


def test_no_verb_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys=capsys)
    assert (code, err) == (0, "")
    assert out == run("--help", capsys=capsys)[1]
    assert all(f"\n  {verb} " in out for verb in app.VERBS)


@pytest.mark.parametrize("verb", app.VERBS)
def test_every_verb_is_what_the_table_says(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(verb, "--help", capsys=capsys)
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == app.VERBS[verb]
    assert run(verb, "-h", capsys=capsys)[1] == out
    module = importlib.import_module(f"tael.cli.{verb}")
    assert module.__doc__
    assert module.EXAMPLES
    for example in module.EXAMPLES:
        assert example.command in out
        assert f"tael {verb}" in example.command
    assert "--json" in out
    assert "--quiet" in out


def test_every_module_beside_the_verbs_is_known() -> None:
    """A verb's module that is not in the table would never be found."""
    folder = Path(app.__file__).parent
    modules = {path.stem for path in folder.glob("*.py") if not path.stem.startswith("_")}
    with_examples = {
        name for name in modules if "EXAMPLES = (" in (folder / f"{name}.py").read_text() and name != "app"
    }
    assert with_examples == set(app.VERBS)


@pytest.fixture(scope="module")
def examples_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The corpus, and the other files that the examples of the help speak of."""
    folder = tmp_path_factory.mktemp("examples")
    corpus.build(folder)
    tael.convert(folder / "model.safetensors", folder / "half.safetensors", dtype="f16")
    tael.convert(folder / "model.safetensors", folder / "part.npz", select=["*norm*"])
    copies = {"a.pt": "model.pt", "old.pt": "model.pt", "base.safetensors": "model.safetensors"}
    copies |= dict.fromkeys(("b.safetensors", "new.safetensors"), "tuned.safetensors")
    for name, source in copies.items():
        (folder / name).write_bytes((folder / source).read_bytes())
    return folder


EXAMPLES = [example.command for verb in app.VERBS for example in importlib.import_module(f"tael.cli.{verb}").EXAMPLES]
EXAMPLES += [command for command, _ in app.EXAMPLES]


@pytest.mark.parametrize("command", EXAMPLES)
def test_the_examples_of_the_help_run(command: str, examples_folder: Path, tmp_path: Path) -> None:
    for source in examples_folder.iterdir():
        (tmp_path / source.name).symlink_to(source)
    for made in ("model.safetensors", "sharded", "part.npz"):  # what an example is to write cannot be there
        if re.search(rf"convert \S+ {made}\b", command):
            (tmp_path / made).unlink()
    printed = console.run(f"{command}; echo exit code $?", tmp_path)
    assert printed[-1] in ("exit code 0", "exit code 1"), "\n".join(printed)
    assert not any(line.startswith("tael: ") for line in printed), "\n".join(printed)


@pytest.mark.parametrize("verb", app.VERBS)
def test_options_are_strings_lists_or_flags(verb: str) -> None:
    """They bypass the conversion of the option parser."""
    command = parser.verb(verb)
    with Context(command, info_name=verb) as context:
        for param in command.get_params(context):
            assert param.name == "help" or param.help, param.name
    text = help.verb_help(command, context, screen.stdout())
    assert max(map(len, text.splitlines())) <= 110


@pytest.mark.parametrize(
    ("line", "cause", "hint"),
    [
        (["inspekt", "x"], "no verb 'inspekt'", "did you mean `tael inspect`?"),
        (["\x1b[31mred"], "no verb '\\x1b[31mred'", "`tael --help` lists the verbs"),
        (["hf://org/model"], "no verb 'hf://org/model'", "tael inspect hf://org/model"),
        (["--nonsense"], "no such option: --nonsense", "see `tael --help`"),
        (["inspect"], "missing argument 'PATH'", "see `tael inspect --help`"),
        (["convert", "a"], "missing argument 'DST'", "see `tael convert --help`"),
        (["convert", "a", "b", "--dtyp", "f16"], "--dtype", "see `tael convert --help`"),
        (["convert", "a", "b", "--threads", "many"], "--threads 'many': not a number", ""),
        (["convert", "a", "b", "--shard-size", "big"], "'big' is no size", "5GB"),
        (["verify", "a", "b", "--tolerance", "-1"], "--tolerance '-1'", "1e-3"),
        (["inspect", "no/such/file"], "no/such/file: no such file or folder", ""),
        (["inspect", "no\nsuch\x1bfile"], "no\\nsuch\\x1bfile: no such file", ""),
    ],
)
def test_mistakes_are_answered_in_one_to_three_lines(
    line: list[str], cause: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(*line, capsys=capsys)
    assert (code, out) == (2, "")
    assert err.startswith("tael: error: ")
    assert cause in err
    assert hint in err
    assert 1 <= len(err.splitlines()) <= 3


def test_a_path_instead_of_a_verb(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "model.pt").touch()
    code, _, err = run(str(tmp_path / "model.pt"), capsys=capsys)
    assert code == 2
    assert f"tael inspect {tmp_path / 'model.pt'}" in err


def test_an_error_as_json(broken_verb: list[BaseException], capsys: pytest.CaptureFixture[str]) -> None:
    broken_verb.append(CorruptFileError("is cut", path="a\nb", tensor="w", offset=7, hint="fetch it"))
    code, out, err = run("formats", "--json", capsys=capsys)
    assert code == 2
    assert json.loads(out) == {
        "schema": "tael.error/1", "error": "CorruptFileError", "cause": "is cut", "path": "a\nb", "tensor": "w",
        "offset": 7, "hint": "fetch it", "bug": False,
    }  # fmt: skip
    assert err == "tael: error: a\\nb, tensor 'w', byte 7: is cut\n  fetch it\n"


def test_a_bug_says_so_and_how_to_report_it(
    broken_verb: list[BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    broken_verb.append(KeyError("oops"))
    code, out, err = run("formats", capsys=capsys)
    assert (code, out) == (2, "")
    assert err.startswith("tael: bug: KeyError: 'oops'\n")
    assert "TAEL_DEBUG=1" in err
    assert "Traceback" not in err


def test_tracebacks_are_for_those_who_ask(
    broken_verb: list[BaseException], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAEL_DEBUG", "1")
    broken_verb.append(KeyError("oops"))
    assert "Traceback" in run("formats", capsys=capsys)[2]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (PermissionError(13, "Permission denied", "/x\ny"), "tael: error: /x\\ny: permission denied"),
        (MemoryError(), "tael: error: out of memory"),
        (RecursionError("too deep"), "tael: bug: RecursionError: too deep"),
    ],
)
def test_what_the_system_refuses_is_no_traceback(
    error: BaseException, said: str, broken_verb: list[BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    broken_verb.append(error)
    code, _, err = run("formats", capsys=capsys)
    assert code == 2
    assert err.startswith(said)


def test_an_interrupt_is_short_and_says_how_to_go_on(
    broken_verb: list[BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    broken_verb.append(KeyboardInterrupt("run it again with --resume"))
    assert run("formats", capsys=capsys) == (130, "", "tael: interrupted\n  run it again with --resume\n")


def test_a_real_interrupt_of_a_real_process() -> None:
    code = """
import sys, time
from tael.cli.app import main
import tael.formats.registry as registry
def slow():
    print("ready", file=sys.stderr, flush=True)
    time.sleep(60)
registry.builtin = slow
sys.exit(main(["formats"]))
"""
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert process.stderr.readline() == "ready\n"
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130
    assert process.stderr.read() == "tael: interrupted\n"


def test_a_reader_that_leaves_is_no_error() -> None:
    """`tael ... | head`: nothing on standard error, and the exit code a shell expects of it."""
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([*RUN, "--help"], stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_closed_standard_output_is_no_error(tmp_path: Path) -> None:
    corpus.build(tmp_path)
    for line in ("inspect model.pt >&-", "inspect page.safetensors >&- 2>&-"):
        command = f"{sys.executable} -m tael {line}; echo $? > code"
        done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, check=True)
        assert done.stderr == b""
        assert (tmp_path / "code").read_text() == ("0\n" if "model" in line else "2\n")


VIEWS = ("", "--tensors", "--tree", "--stats", "--metadata")


@pytest.mark.parametrize(
    "line",
    [
        *(f"inspect hostile.safetensors {view}" for view in VIEWS),
        "hash hostile.safetensors",
        "verify hostile.safetensors model.pt",
        "verify model.pt hostile.safetensors",
        "diff hostile.safetensors model.pt",
        "diff model.pt hostile.safetensors",
        "convert hostile.safetensors h.npy",
        "convert hostile.safetensors h.npz --dry-run",
        "convert hostile.safetensors h.npz --select nothing",
        "convert hostile.safetensors h.safetensors --rename *=same",
    ],
)
def test_nothing_of_a_file_reaches_the_terminal_as_it_is(line: str, tmp_path: Path) -> None:
    corpus.build(tmp_path)
    printed = "\n".join(console.run(f"tael {line}", tmp_path))
    assert printed
    bad = {char for char in printed if not char.isprintable() and char != "\n"}
    assert not bad
    assert "two\nlines" not in printed
    if "hash" not in line and "--metadata" not in line:  # which are exact
        assert max(map(len, printed.splitlines())) <= 1500


def test_output_that_the_terminal_cannot_spell_is_escaped() -> None:
    done = subprocess.run(
        [*RUN, "权重"],
        env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 2
    assert b"\\u6743" in done.stderr
