"""What is appended to a context after a turn, so that the next prompt is never a re-encoding of the history.

    next prompt = prompt + sampled tokens + missing end of the turn + observation + generation prompt

The appended text is found by rendering a dialogue with placeholders in place of the turn and of the tool's output, and
taking what follows the first. What a template puts between a turn's last token and the next header (a newline, in most
of them) is thereby never lost. `ToolTurns.derive` also renders dialogues of several turns and refuses a template
that writes earlier turns in another way than they were sampled.

Contents: `TurnEnd`, `ToolTurns`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from retool.errors import UserError
from retool.protocol.encoding import Slot, TextEncoder
from retool.protocol.reasoning import CLOSE, OPEN, is_reasoning_open, without_closed_reasoning
from retool.protocol.template import (
    ChatTemplate,
    Message,
    call_message,
    content_difference,
    difference,
    find_transform,
)
from retool.protocol.types import CallSyntax, Thinking, TurnKind

_TURN = "PLACEHOLDER-TURN"
_OUTPUT = "PLACEHOLDER-OUTPUT"
_CODE = "if True:\n    print('</parameter> </tool_call>')"
_ROUNDS = 3

EMPTY_REASONING_NOTE = (
    "The template leaves the empty reasoning block out of earlier turns; the context keeps it, as it was prompted."
)


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """The tokens that end a turn; the last one is the token that the policy samples to stop."""

    tokens: tuple[int, ...]
    text: str

    @classmethod
    def derive(cls, encoder: TextEncoder, after_turn: str) -> "TurnEnd":
        """Takes `after_turn`, which a template writes after a turn, up to its first control token."""
        stop = encoder.first_control_token(after_turn)
        if stop is None:
            raise UserError(
                f"The chat template ends a turn with {after_turn[:40]!r}, which holds no special token, so that the "
                "policy could not stop. Give a template with model.chat_template that ends turns with one."
            )
        text = after_turn[: stop[2]]
        return cls(tokens=encoder.with_control_tokens(text), text=text)

    def missing(self, completion: Sequence[int], stop_token_ids: Sequence[int]) -> tuple[int, ...]:
        """The part of the turn's end that sampled tokens lack: none of it if they end with a stop token."""
        if completion and completion[-1] == self.tokens[-1]:
            return ()
        if completion and completion[-1] in stop_token_ids:
            return self.tokens[-1:]
        for length in range(min(len(self.tokens) - 1, len(completion)), 0, -1):
            if tuple(completion[-length:]) == self.tokens[:length]:
                return self.tokens[length:]
        return self.tokens


@dataclass(frozen=True, slots=True)
class ToolTurns:
    """How turns end and observations follow under a template. `notes`: what a user should know about it."""

    end: TurnEnd
    observation: Slot
    notes: tuple[str, ...]

    @classmethod
    def derive(
        cls,
        template: ChatTemplate,
        encoder: TextEncoder,
        *,
        opening: Sequence[Message],
        thinking: Thinking,
        syntax: CallSyntax,
        native: bool,
    ) -> "ToolTurns":
        """Finds the pieces and checks the template. `opening`: the messages up to the first turn.

        `native` says that the template writes calls in `syntax` itself, which is then checked.
        Raises `UserError`, with the difference, for a template that rewrites history.
        """
        before, after = _around_output(template, opening)
        end = TurnEnd.derive(encoder, before)

        def rendered(output: str) -> str:
            return _after_turn(template, opening, output)

        transform = find_transform(rendered, before, after)
        if transform is None:
            raise UserError(
                "The chat template changes tool output in a way that cannot be followed.\n"
                + content_difference(rendered, before, after)
                + "\nGive another template with model.chat_template."
            )
        observation = encoder.slot(before[len(end.text) :], after, transform)
        _check_tokens(encoder, before, after, end, observation)
        notes = _check_history(template, opening, before, after, thinking, syntax)
        if native:
            _check_call(template, opening, before + _OUTPUT + after, syntax)
        return cls(end, observation, notes)


def _around_output(template: ChatTemplate, opening: Sequence[Message]) -> tuple[str, str]:
    """What the template writes between a turn and the tool's output, and after that, the generation prompt included."""
    after_turn = _after_turn(template, opening, _OUTPUT)
    if after_turn.count(_OUTPUT) != 1:
        raise UserError(
            "The chat template does not write the output of a tool (role 'tool') exactly once after the turn. "
            "Give one with model.chat_template that does."
        )
    before, after = after_turn.split(_OUTPUT)
    return before, after


