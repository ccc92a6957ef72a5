# SPDX-License-Identifier: Apache-2.0
"""Opening a GGUF file with a large vocabulary, and `tael inspect` against gguf-dump of the gguf package.

    python benchmarks/gguf_header.py [--tokens 256000] [--rounds 3]

The file holds two arrays of so many strings (tokens, merges), their types and scores, and one small tensor. The bars:
opened in at most 30 ms within a running process, inspected at least 10 x faster than gguf-dump.
"""

from __future__ import annotations

import os
import sys

sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # not this folder: it has an inspect.py

import argparse
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from benchmarks.measure import interleave, ratios

MAKE = """
import sys
import gguf, numpy as np
path, count = sys.argv[1], int(sys.argv[2])
w = gguf.GGUFWriter(path, "llama")
w.add_tokenizer_model("gpt2")
w.add_token_list([f"token{i}" for i in range(count)])
w.add_token_merges([f"a{i} b{i}" for i in range(count)])
w.add_token_types([1] * count)
w.add_token_scores([0.0] * count)
w.add_tensor("x.weight", np.zeros((4, 32), np.float32))
w.write_header_to_file(); w.write_kv_data_to_file(); w.write_tensors_to_file(); w.close()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=256_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    import tael

    with tempfile.TemporaryDirectory(prefix="tael-bench-") as place:
        path = Path(place) / "vocabulary.gguf"
        subprocess.run([sys.executable, "-c", MAKE, str(path), str(arguments.tokens)], check=True)
        tael.open(path).close()  # imports
        seconds = []
        for _ in range(9):
            started = time.perf_counter()
            tael.open(path).close()
            seconds.append(time.perf_counter() - started)
        median = statistics.median(seconds)
        print(f"open: {median * 1000:.1f} ms, median of 9 [{min(seconds) * 1000:.1f} .. {max(seconds) * 1000:.1f}]")
        dump = Path(sys.executable).with_name("gguf-dump")
        silent = ["sh", "-c", 'exec "$0" "$@" >/dev/null 2>&1']
        runs = interleave(
            {
                "gguf-dump": [[*silent, str(dump), str(path)]],
                "tael inspect": [[*silent, sys.executable, "-m", "tael", "inspect", str(path)]],
            },
            arguments.rounds,
            lambda _: None,
        )
        for name, run in runs.items():
            print(f"{name}: {run.median:.2f} s")
        middle, low, high = ratios(runs["gguf-dump"], runs["tael inspect"])
        print(f"ratio: {middle:.1f} x [{low:.1f} .. {high:.1f}]")


if __name__ == "__main__":
    main()
