"""Auto-print: what is shown, and that no valid program changes."""

import ast
import contextlib
import io
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retool.sandbox.autoprint import compile_program, display, unwrap


def run(text: str, *, auto_print: bool = True) -> tuple[str, dict[str, object]]:
    namespace: dict[str, object] = {"__name__": "__main__"}
    output = io.StringIO()
    hook, sys.displayhook = sys.displayhook, display
    try:
        with contextlib.redirect_stdout(output):
            for code in compile_program(unwrap(text), filename="t.py", auto_print=auto_print):
                exec(code, namespace)
    finally:
        sys.displayhook = hook
    namespace.pop("__builtins__")
    return output.getvalue(), namespace


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("x = 5\nx", "5\n"),
        ("a = 3; a * 2", "6\n"),
        ("(1 +\n 2 +\n 3)\n\n# the end\n", "6\n"),
        ("'text'", "'text'\n"),
        ("None", ""),
        ("print('hi')", "hi\n"),
        ("x = 3", ""),
        ("if True:\n    3", ""),
        ("for i in range(2):\n    i", ""),
        ("def f():\n    return 1\n", ""),
        ("[\n  1,\n]\n", "[1]\n"),
        ("from __future__ import annotations\nx: Missing = 4\nx", "4\n"),
        ("", ""),
        ("# only a comment", ""),
        ("(y := 7)", "7\n"),
        ("(yield_ for yield_ in ()).close()", ""),
    ],
)
def test_last_expression_is_shown_as_an_interactive_interpreter_would(code, shown):
    assert run(code)[0] == shown


def test_off_means_off():
    assert run("5", auto_print=False)[0] == ""


def test_future_features_reach_the_last_expression():
    assert (
        run("from __future__ import annotations\ndef f(a: Missing): ...\nf.__annotations__")[0] == "{'a': 'Missing'}\n"
    )


def test_line_numbers_are_kept():
    first, last = compile_program("x = 1\n\n\nx / 0", filename="t.py", auto_print=True)
    assert max(line for *_, line in last.co_lines() if line) == 4
    assert first.co_filename == last.co_filename == "t.py"


def test_nothing_runs_if_the_last_line_does_not_compile():
    with pytest.raises(SyntaxError, match="outside function"):
        compile_program("print('ran')\n(yield)", filename="t.py", auto_print=True)


def test_a_failing_repr_does_not_fail_the_program():
    assert run("class A:\n    def __repr__(self):\n        raise RuntimeError\nA()")[0] == ""


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("```python\nx = 1\n```", "x = 1\n"),
        ("```\nx = 1\n```\n", "x = 1\n"),
        ("\n```py\nx = 1\n  y\n```\nThis prints x.", "x = 1\n  y\n"),
        ("```python\nx = 1\n", "x = 1\n"),
        ("\ufeffx = 1", "x = 1"),
        ("\ufeff```python\nx\n```", "x\n"),
        ("x = '''\n```\n'''\n", "x = '''\n```\n'''\n"),
        ("```python\nx = '''\n```\n'''\n```", "x = '''\n```\n'''\n"),
        ("    indented", "    indented"),
    ],
)
def test_unwrap(text, code):
    assert unwrap(text) == code


EXPRESSIONS = st.recursive(
    st.sampled_from(["1", "x", "None", "'s'", "y"]),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda pair: f"({pair[0]}, {pair[1]})"),
        inner.map(lambda value: f"[{value}]"),
        inner.map(lambda value: f"(lambda: {value})()"),
    ),
    max_leaves=6,
)
STATEMENTS = st.one_of(
    EXPRESSIONS,
    EXPRESSIONS.map(lambda value: f"x = {value}"),
    EXPRESSIONS.map(lambda value: f"print({value})"),
    EXPRESSIONS.map(lambda value: f"if y:\n    z = {value}\n    {value}"),
    EXPRESSIONS.map(lambda value: f"def g(a={value}):\n    return a"),
    EXPRESSIONS.map(lambda value: f"x = {value}; {value}"),
)


@settings(deadline=None, derandomize=True)
@given(st.lists(STATEMENTS, max_size=6))
def test_a_program_keeps_its_meaning_and_its_output(statements):
    program = "\n".join(["x = y = 1", *statements])
    plain_output, plain_names = run(program, auto_print=False)
    output, names = run(program)
    plain_names.pop("g", None), names.pop("g", None)
    assert names == plain_names
    assert output.startswith(plain_output)
    last = ast.parse(program).body[-1]
    if isinstance(last, ast.Expr):
        value = eval(compile(ast.Expression(last.value), "t", "eval"), dict(plain_names))
        if not (isinstance(last.value, ast.Call) and plain_output):
            assert output == plain_output + ("" if value is None else f"{value!r}\n")
    else:
        assert output == plain_output


@settings(deadline=None, derandomize=True)
@given(st.text(alphabet="`python \n='x1\"\ufeff", max_size=60))
def test_unwrap_leaves_valid_programs_alone(text):
    try:
        compile(text, "t", "exec")
    except (SyntaxError, ValueError):
        unwrap(text)
        return
    assert unwrap(text) == text.lstrip("\ufeff")
