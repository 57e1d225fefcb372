"""The vocabulary of the protocol: formats, modes and what a turn turned out to be.

Contents: `TOOL_NAME`, `CODE_PARAMETER`, `ToolFormat`, `PromptMode`, `Thinking`, `TurnKind`, `ParseProblem`,
`ParsedTurn`, `CallSyntax`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

TOOL_NAME = "code_interpreter"
"""The one tool that a policy may call."""

CODE_PARAMETER = "code"
"""The one parameter of the tool."""


class ToolFormat(StrEnum):
    """How a policy writes a tool call."""

    QWEN_XML = "qwen_xml"
    """`<tool_call><function=code_interpreter><parameter=code>…`: Qwen3-Coder, Qwen3.5 and later."""
    HERMES_JSON = "hermes_json"
    """A JSON object between `<tool_call>` and `</tool_call>`: Qwen2.5, Qwen3 and the Hermes models."""
    FENCED_PYTHON = "fenced_python"
    """A Markdown block fenced with ```` ```python ```` at the end of the turn, for models without a tool template."""


class PromptMode(StrEnum):
    """What the policy is asked to do."""

    RETOOL = "retool"
    """Solve the problem with the code interpreter at hand."""
    TEXT_ONLY = "text_only"
    """Solve the problem by reasoning in text. The tool is never mentioned, and every turn is an answer."""


class Thinking(StrEnum):
    """What happens to reasoning blocks (`<think>…</think>`)."""

    DISABLED = "disabled"
    """The template is told not to open one (`enable_thinking=False`)."""
    KEEP = "keep"
    """The policy reasons in every turn, and the reasoning of earlier turns stays in the context."""
    STRIP = "strip"
    """The policy reasons in every turn, and the reasoning of earlier turns leaves the context. Only where there is no
    earlier turn (`PromptMode.TEXT_ONLY`): elsewhere a trajectory would not be one token sequence."""


class TurnKind(StrEnum):
    """What a finished turn is."""

    CALL = "call"
    """One well-formed tool call, at the end of the turn."""
    ANSWER = "answer"
    """No tool call: the policy's answer."""
    MALFORMED = "malformed"
    """Something that looks like a tool call but cannot be run as one."""


class ParseProblem(StrEnum):
    """Why a turn is `TurnKind.MALFORMED`. The first that applies, in this order, is reported."""

    NOT_ENCLOSED = "not_enclosed"
    """Parts of a call outside of the tags that make it one."""
    UNCLOSED = "unclosed"
    """The call has no end."""
    BAD_JSON = "bad_json"
    """The call is not valid JSON (Hermes only)."""
    MULTIPLE_CALLS = "multiple_calls"
    """More than one call in the turn."""
    TEXT_AFTER_CALL = "text_after_call"
    """The turn goes on after its call."""
    WRONG_FUNCTION = "wrong_function"
    """The call names another tool, or none."""
    BAD_STRUCTURE = "bad_structure"
    """The parts of the call are not where they belong."""
    UNKNOWN_PARAMETER = "unknown_parameter"
    """A parameter other than `code`."""
    DUPLICATE_PARAMETER = "duplicate_parameter"
    """`code` given more than once."""
    MISSING_CODE = "missing_code"
    """No `code` parameter."""
    EMPTY_CODE = "empty_code"
    """`code` is blank."""


@dataclass(frozen=True, slots=True)
class ParsedTurn:
    """What a turn's text means. Build it with `call`, `answer` or `malformed`.

    `code` is set for `TurnKind.CALL`, to the letter. `problem` and `message` are set for `TurnKind.MALFORMED`:
    `message` is what the policy is told.
    """

    kind: TurnKind
    code: str | None = None
    message: str | None = None
    problem: ParseProblem | None = None

    @classmethod
    def call(cls, code: str) -> "ParsedTurn":
        return cls(TurnKind.CALL, code=code)

    @classmethod
    def answer(cls) -> "ParsedTurn":
        return cls(TurnKind.ANSWER)

    @classmethod
    def malformed(cls, problem: ParseProblem, message: str) -> "ParsedTurn":
        """`message` completes the sentence "The tool call was not run: …"."""
        return cls(TurnKind.MALFORMED, message=f"The tool call was not run: {message}", problem=problem)


@dataclass(frozen=True, slots=True)
class CallSyntax:
    """One way of writing tool calls.

    `parse` reads the text of a turn without its reasoning. `render` writes a call that `parse` reads back.
    `instructions` tells a policy how to call, for templates that do not.
    """

    tool_format: ToolFormat
    parse: Callable[[str], ParsedTurn]
    render: Callable[[str], str]
    instructions: str
