"""Text to tokens, with a line between what the template writes and what comes from outside.

The template's own text may hold control tokens (`<|im_end|>`, `<tool_call>`). Questions and tool output may not: they
are encoded by a copy of the tokenizer that knows no added tokens, so that a literal `<|im_end|>` in them becomes
ordinary tokens. (`split_special_tokens=True` is not enough: it leaves added tokens such as `<tool_call>`, which are
not flagged special, in force.)

Contents: `TextEncoder`, `Slot`.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from retool.errors import UserError

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase


class TextEncoder:
    """Encodes text with one tokenizer, either as a template writes it or as plain text."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        """Raises `UserError` for a tokenizer that is not a fast one, or that cannot keep control tokens out of text."""
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise UserError(
                f"The tokenizer {type(tokenizer).__name__} is not a fast one, so that its control tokens cannot be "
                "kept out of tool output. Use a model that ships a tokenizer.json."
            )
        self._tokenizer = tokenizer
        self._added = {token_id: str(token) for token_id, token in tokenizer.added_tokens_decoder.items()}
        self._plain = _without_added_tokens(backend)
        self._check_plain()

    def with_control_tokens(self, text: str) -> tuple[int, ...]:
        """Tokens of text that the template or the policy writes: control tokens count as such."""
        return tuple(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def plain(self, text: str) -> tuple[int, ...]:
        """Tokens of text from outside: never a control token."""
        return tuple(self._plain.encode(text, add_special_tokens=False).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens, control tokens included."""
        text = self._tokenizer.decode(list(tokens), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return str(text)

    def first_control_token(self, text: str) -> tuple[int, int, int] | None:
        """Id, start and end (character offsets) of the first control token in a template's text."""
        return next(iter(self._control_tokens(text)), None)

    def slot(self, before: str, after: str, transform: Callable[[str], str]) -> "Slot":
        """A slot for outside text between two texts of a template, see `Slot`."""
        leading = self._control_tokens(before)
        cut = leading[-1][2] if leading else 0
        trailing = self._control_tokens(after)
        resume = trailing[0][1] if trailing else len(after)
        return Slot(
            encoder=self,
            head=self.with_control_tokens(before[:cut]),
            prefix=before[cut:],
            suffix=after[:resume],
            tail=self.with_control_tokens(after[resume:]),
            transform=transform,
        )

    def truncate_middle(self, text: str, max_tokens: int) -> str:
        """`text` if its plain encoding has at most `max_tokens` tokens, else its head and tail around a marker.

        The marker names the number of tokens left out. Where not even the marker fits, the head alone is kept.
        """
        encoding = self._plain.encode(text, add_special_tokens=False)
        count = len(encoding.ids)
        if count <= max_tokens:
            return text
        marker = f"\n[... {count} tokens in all, the middle is left out ...]\n"
        room = max_tokens - len(self.plain(marker))
        if room < 2:
            marker, room = "", max_tokens
        while room > 0:
            head = room if not marker else (room + 1) // 2
            tail = room - head
            start = text[: encoding.offsets[head - 1][1]]
            end = text[encoding.offsets[count - tail][0] :] if tail else ""
            shortened = start + marker + end
            excess = len(self.plain(shortened)) - max_tokens  # text joined anew may need other tokens
            if excess <= 0:
                return shortened
            room -= excess
        return ""

    def _control_tokens(self, text: str) -> list[tuple[int, int, int]]:
        encoding = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        pairs = zip(encoding["input_ids"], encoding["offset_mapping"], strict=True)
        return [(token_id, start, end) for token_id, (start, end) in pairs if token_id in self._added]

    def _check_plain(self) -> None:
        special = {token_id for token_id, token in self._tokenizer.added_tokens_decoder.items() if token.special}
        for text in self._added.values():
            leaked = special.intersection(self.plain(text))
            if leaked:
                raise UserError(
                    f"The tokenizer turns the plain text {text!r} into the control token "
                    f"{self._added[min(leaked)]!r}, so that tool output could forge the end of a turn. "
                    "Use a model with another tokenizer."
                )


@dataclass(frozen=True, slots=True)
class Slot:
    """Where outside text stands in a template's output.

    `head` and `tail` are the tokens up to the last control token before the text and from the first one after it.
    `prefix` and `suffix` are the template's plain text in between; it is encoded together with the outside text, since
    tokens may span the border. `transform` is what the template does to the text.
    """

    encoder: TextEncoder
    head: tuple[int, ...]
    prefix: str
    suffix: str
    tail: tuple[int, ...]
    transform: Callable[[str], str]

    def fill(self, text: str) -> tuple[int, ...]:
        """The tokens with `text` in place."""
        return self.head + self.encoder.plain(self.prefix + self.transform(text) + self.suffix) + self.tail


def _without_added_tokens(backend: "Tokenizer") -> "Tokenizer":
    from tokenizers import Tokenizer

    state = json.loads(backend.to_str())
    state.update(added_tokens=[], post_processor=None, truncation=None, padding=None)
    return Tokenizer.from_str(json.dumps(state))
