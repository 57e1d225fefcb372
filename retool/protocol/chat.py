"""The protocol between rollout and policy: prompts, turns and what follows them, all in tokens.

Contents: `ChatProtocol`.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from retool.errors import UserError
from retool.protocol.continuation import ToolTurns, TurnEnd
from retool.protocol.encoding import Slot, TextEncoder
from retool.protocol.prompt import default_system_prompt, tool_schema
from retool.protocol.reasoning import is_reasoning_open, remove_reasoning
from retool.protocol.syntaxes import detect_format, syntax_of
from retool.protocol.template import ChatTemplate, Message, call_message, content_difference, find_transform
from retool.protocol.types import ParsedTurn, PromptMode, Thinking, ToolFormat

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_QUESTION = "PLACEHOLDER-QUESTION"
_TURN = "PLACEHOLDER-TURN"

_Choice = TypeVar("_Choice", ToolFormat, PromptMode, Thinking)


class ChatProtocol:
    """How one model is asked, read and answered. Immutable once built; all methods are pure.

    Attributes: `mode`, `thinking`, `tool_format` (chosen from the template for `"auto"`), `system_prompt` (empty: no
    system message), `stop_token_ids` (the turn's end, then the tokenizer's end of text where it differs), `notes`
    (what a user should know about the template).
    """

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerBase",
        *,
        tool_format: str = "auto",
        thinking: str = "disabled",
        mode: str = "retool",
        system_prompt: str | None = None,
        code_budget: int = 4,
        chat_template: str | None = None,
    ) -> None:
        """Derives everything from the chat template and checks it.

        `system_prompt` `None` is the mode's default, which describes the tool where the template does not; `""` is no
        system message. `code_budget` is the number of calls that the default prompt names. `chat_template` replaces
        the tokenizer's. Raises `UserError` for a template or tokenizer that is not supported, with the reason.
        """
        self.mode = _choice(PromptMode, mode, "mode")
        self.thinking = _choice(Thinking, thinking, "model.thinking")
        if code_budget < 0:
            raise UserError(f"rollout.max_code_calls: {code_budget} is negative.")
        if self.thinking is Thinking.STRIP and self.mode is PromptMode.RETOOL:
            raise UserError(
                "model.thinking=strip takes the reasoning of earlier turns out of the context, and a trajectory must "
                "be one token sequence. Use model.thinking=keep or model.thinking=disabled."
            )
        self._encoder = TextEncoder(tokenizer)
        template = ChatTemplate(tokenizer, chat_template, enable_thinking=self.thinking is not Thinking.DISABLED)
        detected, described = _inspect(template)
        uses_tool = self.mode is PromptMode.RETOOL
        self.tool_format = _choose_format(tool_format, detected, readable=not (described and uses_tool))
        self._syntax = syntax_of(self.tool_format)
        native = uses_tool and described and detected is self.tool_format
        template = template.with_tools([tool_schema()] if native else None)
        if system_prompt is None:
            system_prompt = default_system_prompt(
                self.mode, code_budget=code_budget, syntax=None if native else self._syntax
            )
        self.system_prompt = system_prompt
        self._question, self._opened = self._derive_question(template)
        self._tool_turns: ToolTurns | None = None
        if uses_tool:
            self._tool_turns = ToolTurns.derive(
                template,
                self._encoder,
                opening=self._opening(_QUESTION),
                thinking=self.thinking,
                syntax=self._syntax,
                native=detected is self.tool_format,
            )
            self._end = self._tool_turns.end
        else:
            self._end = self._derive_end(template)
        self.notes = self._tool_turns.notes if self._tool_turns else ()
        eos = tokenizer.eos_token_id
        stops = (self._end.tokens[-1], *([eos] if isinstance(eos, int) else []))
        self.stop_token_ids: tuple[int, ...] = tuple(dict.fromkeys(stops))

    def initial_prompt(self, question: str) -> tuple[int, ...]:
        """The tokens of the first prompt. Control tokens spelled out in the question are plain text."""
        return self._question.fill(question)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of a turn's sampled tokens: a stop token at the end removed, other control tokens as text."""
        if tokens and tokens[-1] in self.stop_token_ids:
            tokens = tokens[:-1]
        return self._encoder.decode(tokens)

    def full_text(self, tokens: Sequence[int]) -> str:
        """The text of any tokens, with all control tokens."""
        return self._encoder.decode(tokens)

    def parse(self, text: str) -> ParsedTurn:
        """What a finished turn is. Reasoning is removed first; in `PromptMode.TEXT_ONLY` every turn is an answer."""
        if self.mode is PromptMode.TEXT_ONLY:
            return ParsedTurn.answer()
        return self._syntax.parse(self.scored_text(text))

    def scored_text(self, text: str) -> str:
        """The text of a turn without its reasoning."""
        return remove_reasoning(text, opened=self._opened)

    def continuation(self, completion_tokens: Sequence[int], observation: str) -> tuple[int, ...]:
        """What follows a turn: the end that it lacks, the tool's output and the next generation prompt.

        `completion_tokens` are the sampled ones, with or without a stop token. Control tokens spelled out in
        `observation` are plain text. Raises `ValueError` in `PromptMode.TEXT_ONLY`, which has no observations.
        """
        if self._tool_turns is None:
            raise ValueError("A text-only dialogue has no tool output.")
        missing = self._end.missing(completion_tokens, self.stop_token_ids)
        return missing + self._tool_turns.observation.fill(observation)

    def truncate(self, observation: str, max_tokens: int) -> str:
        """The observation, or its head and tail around a marker if it has more than `max_tokens` tokens."""
        return self._encoder.truncate_middle(observation, max_tokens)

    def render_call(self, code: str) -> str:
        """A tool call as the policy should write it; `parse` reads it back."""
        return self._syntax.render(code)

    def encode_turn(self, text: str) -> tuple[int, ...]:
        """The tokens of a turn as if sampled: control tokens count, and the turn's end is appended.

        For supervised data and previews. A rollout never encodes what was sampled.
        """
        return self._encoder.with_control_tokens(text) + self._end.tokens

    def _opening(self, question: str) -> list[Message]:
        system: list[Message] = [{"role": "system", "content": self.system_prompt}] if self.system_prompt else []
        return [*system, {"role": "user", "content": question}]

    def _derive_question(self, template: ChatTemplate) -> tuple[Slot, bool]:
        """The slot of the question, and whether the generation prompt opens a reasoning block."""

        def rendered(question: str) -> str:
            return template.render(self._opening(question), generation_prompt=True)

        prompt = rendered(_QUESTION)
        opened = is_reasoning_open(prompt)
        if prompt.count(_QUESTION) != 1:
            raise UserError(
                "The chat template does not write the question exactly once. Give another with model.chat_template."
            )
        if opened and self.thinking is Thinking.DISABLED:
            raise UserError(
                "The chat template opens a reasoning block although model.thinking=disabled. Use model.thinking=keep, "
                "or give a template with model.chat_template that obeys enable_thinking."
            )
        before, after = prompt.split(_QUESTION)
        transform = find_transform(rendered, before, after)
        if transform is None:
            raise UserError(
                "The chat template changes the question in a way that cannot be followed.\n"
                + content_difference(rendered, before, after)
                + "\nGive another template with model.chat_template."
            )
        return self._encoder.slot(before, after, transform), opened

    def _derive_end(self, template: ChatTemplate) -> TurnEnd:
        messages = [*self._opening(_QUESTION), {"role": "assistant", "content": _TURN}]
        _, _, after_turn = template.render(messages, generation_prompt=False).partition(_TURN)
        return TurnEnd.derive(self._encoder, after_turn)


