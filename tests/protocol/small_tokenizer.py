"""A byte-level BPE tokenizer with the special tokens of the Qwen family, trained in a moment on a few lines.

Its merges span newlines and indentation, as those of real tokenizers do, so that encoding text piecewise instead of as
a whole gives other tokens.
"""

from functools import lru_cache

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|start_header_id|>")
SPECIAL += ("<|end_header_id|>", "<|eot_id|>")
ADDED = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")

_QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CORPUS = (
    "user\nassistant\nsystem\n\n\n\n",
    "\n\n\n    for i in range(10):\n        print(i)\n\n\n",
    "<parameter=code>\nprint('hello world')\n</parameter>\n</function>\n",
    'function parameter code_interpreter {"name": "code_interpreter", "arguments": {"code": "print(1)"}}\n',
)


@lru_cache
def small_tokenizer(*, with_tool_response: bool = True) -> PreTrainedTokenizerFast:
    """`with_tool_response=False` leaves out the added tokens that Qwen2.5 and SmolLM2 lack."""
    backend = Tokenizer(models.BPE())
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_QWEN_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    backend.train_from_iterator(_CORPUS * 20, trainer)
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    added = ADDED if with_tool_response else ADDED[:2]
    backend.add_tokens([AddedToken(token, special=False, normalized=False) for token in added])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>", bos_token="<|begin_of_text|>")
