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

import numpy as np
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


EMPTY = ("--dtype", "--part", "--to", "--strip-prefix", "--select", "--rename")


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
        (["convert", "a", "b", "--shard-size", "9" * 400], "is no size", "5GB"),
        (["convert", "a", "b", "--max-memory", f"{'9' * 400}TB"], "is no size", "5GB"),
        (["convert", "a", "b", "--threads", "9" * 5000], "not a number from 1 to 1024", ""),
        (["convert", "a", "b", "--saturate"], "--saturate without --dtype", "see `tael convert --help`"),
        *((["convert", "a", "b", name, ""], f"{name} is empty", "see `tael convert --help`") for name in EMPTY),
        (["inspect", ""], "PATH is empty", "see `tael inspect --help`"),
        (["inspect", "x" * 3000 + ".pt"], "(3003 chars)...xxx", ""),
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
    assert len(err) < 1000


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


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
@pytest.mark.parametrize(
    "line", ["--version", "--help", "inspect model.safetensors --json", "inspect model.safetensors --tensors"]
)
def test_a_full_standard_output_is_an_error_that_says_so(line: str, tmp_path: Path) -> None:
    corpus.build(tmp_path)
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*RUN, *line.split()], cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (2, "tael: error: standard output: no space left on device\n")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_full_standard_error_does_not_change_the_exit_code(more: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*RUN, "inspect", "no/such", *more], stdout=subprocess.PIPE, stderr=full, text=True, check=False
        )
    assert done.returncode == 2
    assert bool(done.stdout) == bool(more)


def test_the_version_without_a_standard_output() -> None:
    done = subprocess.run(["bash", "-c", f"{sys.executable} -m tael --version >&-"], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("module", ["tael.cli.app", "typer", "tael.cli.parser", "tael.cli.formats"])
def test_an_interrupt_of_an_import_is_no_traceback(module: str) -> None:
    code = f"""
import runpy, sys
class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            sys.meta_path.remove(self)
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupts())
sys.argv = ["tael", "formats"]
runpy.run_module("tael", run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "tael: interrupted\n")


def test_a_folder_that_is_gone_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    code, _, err = run("inspect", ".", capsys=capsys)
    assert code == 2
    assert err.startswith("tael: error: .: the current folder is gone\n")


def test_standard_output_is_no_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus.build(tmp_path)
    monkeypatch.chdir(tmp_path)
    before = os.listdir()
    code, _, err = run("convert", "model.pt", "-", capsys=capsys)
    assert (code, os.listdir()) == (2, before)
    assert "-: tael writes files, not to standard output" in err


def test_what_a_tensor_does_not_fit_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "text.npy", np.array(["x", "yy"]))
    monkeypatch.chdir(tmp_path)
    code, _, err = run("convert", "text.npy", "out.safetensors", capsys=capsys)
    assert code == 2
    assert err.startswith("tael: error: text.npy, tensor '")


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


@pytest.mark.skipif(not os.path.exists("/proc/cpuinfo"), reason="needs a file that the system makes up")
def test_a_file_without_a_size_is_not_called_empty(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run("inspect", "/proc/cpuinfo", capsys=capsys)
    assert code == 2
    assert "it has no size" in err


@pytest.mark.parametrize("text", ["x", "3-", "-3", "0-999999999999", "1,,two"])
def test_layers_to_prune_are_numbers_of_layers(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main(["quantize", "a.gguf", "b.gguf", "-t", "Q8_0", f"--prune-layers={text}"]) == 2
    assert "not a list of layers such as 3,5-8" in capsys.readouterr().err