def _choice(choices: type[_Choice], name: str, key: str) -> _Choice:
    try:
        return choices(name)
    except ValueError:
        raise UserError(f"{key}: {name!r} is none of {', '.join(choices)}.") from None


def _inspect(template: ChatTemplate) -> tuple[ToolFormat | None, bool]:
    """The format in which a template describes or writes calls, if known, and whether it describes tools at all."""
    user: Message = {"role": "user", "content": _QUESTION}
    with_tools = template.with_tools([tool_schema()])
    described = False
    shown = ""
    try:
        shown = with_tools.render([user], generation_prompt=True)
        described = shown != template.render([user], generation_prompt=True)
        shown += with_tools.render([user, call_message(_TURN, "print(1)")], generation_prompt=False)
    except UserError:  # a template need not know tool calls; what it must know is checked where it is used
        pass
    return detect_format(shown), described


def _choose_format(name: str, detected: ToolFormat | None, *, readable: bool) -> ToolFormat:
    """`readable`: an undetected format does not matter, since the template describes no tool or none is used."""
    if name != "auto":
        try:
            return ToolFormat(name)
        except ValueError:
            raise UserError(f"model.tool_format: {name!r} is none of auto, {', '.join(ToolFormat)}.") from None
    if detected is not None:
        return detected
    if not readable:
        raise UserError(
            "model.tool_format=auto: the chat template describes tools in a format that is not known here. Choose one "
            f"of {', '.join(ToolFormat)}; the tool is then described in the system prompt."
        )
    return ToolFormat.FENCED_PYTHON
