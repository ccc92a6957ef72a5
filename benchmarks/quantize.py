# SPDX-License-Identifier: Apache-2.0
"""tael's quantizers against ggml's reference code (libgguf), and `tael quantize` against llama-quantize.

    python benchmarks/quantize.py [--pairs 7] [--types Q4_K,Q6_K] [--simd avx2] [--weights]
    python benchmarks/quantize.py --files --llama-quantize PATH [--rounds 3] [--threads 2] [--big]

First: one core, 512 rows of 4096 normal values, CPU time of the process for each in turn (libgguf starts threads of its
own, which share the core); the ratio is the median of the pairs, the rates are MB/s of float32. Dequantizing goes by
32 rows, as tael does it, the simple types by 64. The copy rate is bytes read and written per second by a copy of
256 MiB. Cycles are the time stamp counter's, at the nominal frequency.
Then whole processes on synthetic F16 models of 0.3 and 1.1 billion weights (and, with --big, our peak memory at 8 GB).
The bars: Q4_K and Q5_K 10 x, Q2_K and Q6_K 8 x, Q3_K 5 x, IQ4 6 x, other IQ 3 x, the simple ones 3 x or 80 % of the
copy rate; dequantizing 3 x or 60 % of it; a whole Q4_K_M 5 x, in at most 400 MB.
"""

from __future__ import annotations

import os
import sys

sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # not this folder: it has an inspect.py

import argparse
import contextlib
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.measure import interleave, ratios, run

ROWS, LENGTH = 512, 4096
PIECE = 32  # rows that tael dequantizes at once
SIMPLE_ROWS, SLOW_ROWS = 64, 128  # of what is fast, so many as fit a cache; of what is slow, fewer
COPIED = 256 << 20
BARS: dict[str, float] = {
    "Q4_K": 10, "Q5_K": 10, "Q2_K": 8, "Q6_K": 8, "Q3_K": 5, "IQ4_NL": 6, "IQ4_XS": 6, **dict.fromkeys(
        ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0",
         "TQ1_0", "TQ2_0", "MXFP4", "NVFP4", "Q1_0"), 3),
}  # fmt: skip
SIMPLE = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "TQ1_0", "TQ2_0", "MXFP4", "NVFP4", "Q1_0")
COPY_SHARE, COPY_SHARE_BACK = 0.8, 0.6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--types", default=",".join(BARS))
    parser.add_argument("--simd", default="avx2", help="instruction set, as TAEL_SIMD")
    parser.add_argument("--weights", action="store_true", help="with importance weights")
    parser.add_argument("--files", action="store_true", help="whole processes instead")
    parser.add_argument("--llama-quantize", default="llama-quantize")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--levels", default="Q4_K_M,Q6_K,Q8_0")
    parser.add_argument("--big", action="store_true", help="also the peak memory of an 8 GB model")
    arguments = parser.parse_args()
    if arguments.files:
        files(arguments)
    else:
        kernels(arguments)


# --- kernels ----------------------------------------------------------------------------------------------------------


