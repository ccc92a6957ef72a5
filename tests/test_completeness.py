# SPDX-License-Identifier: Apache-2.0
"""What CONTRIBUTING.md asks of every format and of every golden file is there."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from tael.formats import registry

ROOT = Path(__file__).parents[1]
VECTORS = sorted(path.parent for path in ROOT.glob("tests/vectors/*/PROVENANCE.json"))


@pytest.mark.parametrize("format_id", list(registry.BUILTIN))
def test_every_format_has_a_page(format_id: str) -> None:
    assert (ROOT / "docs" / "formats" / f"{format_id}.md").exists()


@pytest.mark.parametrize("format_id", list(registry.BUILTIN))
def test_every_format_passes_the_conformance_suite(format_id: str) -> None:
    module = registry.BUILTIN[format_id].partition(":")[0].rpartition(".")[2]
    tests = [path.read_text("utf-8") for path in ROOT.glob("tests/formats/test_*.py")]
    of_format = [text for text in tests if f"tael.formats.{module} import" in text or f" {module}" in text]
    suite = "FormatConformance" if registry.get(format_id).layout else "ReaderConformance"
    assert any(f"({suite}):" in text for text in of_format)


@pytest.mark.parametrize("folder", VECTORS, ids=lambda path: path.name)
def test_every_golden_file_is_recorded_and_unchanged(folder: Path) -> None:
    record = json.loads((folder / "PROVENANCE.json").read_text("utf-8"))
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} - {"PROVENANCE.json"}
    assert (folder.parent / record["made with"]).exists()
    assert found == record["files"].keys()
    for name, entry in record["files"].items():
        assert entry["by"], name
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == entry["sha256"], name
