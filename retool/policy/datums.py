"""`to_sdk`: training sequences as the SDK takes them, without its validation of every number."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from retool.policy.types import TokenDatum

if TYPE_CHECKING:
    from pytrio import Datum  # type: ignore[import-untyped]


def to_sdk(data: Sequence[TokenDatum]) -> "list[Datum]":
    """Converts sequences. Raises `ValueError` for one whose fields differ in length.

    Models are constructed directly: the SDK's own constructors check element by element and import torch. What they
    would check is checked here for whole arrays.
    """
    from pytrio.types import Datum, EncodedTextChunk, ModelInput, TensorData  # type: ignore[import-untyped]

    def tensor(values: Sequence[float], dtype: str) -> TensorData:
        array = np.asarray(values, dtype=dtype)
        return TensorData.model_construct(data=array.tolist(), dtype=dtype, shape=[len(array)])

    datums = []
    for index, datum in enumerate(data):
        inputs = {"target_tokens": tensor(datum.target_tokens, "int64")}
        for name in ("weights", "logprobs", "advantages"):
            values = getattr(datum, name)
            if values is not None:
                inputs[name] = tensor(values, "float32")
        lengths = {name: len(values.data) for name, values in inputs.items()}
        if any(length != len(datum.tokens) for length in lengths.values()):
            raise ValueError(f"Datum {index} has {len(datum.tokens)} tokens but {lengths}.")
        chunk = EncodedTextChunk.model_construct(
            tokens=np.asarray(datum.tokens, dtype="int64").tolist(), type="encoded_text"
        )
        datums.append(
            Datum.model_construct(model_input=ModelInput.model_construct(chunks=[chunk]), loss_fn_inputs=inputs)
        )
    return datums
