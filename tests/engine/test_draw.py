"""Sampling distributions: frequencies against probabilities, truncation sets, seeds, stop strings."""

import numpy as np
import torch
from tokenizers import Tokenizer, models

from retool.engine.sampling import DrawSettings, UniformStream, draw
from retool.engine.sequences import open_sequences
from retool.engine.types import SampleRequest

LOGITS = torch.log(torch.tensor([[0.5, 0.25, 0.15, 0.1]]))
DRAWS = 4000


def frequencies(settings: DrawSettings) -> np.ndarray:
    uniforms = UniformStream(seed=3, sample_index=0)
    tokens, _ = draw(LOGITS.repeat(DRAWS, 1), [settings] * DRAWS, [uniforms.next() for _ in range(DRAWS)])
    return np.bincount(tokens, minlength=4) / DRAWS


def assert_close(observed: np.ndarray, expected: list[float]) -> None:
    """Within four standard errors of the multinomial."""
    probability = np.array(expected)
    assert np.all(np.abs(observed - probability) <= 4 * np.sqrt(probability * (1 - probability) / DRAWS) + 1e-12)


def test_plain_frequencies() -> None:
    assert_close(frequencies(DrawSettings(1.0, 1.0, -1)), [0.5, 0.25, 0.15, 0.1])


def test_temperature() -> None:
    power = np.array([0.5, 0.25, 0.15, 0.1]) ** 2
    assert_close(frequencies(DrawSettings(0.5, 1.0, -1)), list(power / power.sum()))


def test_top_k_keeps_the_k_most_probable() -> None:
    assert_close(frequencies(DrawSettings(1.0, 1.0, 2)), [2 / 3, 1 / 3, 0, 0])


def test_top_p_keeps_the_smallest_set_that_reaches_p() -> None:
    # 0.5 + 0.25 reach 0.7; a p of exactly 0.5 keeps the first alone.
    assert_close(frequencies(DrawSettings(1.0, 0.7, -1)), [2 / 3, 1 / 3, 0, 0])
    assert_close(frequencies(DrawSettings(1.0, 0.5, -1)), [1, 0, 0, 0])


def test_greedy() -> None:
    assert_close(frequencies(DrawSettings(0.0, 1.0, -1)), [1, 0, 0, 0])


def test_logprobs_are_those_of_the_untruncated_policy() -> None:
    _, logprobs = draw(LOGITS, [DrawSettings(0.5, 0.5, 1)], [0.9])
    np.testing.assert_allclose(logprobs, [np.log(0.5)], rtol=1e-6)


def test_streams_differ_by_seed_and_sample_and_repeat() -> None:
    def first(seed: int, sample: int) -> list[float]:
        stream = UniformStream(seed, sample)
        return [stream.next() for _ in range(100)]

    assert first(1, 0) == first(1, 0)
    assert len({tuple(first(seed, sample)) for seed in (1, 2) for sample in (0, 1)}) == 4


def test_a_stop_string_may_span_tokens() -> None:
    from concurrent.futures import Future

    tokenizer = Tokenizer(models.BPE({"a": 0, "b": 1, "c": 2}, []))
    request = SampleRequest(prompt=[0], adapter=None, max_tokens=9, stop_strings=("b c",))
    [sequence] = open_sequences(request, Future(), seed=0, arrival=0.0, eos=frozenset())
    sequence.tokens = [0, 1]
    assert sequence.stop_reason(tokenizer) is None
    sequence.tokens = [0, 1, 2]
    assert sequence.stop_reason(tokenizer) == "stop"


def test_stop_reasons() -> None:
    from concurrent.futures import Future

    tokenizer = Tokenizer(models.BPE({"a": 0, "b": 1, "c": 2}, []))
    request = SampleRequest(prompt=[0], adapter=None, max_tokens=2, stop_token_ids=(2,))
    [sequence] = open_sequences(request, Future(), seed=0, arrival=0.0, eos=frozenset({1}))
    for tokens, reason in [([0], None), ([0, 0], "length"), ([2], "stop"), ([0, 1], "stop")]:
        sequence.tokens = tokens
        assert sequence.stop_reason(tokenizer) == reason