def _after_turn(template: ChatTemplate, opening: Sequence[Message], output: str) -> str:
    messages = [*opening, {"role": "assistant", "content": _TURN}, {"role": "tool", "content": output}]
    text = template.render(messages, generation_prompt=True)
    if text.count(_TURN) != 1:
        raise UserError(
            "The chat template does not write the assistant's text exactly once, so that a turn cannot be continued. "
            "Give another template with model.chat_template."
        )
    return text.split(_TURN)[1]


def _check_tokens(encoder: TextEncoder, before: str, after: str, end: TurnEnd, observation: Slot) -> None:
    """The pieces, encoded one by one, must give the tokens of the whole."""
    for output in ("1", "a\n\n  b"):
        whole = encoder.with_control_tokens(before + observation.transform(output) + after)
        if end.tokens + observation.fill(output) != whole:
            raise UserError(
                "The tokenizer encodes a tool's output differently on its own than inside of the dialogue.\n"
                + difference(
                    encoder.decode(end.tokens + observation.fill(output)),
                    encoder.decode(whole),
                )
                + "\nTokenizers that mark the start of a text are not supported; use another model."
            )


def _check_history(
    template: ChatTemplate,
    opening: Sequence[Message],
    before: str,
    after: str,
    thinking: Thinking,
    syntax: CallSyntax,
) -> tuple[str, ...]:
    """Compares the context of a dialogue of several turns with the template's own rendering of it."""
    prompt = template.render(opening, generation_prompt=True)
    kept, dropped = prompt, without_closed_reasoning(prompt)
    messages = list(opening)
    for index in range(_ROUNDS):
        turn = _turn_content(index, thinking, prompt, syntax)
        sampled = turn[_written_part(prompt) :] if thinking is not Thinking.DISABLED else turn
        output = f"output {index}"
        messages += [{"role": "assistant", "content": turn}, {"role": "tool", "content": output}]
        kept += sampled + before + output + after
        last = index == _ROUNDS - 1
        dropped += sampled + before + output + (after if last else without_closed_reasoning(after))
        actual = template.render(messages, generation_prompt=True)
    if actual == kept:
        return ()
    if thinking is Thinking.DISABLED and actual == dropped:
        return (EMPTY_REASONING_NOTE,)
    raise UserError(
        f"The chat template rewrites earlier turns (model.thinking={thinking.value}), so that the context would not be "
        f"what was sampled.\n{difference(kept, actual)}\n"
        "Try another model.thinking, or give a template with model.chat_template that only appends."
    )


def _turn_content(index: int, thinking: Thinking, prompt: str, syntax: CallSyntax) -> str:
    text = f"Text  of turn {index}.\n\n  Indented.\n\n{syntax.render(f'print({index})')}"
    if thinking is Thinking.DISABLED:
        return text
    gap = prompt[prompt.rindex(OPEN) + len(OPEN) :] if is_reasoning_open(prompt) else "\n"
    return f"{OPEN}{gap}Reasoning of turn {index}.\n{CLOSE}\n\n{text}"


def _written_part(prompt: str) -> int:
    """How many characters of a turn that reasons stand in the generation prompt already."""
    return len(prompt) - prompt.rindex(OPEN) if is_reasoning_open(prompt) else 0


def _check_call(template: ChatTemplate, opening: Sequence[Message], after_turn: str, syntax: CallSyntax) -> None:
    """The parser must read the calls that the template writes."""
    messages = [*opening, call_message(_TURN, _CODE), {"role": "tool", "content": _OUTPUT}]
    text = template.render(messages, generation_prompt=True)
    _, _, turn = text.partition(_TURN)
    if not turn.endswith(after_turn):
        raise UserError(
            "The chat template continues a turn with a tool call in another way than one without.\n"
            f"{difference(after_turn, turn[-len(after_turn) :])}\nGive another template with model.chat_template."
        )
    parsed = syntax.parse(turn.removesuffix(after_turn))
    if parsed.kind is not TurnKind.CALL or parsed.code != _CODE:
        raise UserError(
            f"model.tool_format={syntax.tool_format.value} does not read the calls that the chat template writes:\n"
            f"{turn.removesuffix(after_turn)}\nChoose another model.tool_format."
        )
