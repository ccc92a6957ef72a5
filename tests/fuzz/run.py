# SPDX-License-Identifier: Apache-2.0
"""Coverage-guided fuzzing of the readers, by atheris.

    python tests/fuzz/run.py [--seconds 60] [FORMAT ...]

Each format runs in a process of its own, at most 5 s per input and 500 MB of memory. What breaks a reader is
written to build/fuzz; put it into tests/fuzz/corpus/FORMAT when it is mended.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("formats", nargs="*")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return child(options.formats[0], options.seconds)
    from tael.formats.registry import BUILTIN

    failed = []
    for name in options.formats or BUILTIN:
        print(f"--- {name}, {options.seconds} s", flush=True)
        command = [sys.executable, __file__, "--child", "--seconds", str(options.seconds), name]
        if subprocess.run(command, cwd=ROOT, check=False).returncode:
            failed.append(name)
    if failed:
        print(f"broken: {', '.join(failed)}; the inputs are in build/fuzz")
    return bool(failed)


def child(format_id: str, seconds: int) -> int:
    import atheris

    import_from_source()
    with atheris.instrument_imports(include=["tael"]):
        from targets import exercise, seeds

        exercise(format_id, b"")  # imports everything under instrumentation

    work = ROOT / "build" / "fuzz" / format_id
    corpus = work / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(seeds(format_id)):
        shutil.copyfile(seed, corpus / f"seed-{number}-{seed.name}")
    limits = ["-timeout=5", "-rss_limit_mb=500", "-max_len=65536", f"-max_total_time={seconds}"]
    arguments = [sys.argv[0], str(corpus), *limits, f"-artifact_prefix={work}/", "-print_final_stats=1", "-verbosity=0"]
    atheris.Setup(arguments, lambda data: exercise(format_id, data))
    atheris.Fuzz()
    return 0


def import_from_source() -> None:
    """Import tael from src/: an editable install has a loader of its own, through which nothing gets instrumented."""
    native = importlib.util.find_spec("tael.kernels._native")
    assert native is not None
    assert native.origin is not None
    for name in [name for name in sys.modules if name.partition(".")[0] == "tael"]:
        del sys.modules[name]
    sys.meta_path[:] = [finder for finder in sys.meta_path if "ScikitBuild" not in type(finder).__name__]
    sys.path.insert(0, str(ROOT / "src"))
    spec = importlib.util.spec_from_file_location("tael.kernels._native", native.origin)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["tael.kernels._native"] = module
    spec.loader.exec_module(module)


if __name__ == "__main__":
    sys.exit(main())
