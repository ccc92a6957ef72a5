# SPDX-License-Identifier: Apache-2.0
"""Prints what to install for some extras of pyproject.toml, one requirement a line: requirements.py dev peers

`build` stands for the build system's own requirements and the tools it runs. So pyproject.toml stays the only list,
and installing an extra does not rebuild the project.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

pyproject = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8"))
lists = {
    "build": [*pyproject["build-system"]["requires"], "cmake>=3.26", "ninja>=1.11"],
    **pyproject["project"]["optional-dependencies"],
}
for extra in sys.argv[1:]:
    print("\n".join(lists[extra]))
