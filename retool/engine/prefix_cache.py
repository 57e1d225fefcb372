"""Keys and values of finished sequences, kept so that the next turn of a trajectory prefills only what is new."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor


@dataclass(frozen=True)
class _Entry:
    stored: Tensor
    length: int


class PrefixCache:
    """Maps (weights, token prefix) to stored keys and values; the least recently used go first past `max_bytes`."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._entries: OrderedDict[tuple[str, bytes], _Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, weights: str, tokens: Sequence[int], stored: Tensor) -> None:
        """Keeps the keys and values of `tokens`, computed under `weights`."""
        key = (weights, _key(tokens))
        self._remove(key)
        self._entries[key] = _Entry(stored, len(tokens))
        self._bytes += stored.nbytes
        while self._bytes > self._max_bytes and self._entries:
            self._remove(next(iter(self._entries)))

    def longest(self, weights: str, tokens: Sequence[int]) -> tuple[int, Tensor | None]:
        """The longest kept proper prefix of `tokens`: its length and tensor, or (0, None)."""
        encoded = _key(tokens)
        lengths = {entry.length for (name, _), entry in self._entries.items() if name == weights}
        for length in sorted(lengths, reverse=True):
            key = (weights, encoded[: 4 * length])
            if length < len(tokens) and key in self._entries:
                self._entries.move_to_end(key)
                return length, self._entries[key].stored
        return 0, None

    def drop(self, weights: str) -> None:
        """Forgets everything computed under `weights`."""
        for key in [key for key in self._entries if key[0] == weights]:
            self._remove(key)

    def _remove(self, key: tuple[str, bytes]) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._bytes -= entry.stored.nbytes


def _key(tokens: Sequence[int]) -> bytes:
    return np.asarray(tokens, dtype=np.int32).tobytes()
