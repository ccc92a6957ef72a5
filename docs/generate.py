# SPDX-License-Identifier: Apache-2.0
"""Writes the parts of the documentation that the code knows better.

python docs/generate.py           write docs/cli.md, and the formats table wherever its markers stand
python docs/generate.py --check   change nothing; exit 1 when something is out of date
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from pathlib import Path

from tael.cli import app
from tael.cli.formats import cells
from tael.formats import registry

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- formats: written by docs/generate.py -->", "<!-- /formats -->"
TABLES = ("README.md", "README.zh-CN.md", "docs/formats/README.md")
TITLES = {
    "README.zh-CN.md": ("格式", "名称", "文件", "读", "写", "除张量外还保留"),
    "": ("format", "id", "files", "read", "write", "keeps besides tensors"),
}
CLI_HEAD = """\
# The command line

Written by `docs/generate.py` from the program's own help. What `--json` prints is described in [json.md](json.md).
"""


def help_of(*line: str) -> str:
    """What `tael LINE --help` prints into a pipe."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        app.main([*line, "--help"])
    return printed.getvalue().rstrip()


def cli_page() -> str:
    parts = [CLI_HEAD, f"```text\n{help_of()}\n```\n"]
    parts += [f"## tael {verb}\n\n```text\n{help_of(verb)}\n```\n" for verb in app.VERBS]
    return "\n".join(parts)


def formats_table(page: str) -> str:
    """The registry as Markdown; each format links to its page."""
    root = os.path.relpath("docs/formats", Path(page).parent)
    titles = TITLES.get(page, TITLES[""])
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for fmt in registry.builtin():
        title, suffixes, *rest = cells(fmt)
        link = f"[{title}]({os.path.join(root, fmt.id + '.md').removeprefix('./')})"
        lines.append(f"| {' | '.join([link, f'`{fmt.id}`', suffixes, *rest])} |")
    return "\n".join(lines)


def pages() -> dict[Path, str]:
    """Every generated page and what it should be."""
    found = {ROOT / "docs" / "cli.md": cli_page()}
    for page in TABLES:
        path = ROOT / page
        text = path.read_text("utf-8") if path.exists() else ""
        if BEGIN in text and END in text:
            before, _, rest = text.partition(BEGIN)
            found[path] = f"{before}{BEGIN}\n{formats_table(page)}\n{END}{rest.partition(END)[2]}"
    return found


def main(arguments: list[str]) -> int:
    stale = [(path, text) for path, text in pages().items() if not path.exists() or path.read_text("utf-8") != text]
    for path, text in stale:
        sys.stdout.write(f"{path.relative_to(ROOT)}: {'out of date' if '--check' in arguments else 'written'}\n")
        if "--check" not in arguments:
            path.write_text(text, "utf-8")
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
