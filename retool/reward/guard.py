r"""Refusing text that is code, or mathematics that only a computer algebra system could unroll. `refuse_complex`.

It looks at the text alone, before any parser does. Limits that depend on values (powers, factorials) are kept where
those are computed.
"""

import re

MAX_LENGTH = 2000
_MAX_NESTING = 24
_MAX_DIGIT_RUN = 400
_ITERATED = re.compile(r"\\(?:sum|prod|int|iint|iiint|oint|lim|limsup|liminf|det|bigcap|coprod)(?![A-Za-z])")
_CODE = re.compile(
    r"__|\b(?:import|eval|exec|lambda|print|os|sys|open|getattr|system)\b\s*[.(]|\bimport\b|[\"`]|==|//|0[xX][\da-fA-F]"
)
_DIGITS = re.compile(rf"\d{{{_MAX_DIGIT_RUN + 1}}}")


def refuse_complex(text: str) -> bool:
    """Whether `text` is too long, too deeply nested, iterated (sums, integrals, limits) or code."""
    return (
        len(text) > MAX_LENGTH
        or _nesting(text) > _MAX_NESTING
        or any(pattern.search(text) for pattern in (_ITERATED, _CODE, _DIGITS))
    )


def _nesting(text: str) -> int:
    depth = deepest = 0
    for character in text:
        if character in "({[":
            depth += 1
            deepest = max(deepest, depth)
        elif character in ")}]":
            depth -= 1
    return deepest
