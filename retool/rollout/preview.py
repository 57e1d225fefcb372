"""One dialogue as a run would send and train it, without sampling: what `dry_run` prints.

Contents: `SegmentKind`, `Segment`, `preview`.
"""

from dataclasses import dataclass
from enum import StrEnum

from retool.protocol.chat import ChatProtocol
from retool.protocol.types import PromptMode

_CODE = "print(6 * 7)"
_OUTPUT = "42"
_ANSWER = r"The answer is \boxed{42}."


class SegmentKind(StrEnum):
    """Who writes a segment, and whether it is trained on."""

    PROMPT = "prompt"
    """The first prompt; not in the loss."""
    SAMPLED = "sampled"
    """The policy's tokens; the only ones in the loss."""
    OBSERVATION = "observation"
    """The end of a turn that the policy did not write, the tool's output and the next generation prompt; not in the
    loss."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of the context: its text, control tokens included, and its tokens."""

    kind: SegmentKind
    text: str
    tokens: tuple[int, ...]


def preview(protocol: ChatProtocol, question: str) -> tuple[Segment, ...]:
    """The first prompt for `question`, then a placeholder call with its output (not in text-only) and an answer."""
    pieces = [(SegmentKind.PROMPT, protocol.initial_prompt(question))]
    if protocol.mode is PromptMode.RETOOL:
        call = protocol.encode_turn(protocol.render_call(_CODE))
        pieces += [
            (SegmentKind.SAMPLED, call),
            (SegmentKind.OBSERVATION, protocol.continuation(call, _OUTPUT)),
        ]
    pieces.append((SegmentKind.SAMPLED, protocol.encode_turn(_ANSWER)))
    return tuple(Segment(kind, protocol.full_text(tokens), tokens) for kind, tokens in pieces)