def kernels(arguments: argparse.Namespace) -> None:
    os.environ["TAEL_SIMD"] = arguments.simd
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    import libgguf
    import numpy as np

    from tael import kernels as ours
    from tael.core.dtypes import DTYPES
    from tael.core.ops import NEED_WEIGHTS

    values = (np.random.default_rng(1).standard_normal((ROWS, LENGTH)) * 0.02).astype(np.float32)
    weights = (np.random.default_rng(2).standard_normal(LENGTH) ** 2).astype(np.float32)
    copied = np.ones((2, COPIED), np.uint8)
    megabytes, hertz = values.nbytes / 1e6, clock()
    print(f"{ours.SIMD}, {ROWS} x {LENGTH}, {'with' if arguments.weights else 'without'} weights where a choice is")
    print(f"{'type':8} {'':10} {'ours MB/s':>10} {'libgguf':>9} {'ratio':>8} {'of copy':>8} {'cycles/weight':>14}  bar")
    for name in arguments.types.split(","):
        kind, peer = DTYPES[name], getattr(libgguf.GGMLQuantizationType, name)
        weight = weights if arguments.weights or name in NEED_WEIGHTS else None
        extra = () if weight is None else (weight,)
        blocks = np.empty((ROWS, LENGTH // kind.block * kind.block_bytes), np.uint8)
        back = np.empty_like(values)
        rows = SIMPLE_ROWS if name in SIMPLE else SLOW_ROWS if name in NEED_WEIGHTS else ROWS
        times = ROWS // rows if name in SIMPLE else 1
        small, part = values[:rows], blocks[:rows]
        libgguf.quantize_rows(values[:1], peer, *extra)  # builds its tables
        jobs: list[tuple[str, Callable[[], Any], Callable[[], Any], int]] = [
            (
                "quantize",
                partial(repeated, times, ours.quantize, name, small, part, LENGTH, weight),
                partial(repeated, times, libgguf.quantize_rows, small, peer, *extra),
                rows * times,
            ),
            (
                "dequantize",
                partial(repeated, ROWS // PIECE, ours.dequantize, name, blocks[:PIECE], back[:PIECE]),
                partial(repeated, ROWS // PIECE, libgguf.dequantize_rows, blocks[:PIECE], peer, LENGTH),
                ROWS,
            ),
        ]
        for what, mine, theirs, rows in jobs:
            wanted = theirs()
            mine()
            result = part if what == "quantize" else back[:PIECE]
            if np.ascontiguousarray(wanted).view(np.uint8).tobytes() != result.tobytes():
                raise SystemExit(f"{name}: the bytes differ")
            if what == "quantize" and rows < ROWS:
                ours.quantize(name, values, blocks, LENGTH, weight)
            moved = rows * LENGTH * 4 + blocks.nbytes * rows // ROWS
            copy = partial(np.copyto, *copied)
            ratio, copy_seconds, seconds, peer_seconds = pairs(mine, theirs, copy, arguments.pairs)
            share = (moved / seconds) / (2 * COPIED / copy_seconds)
            bar = BARS[name] if what == "quantize" else 3.0
            copy_bar = COPY_SHARE_BACK if what == "dequantize" else COPY_SHARE if name in SIMPLE else 9.0
            met = "met" if ratio >= bar or share >= copy_bar else f"missed: {bar:g} x"
            rate = megabytes * rows / ROWS
            print(
                f"{name:8} {what:10} {rate / seconds:10,.0f} {rate / peer_seconds:9,.0f} {ratio:6.1f} x {share:8.0%} "
                f"{seconds * hertz / (rows * LENGTH):14.2f}  {met}",
                flush=True,
            )


def repeated(times: int, job: Callable[..., Any], *arguments: Any) -> Any:
    """The last result of `times` runs."""
    for _ in range(times):
        result = job(*arguments)
    return result


def pairs(mine: Callable[[], Any], theirs: Callable[[], Any], copy: Callable[[], Any], count: int) -> tuple[float, ...]:
    """Medians: theirs / ours, the seconds of a copy, ours and theirs."""
    seconds: dict[str, list[float]] = {"mine": [], "theirs": [], "copy": []}
    for _ in range(count):
        for who, job in (("mine", mine), ("theirs", theirs), ("copy", copy)):
            job()  # what the others left in the caches is none of ours
            before = time.process_time()
            job()
            seconds[who].append(time.process_time() - before)
    paired = [t / m for t, m in zip(seconds["theirs"], seconds["mine"], strict=True)]
    medians = [statistics.median(column) for column in (paired, seconds["copy"], seconds["mine"], seconds["theirs"])]
    return tuple(medians)


def clock() -> float:
    """Nominal cycles per second; nan where the system does not tell."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("cpu MHz"):
                return float(line.partition(":")[2]) * 1e6
    return float("nan")


# --- whole processes --------------------------------------------------------------------------------------------------


MODELS = {  # layers, width, feed forward, vocabulary
    "0.3B": (4, 2048, 5632, 32000),
    "1.1B": (22, 2048, 5632, 32000),
    "4B": (24, 3584, 9728, 64000),
}


def make_model(path: Path, model: str) -> None:
    """A llama of random F16 weights, made by the gguf package in a process of its own: its memory is not ours."""
    layers, width, feed, vocabulary = MODELS[model]
    subprocess.run([sys.executable, "-c", MAKE, str(path), json.dumps([layers, width, feed, vocabulary])], check=True)


MAKE = """
import json, sys
import gguf, numpy as np
path, (layers, width, feed, vocabulary) = sys.argv[1], json.loads(sys.argv[2])
random = np.random.default_rng(0)
pool = (random.standard_normal(1 << 24) * 0.02).astype(np.float16)
w = gguf.GGUFWriter(path, "llama")
w.add_block_count(layers); w.add_context_length(2048); w.add_embedding_length(width); w.add_feed_forward_length(feed)
w.add_head_count(16); w.add_head_count_kv(4); w.add_layer_norm_rms_eps(1e-5); w.add_rope_dimension_count(width // 16)
w.add_file_type(1); w.add_vocab_size(vocabulary)
w.add_tokenizer_model("llama"); w.add_token_list([f"t{i}" for i in range(vocabulary)])
w.add_token_scores([0.0] * vocabulary); w.add_token_types([1] * vocabulary)
tensors = [("token_embd", (vocabulary, width)), ("output", (vocabulary, width)), ("output_norm", (width,))]
for i in range(layers):
    shapes = {"attn_norm": (width,), "ffn_norm": (width,), "attn_q": (width, width), "attn_k": (width // 4, width),
              "attn_v": (width // 4, width), "attn_output": (width, width), "ffn_gate": (feed, width),
              "ffn_up": (feed, width), "ffn_down": (width, feed)}
    tensors += [(f"blk.{i}.{name}", shape) for name, shape in shapes.items()]
tensors = [(name + ".weight", shape) for name, shape in tensors]
for name, shape in tensors:
    kind = np.float32 if len(shape) == 1 else np.float16
    w.add_tensor_info(name, shape, np.dtype(kind), int(np.prod(shape)) * np.dtype(kind).itemsize)
w.write_header_to_file(); w.write_kv_data_to_file(); w.write_ti_data_to_file()
for k, (name, shape) in enumerate(tensors):
    if len(shape) == 1:
        w.write_tensor_data(np.ones(shape, np.float32))
    else:
        n = int(np.prod(shape)); start = (k * 7919) % 4096
        w.write_tensor_data(np.resize(pool[start:], n).reshape(shape))
w.close()
"""


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tael-bench-", dir=os.environ.get("TAEL_BENCH_DIR")) as place:
        yield Path(place)


def files(arguments: argparse.Namespace) -> None:
    tael = [sys.executable, "-m", "tael", "quantize"]
    threads = str(arguments.threads)
    with folder() as place:
        for model in ("0.3B", "1.1B", *(("4B",) if arguments.big else ())):
            source = place / f"{model}.gguf"
            make_model(source, model)
            print(f"{model}: {source.stat().st_size / 1e9:.2f} GB of F16, {threads} threads")
            if model == "4B":
                seconds, peak = run(
                    [[*tael, str(source), str(place / "ours.gguf"), "-t", "Q4_K_M", "--threads", threads, "-q"]]
                )
                print(f"  Q4_K_M: {seconds:.1f} s, peak {peak / 1e6:.0f} MB")
                continue
            for level in arguments.levels.split(","):
                ours, theirs = place / "ours.gguf", place / "theirs.gguf"

                def clean(_: str, ours: Path = ours, theirs: Path = theirs) -> None:
                    for path in (ours, theirs):
                        path.unlink(missing_ok=True)

                quiet = ["sh", "-c", 'exec "$0" "$@" >/dev/null 2>&1']
                results = interleave(
                    {
                        "llama-quantize": [
                            [*quiet, arguments.llama_quantize, str(source), str(theirs), level, threads]
                        ],
                        "tael": [[*tael, str(source), str(ours), "-t", level, "--threads", threads, "-q"]],
                    },
                    arguments.rounds,
                    clean,
                )
                run([[*quiet, arguments.llama_quantize, str(source), str(theirs), level, threads]])
                equal = same_tensors(ours, theirs)
                middle, low, high = ratios(results["llama-quantize"], results["tael"])
                shown = "; ".join(f"{who} {r.median:6.2f} s, {r.peak / 1e6:4.0f} MB" for who, r in results.items())
                ratio = f"{middle:.1f} x [{low:.1f} .. {high:.1f}]"
                print(f"  {level:8} {shown}; {ratio}; tensors {'equal' if equal else 'DIFFER'}", flush=True)
            source.unlink()


def same_tensors(ours: Path, theirs: Path) -> bool:
    code = subprocess.run([sys.executable, "-m", "tael", "verify", str(ours), str(theirs), "-q"], check=False)
    return code.returncode == 0


if __name__ == "__main__":
    main()
