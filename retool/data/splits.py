"""Stable ids, and a held-out part that shares neither id nor question with the training part.

`comparable` reduces a question to what two copies of it have in common; `holdout_order` is the seeded order by which
problems are held out, and it depends on seed and id alone, not on the file's order or size.
"""

import hashlib
import re
import unicodedata
from collections.abc import Iterable

_SPACES = re.compile(r"\s+")
_PUNCTUATION = re.compile(r"[.,;:!?'\"’“”]+(?!\d)")


def comparable(question: str) -> str:
    """The question without case, spacing and punctuation (a point or comma before a digit stays)."""
    folded = unicodedata.normalize("NFKC", question).casefold()
    return _SPACES.sub(" ", _PUNCTUATION.sub(" ", folded)).strip()


def content_id(question: str) -> str:
    """Sixteen hexadecimal digits of the comparable question's SHA-256."""
    return hashlib.sha256(comparable(question).encode()).hexdigest()[:16]


def holdout_order(ids: Iterable[str], seed: int) -> list[str]:
    """The ids in the order in which they are held out."""
    return sorted(ids, key=lambda name: (hashlib.sha256(f"{seed}:{name}".encode()).digest(), name))
