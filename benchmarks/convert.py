# SPDX-License-Identifier: Apache-2.0
"""tael convert against cp + sync, and against torch.load + save_file (+ sync), on the same bytes in the same rounds.

    python benchmarks/convert.py [--gb 2] [--rounds 5] [--tmpfs /dev/shm] [--disk .] [--only tmpfs|disk]

Cases: .pt -> .safetensors, .safetensors -> .pt, 4 shards -> one file, one file -> 4 shards; then the peak
memory for 2 GB and for an 8 GB sparse file. Ratios are paired by round: median [lowest .. highest].
The bars: at most 1.25 x the time of cp + sync, at least 4 x faster than the peer, at most 150 MB.
"""

from __future__ import annotations

import os
import sys

sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # not this folder: it has an inspect.py

import argparse
import json
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path

from benchmarks.measure import interleave, ratios, run

MAKE = """
import sys, torch
from safetensors.torch import save_file
folder, total = sys.argv[1], int(sys.argv[2])
count, rows = 64, total // 64 // 4096 // 2
bits = [torch.randint(-32768, 32767, (rows, 4096), dtype=torch.int16) for _ in range(count)]
state = {f"model.layers.{i}.weight": tensor.view(torch.bfloat16) for i, tensor in enumerate(bits)}
torch.save(state, f"{folder}/model.pt")
save_file(state, f"{folder}/model.safetensors", {"format": "pt"})
import json, os
names = list(state)
index = {"metadata": {"total_size": sum(t.nbytes for t in state.values())}, "weight_map": {}}
os.mkdir(f"{folder}/shards")
for k in range(4):
    shard = f"model-{k + 1:05}-of-00004.safetensors"
    part = {n: state[n] for n in names[k * 16 : k * 16 + 16]}
    save_file(part, f"{folder}/shards/{shard}", {"format": "pt"})
    index["weight_map"].update(dict.fromkeys(part, shard))
json.dump(index, open(f"{folder}/shards/model.safetensors.index.json", "w"))
"""
PEERS = {
    "pt -> safetensors": (
        "import sys, torch; from safetensors.torch import save_file; "
        "save_file(torch.load(sys.argv[1], weights_only=True), sys.argv[2], {'format': 'pt'})"
    ),
    "safetensors -> pt": (
        "import sys, torch; from safetensors.torch import load_file; torch.save(load_file(sys.argv[1]), sys.argv[2])"
    ),
    "4 shards -> 1 file": (
        "import sys, glob; from safetensors.torch import load_file, save_file; state = {}; "
        "[state.update(load_file(p)) for p in sorted(glob.glob(sys.argv[1] + '/*.safetensors'))]; "
        "save_file(state, sys.argv[2], {'format': 'pt'})"
    ),
    "1 file -> 4 shards": (
        "import sys, os; from safetensors.torch import load_file, save_file; state = load_file(sys.argv[1]); "
        "os.mkdir(sys.argv[2]); names = list(state); n = -(-len(names) // 4); "
        "[save_file({k: state[k] for k in names[i:i + n]}, f'{sys.argv[2]}/model-{i // n + 1}.safetensors') "
        "for i in range(0, len(names), n)]"
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gb", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tmpfs", default="/dev/shm")
    parser.add_argument("--disk", default=".")
    parser.add_argument("--only", choices=["tmpfs", "disk", "memory"])
    parser.add_argument("--case", choices=list(PEERS))
    options = parser.parse_args()
    size = int(options.gb * 1e9)
    for where in ("tmpfs", "disk"):
        if options.only in (None, where):
            with tempfile.TemporaryDirectory(dir=getattr(options, where), prefix="tael-bench-") as folder:
                compare(Path(folder), where, size, options.rounds, options.case)
    if options.only in (None, "memory"):
        with tempfile.TemporaryDirectory(dir=options.disk, prefix="tael-bench-") as folder:
            memory(Path(folder))


def compare(folder: Path, where: str, size: int, rounds: int, only: str | None) -> None:
    subprocess.run([sys.executable, "-c", MAKE, str(folder), str(size)], check=True)
    pt, st, shards = folder / "model.pt", folder / "model.safetensors", folder / "shards"
    out = folder / "out"
    cases = {
        "pt -> safetensors": (pt, out / "o.safetensors", []),
        "safetensors -> pt": (st, out / "o.pt", []),
        "4 shards -> 1 file": (shards, out / "o.safetensors", []),
        "1 file -> 4 shards": (st, out / "o", ["--shard-size", str(-(-size // 4) + 4096)]),
    }
    print(f"\n{size / 1e9:g} GB on {where}: seconds (median of {rounds}), and ours / theirs")
    print(f"{'':20} {'tael':>7} {'cp+sync':>8} {'peer':>7}   {'/ cp+sync':24} {'/ peer':24} {'RSS':>7} {'peer RSS':>9}")
    for name, (source, target, more) in cases.items():
        if only in (None, name):
            files = sorted(p for p in source.iterdir() if p.is_file()) if source.is_dir() else [source]
            copies = [["cp", "--reflink=never", str(p), str(out / p.name)] for p in files]
            made = f"find {out} -type f -exec sync {{}} +"  # as durable as what tael and cp + sync leave
            contenders = {
                "tael": [[sys.executable, "-m", "tael", "convert", "--quiet", str(source), str(target), *more]],
                "cp": [*copies, *(["sync", str(out / p.name)] for p in files)],
                "peer": [[sys.executable, "-c", PEERS[name], str(source), str(target)], ["sh", "-c", made]],
            }

            def before(_: str) -> None:
                shutil.rmtree(out, ignore_errors=True)
                out.mkdir()
                if where == "disk":
                    os.sync()

            runs = interleave(contenders, rounds, before)
            to_copy, to_peer = (ratios(runs["tael"], runs[peer]) for peer in ("cp", "peer"))
            print(
                f"{name:20} {runs['tael'].median:7.2f} {runs['cp'].median:8.2f} {runs['peer'].median:7.2f}   "
                f"{spread(to_copy):24} {spread(to_peer):24} {mb(runs['tael'].peak):>7} {mb(runs['peer'].peak):>9}",
                flush=True,
            )


def memory(folder: Path) -> None:
    print("\nPeak RSS of tael convert, sparse input on disk")
    for gb in (2, 8):
        source = folder / f"{gb}.safetensors"
        sparse(source, gb * 10**9)
        for suffix in ("safetensors", "pt"):
            target = folder / f"out.{suffix}"
            command = [sys.executable, "-m", "tael", "convert", "--quiet", str(source), str(target)]
            seconds, peak = run([command])
            print(f"  {gb} GB -> .{suffix:12} {mb(peak):>7}   {seconds:6.1f} s", flush=True)
            target.unlink()
        cast = folder / "cast.safetensors"
        seconds, peak = run([[*command[:-1], str(cast), "--dtype", "F16"]])
        print(f"  {gb} GB -> .safetensors F16 {mb(peak):>7}   {seconds:6.1f} s", flush=True)
        cast.unlink()
        source.unlink()


def sparse(path: Path, size: int) -> None:
    """A safetensors file of BF16 zeros that takes no disk."""
    rows = size // 64 // 8192
    header = {
        f"model.layers.{i}.weight": {
            "dtype": "BF16",
            "shape": [rows, 4096],
            "data_offsets": [i * rows * 8192, (i + 1) * rows * 8192],
        }
        for i in range(64)
    }
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + 64 * rows * 8192)


def spread(values: tuple[float, float, float]) -> str:
    median, low, high = values
    return f"{median:.2f} [{low:.2f} .. {high:.2f}]"


def mb(size: int) -> str:
    return f"{size / 1e6:.0f} MB"


if __name__ == "__main__":
    main()
