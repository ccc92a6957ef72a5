# SPDX-License-Identifier: Apache-2.0
"""Patterns over tensor names, and rules that rename.

A pattern is a glob whose `*` crosses dots (`model.*.weight`), or a regex behind `re:` (`re:layers\\.[0-3]\\.`, found
anywhere in the name). A rule is `OLD=NEW`, a glob whose stars fill the stars of NEW in order, each as short as it can
be, or `s/REGEX/REPLACEMENT/`, the first match in a name; with a `g` behind it, every match.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache

from tael.errors import TransformError, clip

_TOKEN = re.compile(r"\*|\?|\[!?\]?[^\]]*\]|.", re.DOTALL)
_SUBSTITUTION = re.compile(
    r"s(?P<d>[/|#])(?P<old>(?:\\.|(?!(?P=d)).)+)(?P=d)(?P<new>(?:\\.|(?!(?P=d)).)*)(?P=d)(?P<g>g?)", re.DOTALL
)
_MOST_COMPARED = 3000  # names that `near` looks at: the comparison is slow


def matcher(patterns: Sequence[str]) -> Callable[[str], bool]:
    """A test: does a name match any of `patterns`? Raises `TransformError` for a broken pattern."""
    tests = [_test(pattern) for pattern in patterns]
    return lambda name: any(test(name) is not None for test in tests)


@cache
def _test(pattern: str) -> Callable[[str], re.Match[str] | None]:
    if pattern.startswith("re:"):
        return compiled(pattern.removeprefix("re:")).search
    return compiled(glob_regex(pattern), glob=pattern).fullmatch


def compiled(regex: str, *, glob: str | None = None) -> re.Pattern[str]:
    """`re.compile`, with a `TransformError` for what is no regex, or no `glob` if it was made from one."""
    try:
        return re.compile(regex, re.DOTALL)
    except (re.error, RecursionError, OverflowError) as error:
        if glob is not None:  # where the regex is wrong says nothing about the glob
            why = error.msg if isinstance(error, re.error) else "it is too long"
            raise TransformError(f"{clip(glob)!r} is no pattern: {why}") from None
        raise TransformError(f"{clip(regex)!r} is no regular expression: {error}") from None


def glob_regex(pattern: str) -> str:
    """The regex of a glob: `*`, `?`, `[abc]`, `[!abc]`. Every star is a group.

    What lies between two stars has a fixed length, so its first occurrence is as good as any later one: it is taken
    for good (an atomic group), else a long name takes time to the power of the stars.
    """
    out: list[str] = []
    star = -1  # where the last one is in `out`
    for token in _TOKEN.findall(pattern):
        if token == "*":
            if star >= 0:
                out[star] = f"(?>{out[star]}"
                out.append(")")
            star = len(out)
            out.append("(.*?)")
        elif token == "?":
            out.append(".")
        elif len(token) > 1 and (inside := token[1:-1].removeprefix("!")):
            escaped = "".join(c if c == "-" else re.escape(c) for c in inside)
            out.append(f"[{'^' if token[1] == '!' else ''}{escaped}]")
        else:
            out.append(re.escape(token))
    return "".join(out)


def filled(template: str, captured: Sequence[str]) -> str:
    """`template` with its stars replaced, in order, by `captured`."""
    pieces = template.split("*")
    return pieces[0] + "".join(text + piece for text, piece in zip(captured, pieces[1:], strict=False))


def renamer_of(rule: str) -> Callable[[str], str]:
    """The function of one rule. Raises `TransformError` when it is none."""
    substitution = _SUBSTITUTION.fullmatch(rule)
    if substitution:
        return _substitution(rule, substitution)
    old, equals, new = rule.partition("=")
    if not equals or not old or not new:
        raise TransformError(
            f"{clip(rule)!r} is no rule to rename by",
            hint="write OLD=NEW, with * for any part, or s/REGEX/REPLACEMENT/",
        )
    stars = sum(token == "*" for token in _TOKEN.findall(old))
    if new.count("*") > stars:
        raise TransformError(f"{clip(rule)!r} has more stars on the right than on the left")
    match = compiled(glob_regex(old), glob=old).fullmatch

    def rename(name: str) -> str:
        found = match(name)
        return filled(new, found.groups()) if found else name

    return rename


def _substitution(rule: str, parsed: re.Match[str]) -> Callable[[str], str]:
    delimiter = parsed["d"]
    old, new = (parsed[part].replace(f"\\{delimiter}", delimiter) for part in ("old", "new"))
    regex, count = compiled(old), 0 if parsed["g"] else 1
    try:
        regex.sub(new, "")  # parses the replacement
    except (re.error, IndexError) as error:
        raise TransformError(f"{clip(rule)!r}: the replacement does not fit: {error}") from None
    return lambda name: regex.sub(new, name, count=count)


def near(pattern: str, names: Iterable[str]) -> list[str]:
    """Up to three of `names` that whoever wrote `pattern` may have meant."""
    unique = list(dict.fromkeys(names))
    step = -(-len(unique) // _MOST_COMPARED) or 1
    wanted = pattern.removeprefix("re:").replace("\\", "").strip("*^$")
    found = difflib.get_close_matches(wanted[:200], [name[:200] for name in unique[::step]], n=3, cutoff=0.4)
    return found or unique[:3]


def nothing_matches(
    patterns: Sequence[str], names: Iterable[str], path: str, what: str = "no tensor matches"
) -> TransformError:
    """The error for `patterns` that match none of `names`, with names that are near."""
    listed = ", ".join(repr(clip(pattern)) for pattern in patterns[:3]) + (" ..." if len(patterns) > 3 else "")
    close = near(patterns[0] if patterns else "", names)
    hint = f"there is: {', '.join(clip(name) for name in close)}" if close else "there are no tensors"
    return TransformError(f"{what} {listed}", path=path, hint=hint)
