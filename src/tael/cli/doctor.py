# SPDX-License-Identifier: Apache-2.0
"""`tael doctor`: is this installation in order?"""

from __future__ import annotations

from dataclasses import asdict
from itertools import groupby

from tael.cli import options, output, screen
from tael.cli.help import Example
from tael.cli.table import Column, table
from tael.cli.text import safe

EXAMPLES = (
    Example("tael doctor", "versions, native core, machine, optional packages"),
    Example("tael doctor --quiet", "print only what is broken; the exit code says whether anything is"),
    Example("tael doctor --json", "the same for a bug report"),
)


def doctor(as_json: options.Json = False, quiet: options.Quiet = False) -> int:
    """Is this installation in order?

    Tests the native core against known checksums and roundings, and lists what is installed. Exit code 1 when
    something is broken.
    """
    from tael.cli.checkup import examine

    findings = examine()
    broken = [finding for finding in findings if finding.ok is False]
    if as_json:
        output.document("tael.doctor/1", {"ok": not broken, "findings": [asdict(finding) for finding in findings]})
        return 1 if broken else 0
    out = screen.stdout()
    if not quiet:
        width = max(len(finding.name) for finding in findings)
        for number, (topic, group) in enumerate(groupby(findings, lambda finding: finding.topic)):
            if number:
                out.line()
            out.line(out.paint(topic, "bold"))
            rows = [(finding.name.ljust(width), safe(finding.value, 200), _mark(finding.ok)) for finding in group]
            table(out, [Column(), Column(gives=True), Column()], rows)
        out.line()
    for finding in broken:
        out.line(f"{out.paint('broken', 'red')}  {finding.topic}, {finding.name}: {safe(finding.value, 200)}")
        out.line(f"  {finding.hint}")
    if not broken and not quiet:
        out.line(out.paint("all in order", "green"))
    return 1 if broken else 0


def _mark(ok: bool | None) -> tuple[str, str]:
    if ok is None:
        return "", ""
    return ("ok", "green") if ok else ("broken", "red")
