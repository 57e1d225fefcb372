"""Tool calls in the Hermes form: one JSON object between tags.

    <tool_call>
    {"name": "code_interpreter", "arguments": {"code": "print(1)"}}
    </tool_call>

The call ends where its JSON object ends, so that strings in it may hold the tags. JSON is read strictly, as the
servers of these models do: a line break in a string must be written as an escape.

Contents: `SYNTAX`.
"""

import json
import re

from retool.protocol.types import CODE_PARAMETER, TOOL_NAME, CallSyntax, ParsedTurn, ParseProblem, ToolFormat

_TRACES = re.compile(r'</?tool_call>|"name"\s*:\s*"' + TOOL_NAME + '"')
_HEAD = re.compile(r"<tool_call>\s*(?=\{)")
_TAIL = re.compile(r"\s*</tool_call>")
_FORM = f'{{"name": "{TOOL_NAME}", "arguments": {{"{CODE_PARAMETER}": "..."}}}}'


def _render(code: str) -> str:
    call = {"name": TOOL_NAME, "arguments": {CODE_PARAMETER: code}}
    return f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>"


def _parse(text: str) -> ParsedTurn:
    if not _TRACES.search(text):
        return ParsedTurn.answer()
    if "<tool_call>" not in text:
        return ParsedTurn.malformed(ParseProblem.NOT_ENCLOSED, "it must stand between <tool_call> and </tool_call>.")
    head = _HEAD.search(text)
    if head is None:
        return ParsedTurn.malformed(ParseProblem.BAD_JSON, f"<tool_call> must be followed by a JSON object: {_FORM}")
    try:
        call, end = json.JSONDecoder().raw_decode(text, head.end())
    except (ValueError, RecursionError) as error:
        if "</tool_call>" not in text[head.end() :]:
            return _unclosed()
        return ParsedTurn.malformed(ParseProblem.BAD_JSON, _describe(error))
    tail = _TAIL.match(text, end)
    if tail is None:
        if "</tool_call>" not in text[end:]:
            return _unclosed()
        return ParsedTurn.malformed(
            ParseProblem.BAD_JSON, "its JSON object is followed by more text. Put only </tool_call> after it."
        )
    return _parse_call(call, rest=text[tail.end() :])


def _unclosed() -> ParsedTurn:
    return ParsedTurn.malformed(
        ParseProblem.UNCLOSED, "it has no end. Close the JSON object and write </tool_call> after it."
    )


def _describe(error: ValueError | RecursionError) -> str:
    reason = error.msg if isinstance(error, json.JSONDecodeError) else "it is too large or nested too deeply"
    return f'it is not valid JSON ({reason}). In the string of the code, write line breaks as \\n and quotes as \\".'


def _parse_call(call: object, *, rest: str) -> ParsedTurn:
    if "<tool_call>" in rest:
        return ParsedTurn.malformed(
            ParseProblem.MULTIPLE_CALLS, "there is more than one in the turn. Make one call and wait for its output."
        )
    if rest.strip():
        return ParsedTurn.malformed(
            ParseProblem.TEXT_AFTER_CALL, "text follows it. End the turn right after </tool_call>."
        )
    name = call.get("name") if isinstance(call, dict) else None
    if not isinstance(call, dict) or name != TOOL_NAME:
        return ParsedTurn.malformed(
            ParseProblem.WRONG_FUNCTION, f"there is no function {name!r}. The only one is {TOOL_NAME}."
        )
    arguments = call.get("arguments", {})
    if not isinstance(arguments, dict) or set(call) - {"name", "arguments"}:
        return ParsedTurn.malformed(ParseProblem.BAD_STRUCTURE, f"it must have this form: {_FORM}")
    return _parse_arguments(arguments)


def _parse_arguments(arguments: dict[str, object]) -> ParsedTurn:
    unknown = next((name for name in arguments if name != CODE_PARAMETER), None)
    if unknown is not None:
        return ParsedTurn.malformed(
            ParseProblem.UNKNOWN_PARAMETER, f"there is no parameter {unknown!r}. The only one is {CODE_PARAMETER}."
        )
    if CODE_PARAMETER not in arguments:
        return ParsedTurn.malformed(ParseProblem.MISSING_CODE, f"it has no code. Write it like this: {_FORM}")
    code = arguments[CODE_PARAMETER]
    if not isinstance(code, str):
        return ParsedTurn.malformed(ParseProblem.BAD_STRUCTURE, f"{CODE_PARAMETER} must be a string.")
    if any("\ud800" <= character <= "\udfff" for character in code):  # an escape can smuggle in half a character
        return ParsedTurn.malformed(ParseProblem.BAD_JSON, "the code holds an unpaired surrogate escape.")
    if not code.strip():
        return ParsedTurn.malformed(ParseProblem.EMPTY_CODE, "the code is empty.")
    return ParsedTurn.call(code)


SYNTAX = CallSyntax(
    tool_format=ToolFormat.HERMES_JSON,
    parse=_parse,
    render=_render,
    instructions=(
        "To call it, end your turn with one JSON object in exactly this form, with line breaks in the code written "
        f"as \\n:\n{_render('your Python code')}"
    ),
)
