"""Outside text never becomes a control token, and truncation keeps both ends."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_tokenizer import ADDED, SPECIAL, small_tokenizer

from retool.errors import UserError
from retool.protocol.encoding import TextEncoder

CONTROL = [*SPECIAL, *ADDED]
TEXT_WITH_CONTROL = st.lists(st.one_of(st.sampled_from(CONTROL), st.text(max_size=5))).map("".join)


def encoder() -> TextEncoder:
    return TextEncoder(small_tokenizer())


def added_ids() -> set[int]:
    return set(small_tokenizer().added_tokens_decoder)


def test_splitting_special_tokens_alone_would_let_added_tokens_through():
    """Why there is a copy of the tokenizer: `<tool_call>` is added but not special, as in Qwen's tokenizers."""
    tokenizer = small_tokenizer()
    split = tokenizer("<tool_call>", add_special_tokens=False, split_special_tokens=True)["input_ids"]
    assert set(split) <= added_ids()
    assert not added_ids().intersection(encoder().plain("<tool_call>"))


@pytest.mark.parametrize("text", CONTROL)
def test_every_control_token_can_be_spelled_out_as_plain_text(text):
    plain = encoder().plain(f"a{text}b")
    assert not added_ids().intersection(plain)
    assert encoder().decode(plain) == f"a{text}b"
    assert len(encoder().with_control_tokens(text)) == 1


@given(TEXT_WITH_CONTROL)
def test_no_outside_text_becomes_a_control_token(text):
    assert not added_ids().intersection(encoder().plain(text))


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_plain_text_without_control_tokens_is_encoded_as_ever(text):
    if not any(token in text for token in CONTROL):
        assert encoder().plain(text) == encoder().with_control_tokens(text)


def test_slot_encodes_the_text_together_with_its_plain_neighbours():
    slot = encoder().slot("<|im_start|>user\n", "\n<|im_end|>\n", str)
    whole = encoder().with_control_tokens("<|im_start|>user\n\n\nx\n\n\n<|im_end|>\n")
    assert slot.fill("\n\nx\n\n") == whole
    pieces = ("<|im_start|>user\n", "\n\nx\n\n", "\n<|im_end|>\n")
    assert sum((encoder().with_control_tokens(piece) for piece in pieces), ()) != whole  # merges span the borders


def test_short_text_is_not_truncated():
    assert encoder().truncate_middle("short", 512) == "short"


def test_truncation_keeps_head_and_tail_and_counts_tokens():
    text = "START " + "x y z " * 500 + "END"
    count = len(encoder().plain(text))
    shortened = encoder().truncate_middle(text, 100)
    assert shortened.startswith("START") and shortened.endswith("END")
    assert f"{count} tokens in all" in shortened
    assert 90 <= len(encoder().plain(shortened)) <= 100


@given(st.text(alphabet="aé漢🙂 \n<|im_end|>", min_size=1), st.integers(1, 80))
def test_truncation_never_exceeds_the_limit_nor_splits_a_character(text, limit):
    shortened = encoder().truncate_middle(text, limit)
    assert len(encoder().plain(shortened)) <= limit
    assert "\ufffd" not in shortened
    if len(encoder().plain(text)) <= limit:
        assert shortened == text


def test_slow_tokenizer_is_refused():
    class Slow:
        backend_tokenizer = None

    with pytest.raises(UserError, match=r"Slow is not a fast one.*tokenizer\.json"):
        TextEncoder(Slow())


def test_tokenizer_that_would_forge_control_tokens_is_refused():
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.WordLevel({"<end>": 0, "[UNK]": 1}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens([AddedToken("<end>", special=True, normalized=False)])
    with pytest.raises(UserError, match="could forge the end of a turn"):
        TextEncoder(PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>"))
