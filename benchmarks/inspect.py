# SPDX-License-Identifier: Apache-2.0
"""Opening many tensors: a 1 TB set of 200 shards and 100 000 tensors, and one file of 10 000 tensors, as sparse files.

    python benchmarks/inspect.py [--folder .] [--rounds 5]

The peer is the safetensors library, which lists the names of the same files. The bars: `tael inspect` of the
set under 2 s and 300 MB, whole process; the single file under 100 ms in-process.
"""

from __future__ import annotations

import os
import sys

sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # not this folder: it has an inspect.py

import argparse
import json
import struct
import subprocess
import tempfile
from pathlib import Path

from benchmarks.measure import interleave, ratios

OPEN = """
import sys, time, statistics, tael
tael.open({path!r}).close()
times = []
for _ in range(9):
    start = time.perf_counter()
    with tael.open({path!r}) as checkpoint:
        assert len(checkpoint.tensors) == {count}
    times.append(time.perf_counter() - start)
print(statistics.median(times))
"""
PEER = """
import sys, glob
from safetensors import safe_open
names = []
for path in sorted(glob.glob(sys.argv[1] + "/*.safetensors")):
    with safe_open(path, "np") as file:
        for name in file.keys():
            file.get_slice(name).get_shape(), file.get_slice(name).get_dtype()
            names.append(name)
assert len(names) == 100_000
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", default=".")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="tael-bench-") as name:
        folder = Path(name) / "set"
        folder.mkdir()
        total = make_set(folder, shards=200, each=500, rows=2500, columns=2000)
        contenders = {
            "tael": [[sys.executable, "-c", f"import tael; tael.open({str(folder)!r})"]],
            "inspect": [["sh", "-c", f"{sys.executable} -m tael inspect --json {folder} > /dev/null"]],
            "table": [["sh", "-c", f"{sys.executable} -m tael inspect {folder} > /dev/null"]],
            "peer": [[sys.executable, "-c", PEER, str(folder)]],
        }
        runs = interleave(contenders, options.rounds, lambda _: None)
        print(f"200 shards, 100 000 tensors, {total / 1e12:.2f} TB (sparse): whole process, median of {options.rounds}")
        rows = {"tael": "tael.open", "inspect": "tael inspect --json", "table": "tael inspect", "peer": "safetensors"}
        for key, label in rows.items():
            median, low, high = ratios(runs[key], runs["peer"])
            figures = f"{runs[key].median:6.2f} s {runs[key].peak / 1e6:6.0f} MB"
            print(f"  {label:22} {figures}   {median:.2f} x safetensors [{low:.2f} .. {high:.2f}]")
        one = Path(name) / "one.safetensors"
        write(one, {f"model.layers.{i}.weight": (64, 64) for i in range(10_000)})
        code = OPEN.format(path=str(one), count=10_000)
        seconds = float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)
        print(f"10 000 tensors in one file: tael.open {seconds * 1000:.0f} ms in-process (median of 9)")


def make_set(folder: Path, shards: int, each: int, rows: int, columns: int) -> int:
    weight_map, total = {}, 0
    for k in range(shards):
        shard = f"model-{k + 1:05}-of-{shards:05}.safetensors"
        shapes = {f"model.layers.{k}.experts.{i}.down_proj.weight": (rows, columns) for i in range(each)}
        total += write(folder / shard, shapes)
        weight_map.update(dict.fromkeys(shapes, shard))
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps({"model_type": "mixtral", "torch_dtype": "bfloat16"}))
    return total


def write(path: Path, shapes: dict[str, tuple[int, int]]) -> int:
    """A safetensors file of BF16 zeros that takes no disk; returns the bytes of its tensors."""
    header, offset = {}, 0
    for name, (rows, columns) in shapes.items():
        size = 2 * rows * columns
        header[name] = {"dtype": "BF16", "shape": [rows, columns], "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + offset)
    return offset


if __name__ == "__main__":
    main()
