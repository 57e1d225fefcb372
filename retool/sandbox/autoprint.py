"""From the text of a code block to code objects that show their last value, as an interactive interpreter would.

`unwrap`: takes a byte order mark and a surrounding Markdown fence off. `compile_program`: splits a trailing expression
off and compiles it so that its value is displayed. `display`: what shows the value.

This module runs inside the sandbox's interpreter: it imports nothing but built-in modules.
"""

import __future__ as future

import sys
from _ast import Expr, Interactive, Module, PyCF_ONLY_AST
from types import CodeType

_FENCE = "```"
_FUTURE_FLAGS = sum(getattr(future, name).compiler_flag for name in future.all_feature_names)


def unwrap(text: str) -> str:
    """The code in `text`: without a byte order mark, and without a Markdown fence that opens on the first line.

    No valid program starts with a fence, so this changes no valid program. What follows the closing fence is dropped.
    """
    text = text.lstrip("\ufeff")
    lines = text.strip().splitlines()
    if not lines or not lines[0].startswith(_FENCE) or _FENCE in lines[0][len(_FENCE) :]:
        return text
    inner = lines[1:]
    closing = [index for index, line in enumerate(inner) if line.strip() == _FENCE]
    if closing:
        # A fence on the very last line closes the block; a lone one before it may be part of a string.
        end = closing[-1] if closing[-1] == len(inner) - 1 else closing[0]
        inner = inner[:end]
    return "\n".join(inner) + "\n"


def compile_program(text: str, *, filename: str, auto_print: bool) -> tuple[CodeType, ...]:
    """Compiles `text` into the code objects to execute in order, in one namespace.

    With `auto_print`, a last statement that is an expression becomes a code object of its own that hands its value to
    `sys.displayhook`. Both parts are compiled before either runs, with the same `__future__` features and the
    original line numbers; a program that does not compile raises what it would raise without `auto_print`.
    """
    whole = compile(text, filename, "exec", dont_inherit=True)
    if not auto_print:
        return (whole,)
    tree = compile(text, filename, "exec", PyCF_ONLY_AST, dont_inherit=True)
    assert isinstance(tree, Module)
    if not tree.body or not isinstance(tree.body[-1], Expr):
        return (whole,)
    flags = whole.co_flags & _FUTURE_FLAGS
    first = compile(Module(body=tree.body[:-1], type_ignores=[]), filename, "exec", flags, dont_inherit=True)
    last = compile(Interactive(body=[tree.body[-1]]), filename, "single", flags, dont_inherit=True)
    return (first, last)


def display(value: object) -> None:
    """Writes `repr(value)` and a newline to `sys.stdout`; `None` shows nothing.

    Unlike `sys.displayhook` it sets no `_` and never fails: a program that works without auto-print works with it.
    """
    if value is None or sys.stdout is None:
        return
    try:
        shown = repr(value)
    except Exception:  # noqa: BLE001 (the value's own class may raise anything)
        return
    print(shown)
