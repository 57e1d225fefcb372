"""`load_tokenizer`: the tokenizer of a model, from a directory where there is one."""

from pathlib import Path
from typing import TYPE_CHECKING

from retool.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def load_tokenizer(model_id: str) -> "PreTrainedTokenizerBase":
    """Loads from a local directory without network, else from the local caches, else from the hub.

    Raises `UserError` naming the model when none of them has it.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerBase

    try:
        if Path(model_id).is_dir():
            tokenizer = AutoTokenizer.from_pretrained(model_id, local_files_only=True)
        else:
            from pytrio.model.tokenizer import get_tokenizer  # type: ignore[import-untyped]

            tokenizer = get_tokenizer(model_id)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"The tokenizer of '{model_id}' cannot be loaded: {error}") from error
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise UserError(f"The tokenizer of '{model_id}' is a {type(tokenizer).__name__}, which retool cannot use.")
    return tokenizer
