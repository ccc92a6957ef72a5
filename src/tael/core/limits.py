# SPDX-License-Identifier: Apache-2.0
"""How much a file may ask for while it is opened. Nothing is allocated before it is checked here."""

from __future__ import annotations

from dataclasses import dataclass

from tael.errors import LimitExceededError

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on headers, never on tensor bytes. Sizes in bytes, the rest in counts."""

    header_bytes: int = 256 * MIB  # one JSON header, one pickle, one central directory
    index_bytes: int = 256 * MIB  # one *.index.json
    tensors: int = 4_000_000
    rank: int = 64
    name_bytes: int = 64 * 1024
    pickle_opcodes: int = 20_000_000  # a unit of work: one opcode; hashing or copying many items costs more
    pickle_memory: int = 640 * MIB  # of what a pickle builds, estimated from above
    pickle_objects: int = 5_000_000  # values met when a result is walked; shared ones count each time
    pickle_depth: int = 400  # nesting of containers in the result
    pickle_globals: int = 10_000  # different "module.name" in one pickle
    pickle_seconds: float = 30.0  # of processor time: the last resort against crafted hash collisions
    shards: int = 100_000

    def check(self, what: str, value: int, limit: int, *, path: object = None) -> None:
        """Raise `LimitExceededError` when `value` is above `limit`."""
        if value > limit:
            raise LimitExceededError(
                f"{what} is {value:,}, the limit is {limit:,}",
                path=path,
                hint="a file from a stranger may ask for anything; raise the limit in tael.Limits if you trust it",
            )


DEFAULT = Limits()
