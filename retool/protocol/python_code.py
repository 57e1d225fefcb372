"""Whether a text is Python, for the parsers' ambiguous cases.

Contents: `is_python`.
"""

import ast
import warnings


def is_python(code: str) -> bool:
    """True if `code` compiles to a syntax tree. Code that is too deep for the parser counts as no Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in model-written strings would print
            ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
