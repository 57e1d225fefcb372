"""A chat template as a function from messages to text, and what it does to the contents of messages.

Contents: `Message`, `ChatTemplate`, `call_message`, `find_transform`, `content_difference`, `difference`.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from retool.errors import UserError
from retool.protocol.types import CODE_PARAMETER, TOOL_NAME

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Message = Mapping[str, object]

_CONTENT_PROBES = ("\n  first\n\n  second \n", 'a "quoted" word, \u00e9 \\ <b>\n\tlast')
_CONTEXT_CHARACTERS = 60


class ChatTemplate:
    """Renders dialogues with one template, one set of tools and one thinking switch."""

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerBase",
        source: str | None,
        *,
        enable_thinking: bool,
        tools: Sequence[Mapping[str, object]] | None = None,
    ) -> None:
        """`source` overrides the tokenizer's own template. Raises `UserError` if there is neither."""
        if source is None and not tokenizer.chat_template:
            raise UserError(
                "The tokenizer has no chat template, so that prompts cannot be written. "
                "Give one with model.chat_template, or use an instruction-tuned model."
            )
        self._tokenizer = tokenizer
        self._source = source
        self._enable_thinking = enable_thinking
        self._tools = cast("list[dict[object, object] | Callable[..., object]]", list(tools)) if tools else None

    def with_tools(self, tools: Sequence[Mapping[str, object]] | None) -> "ChatTemplate":
        """The same template with other tools."""
        return ChatTemplate(self._tokenizer, self._source, enable_thinking=self._enable_thinking, tools=tools)

    def render(self, messages: Sequence[Message], *, generation_prompt: bool) -> str:
        """The text of a dialogue. Raises `UserError` where the template refuses it."""
        from jinja2 import TemplateError

        try:
            text = self._tokenizer.apply_chat_template(
                cast("list[dict[str, str]]", [dict(message) for message in messages]),
                tools=self._tools,
                chat_template=self._source,
                add_generation_prompt=generation_prompt,
                tokenize=False,
                enable_thinking=self._enable_thinking,
            )
        except (TemplateError, TypeError, ValueError) as error:
            roles = ", ".join(str(message["role"]) for message in messages)
            raise UserError(
                f"The chat template refuses a dialogue with the roles {roles}: {error}. "
                "Give another one with model.chat_template (model.system_prompt='' leaves out the system message)."
            ) from error
        return str(text)


def call_message(content: str, code: str) -> Message:
    """An assistant message with a tool call in the form that templates render themselves."""
    call = {"type": "function", "function": {"name": TOOL_NAME, "arguments": {CODE_PARAMETER: code}}}
    return {"role": "assistant", "content": content, "tool_calls": [call]}


def find_transform(render: Callable[[str], str], before: str, after: str) -> Callable[[str], str] | None:
    """What a template does to the content of a message: nothing, strip its white space, or write it as a JSON string.

    `render(content)` is the text of a dialogue, `before` and `after` the parts of it around the content
    (the quotes of a JSON string belong to them).
    `None` if it is none of these.
    """
    for transform in (_identity, str.strip, _json_escaped):
        if all(render(probe) == before + transform(probe) + after for probe in _CONTENT_PROBES):
            return transform
    return None


def content_difference(render: Callable[[str], str], before: str, after: str) -> str:
    """Where a template first changes the content of a message, for the error that refuses it."""
    pairs = ((before + probe + after, render(probe)) for probe in _CONTENT_PROBES)
    return next((difference(expected, actual) for expected, actual in pairs if expected != actual), "")


def _identity(text: str) -> str:
    return text


def _json_escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def difference(expected: str, actual: str) -> str:
    """Two lines that show where two texts part, each with a little of what stands before."""
    place = next((i for i, (a, b) in enumerate(zip(expected, actual, strict=False)) if a != b), None)
    if place is None:
        place = min(len(expected), len(actual))
    start = max(0, place - _CONTEXT_CHARACTERS)
    end = place + _CONTEXT_CHARACTERS
    return f"  in the context: …{expected[start:end]!r}…\n  in the template: …{actual[start:end]!r}…"
