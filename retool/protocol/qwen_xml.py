"""Tool calls in Qwen's XML form.

    <tool_call>
    <function=code_interpreter>
    <parameter=code>
    CODE
    </parameter>
    </function>
    </tool_call>

Tags may stand apart by any white space. Exactly one newline on each side of CODE belongs to the tags; everything else
is code, to the letter. Nothing in CODE is escaped, so it may hold the closing tags themselves: the call ends at the
last closing tags that complete one. Where that leaves two readings (one call whose code holds the tags of a second
one, or two calls), it is one call if the code so read is Python.

Contents: `SYNTAX`.
"""

import re

from retool.protocol.python_code import is_python
from retool.protocol.types import CODE_PARAMETER, TOOL_NAME, CallSyntax, ParsedTurn, ParseProblem, ToolFormat

_TRACES = re.compile(r"</?tool_call>|<function=")
_HEAD = re.compile(r"<tool_call>\s*<function=([^>\n]*)>")
_TAIL = re.compile(r"</function>\s*</tool_call>")
_PARAMETER = re.compile(r"<parameter=([^>\n]*)>")
_NEXT_PARAMETER = re.compile(r"</parameter>\s*<parameter=([^>\n]*)>")
_PARAMETER_END = "</parameter>"


def _render(code: str) -> str:
    return (
        f"<tool_call>\n<function={TOOL_NAME}>\n<parameter={CODE_PARAMETER}>\n{code}\n</parameter>\n"
        "</function>\n</tool_call>"
    )


def _parse(text: str) -> ParsedTurn:
    if not _TRACES.search(text):
        return ParsedTurn.answer()
    head = _HEAD.search(text)
    if head is None:
        return _headless(text)
    tails = list(_TAIL.finditer(text, head.end()))
    if not tails:
        return ParsedTurn.malformed(
            ParseProblem.UNCLOSED, "it has no end. Close it with </parameter>, </function> and </tool_call>."
        )
    tail = next((t for t in reversed(tails) if _is_complete(text[head.end() : t.start()])), tails[-1])
    body, rest = text[head.end() : tail.start()], text[tail.end() :]
    if _holds_second_call(body) or "<tool_call>" in rest:
        return ParsedTurn.malformed(
            ParseProblem.MULTIPLE_CALLS, "there is more than one in the turn. Make one call and wait for its output."
        )
    if rest.strip():
        return ParsedTurn.malformed(
            ParseProblem.TEXT_AFTER_CALL, "text follows it. End the turn right after </tool_call>."
        )
    name = head.group(1).strip()
    if name != TOOL_NAME:
        return ParsedTurn.malformed(
            ParseProblem.WRONG_FUNCTION, f"there is no function {name!r}. The only one is {TOOL_NAME}."
        )
    return _parse_parameters(body)


def _headless(text: str) -> ParsedTurn:
    if "<tool_call>" in text:
        return ParsedTurn.malformed(
            ParseProblem.BAD_STRUCTURE, f"<tool_call> must be followed by <function={TOOL_NAME}>."
        )
    return ParsedTurn.malformed(ParseProblem.NOT_ENCLOSED, "it must stand between <tool_call> and </tool_call>.")


def _is_complete(body: str) -> bool:
    inner = body.strip()
    return not inner or (inner.startswith("<parameter=") and inner.endswith(_PARAMETER_END))


def _holds_second_call(body: str) -> bool:
    """Whether the body of what looks like one call is rather the inside of two."""
    first_tail = _TAIL.search(body)
    if first_tail is None or not _HEAD.search(body, first_tail.end()):
        return False
    parameter = _PARAMETER.match(body.lstrip())
    return parameter is None or not is_python(_unwrap(_value(body, parameter)))


def _parse_parameters(body: str) -> ParsedTurn:
    inner = body.strip()
    if not inner:
        return ParsedTurn.malformed(
            ParseProblem.MISSING_CODE, f"it has no code. Put it between <parameter={CODE_PARAMETER}> and </parameter>."
        )
    parameter = _PARAMETER.match(inner)
    if parameter is None or not inner.endswith(_PARAMETER_END):
        return ParsedTurn.malformed(
            ParseProblem.BAD_STRUCTURE,
            f"inside of <function=...> there must be <parameter={CODE_PARAMETER}>, the code and </parameter>, no more.",
        )
    code = _unwrap(_value(body, parameter))
    names = [parameter.group(1).strip(), *(match.group(1).strip() for match in _NEXT_PARAMETER.finditer(inner))]
    if len(names) > 1 and names[0] == CODE_PARAMETER and is_python(code):
        names = names[:1]
    unknown = next((name for name in names if name != CODE_PARAMETER), None)
    if unknown is not None:
        return ParsedTurn.malformed(
            ParseProblem.UNKNOWN_PARAMETER, f"there is no parameter {unknown!r}. The only one is {CODE_PARAMETER}."
        )
    if len(names) > 1:
        return ParsedTurn.malformed(
            ParseProblem.DUPLICATE_PARAMETER, f"the parameter {CODE_PARAMETER} is given more than once."
        )
    if not code.strip():
        return ParsedTurn.malformed(ParseProblem.EMPTY_CODE, "the code is empty.")
    return ParsedTurn.call(code)


def _value(body: str, parameter: re.Match[str]) -> str:
    return body.strip()[parameter.end() : -len(_PARAMETER_END)]


def _unwrap(value: str) -> str:
    return value.removeprefix("\n").removesuffix("\n")


SYNTAX = CallSyntax(
    tool_format=ToolFormat.QWEN_XML,
    parse=_parse,
    render=_render,
    instructions=f"To call it, end your turn with exactly this form:\n{_render('your Python code')}",
)
