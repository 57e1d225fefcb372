"""Conversions and translations of the policy client, without a service."""

import numpy as np
import pytest

from retool.errors import InfrastructureError, UserError
from retool.policy.datums import to_sdk
from retool.policy.sampler import ServiceSampler
from retool.policy.sdk import translate
from retool.policy.tokenizers import load_tokenizer
from retool.policy.types import SamplerStop, SamplingSettings, TokenDatum
from tests.engine.wire_model import END


def test_datums_hold_what_the_sdk_would_make_of_them():
    import pytrio

    datum = TokenDatum([1, 2], (2, 3), logprobs=np.array([0.1, 0.2]), advantages=[1, 0])
    (made,) = to_sdk([datum])
    reference = pytrio.Datum(
        model_input=pytrio.ModelInput.from_ints([1, 2]),
        loss_fn_inputs={
            "target_tokens": np.array([2, 3]),
            "logprobs": np.array([0.1, 0.2], np.float32),
            "advantages": np.array([1.0, 0.0], np.float32),
        },
    )
    assert made.model_dump() == reference.model_dump()
    assert [type(token) for token in made.model_input.to_ints()] == [int, int]


def test_datums_of_unequal_lengths_are_refused():
    with pytest.raises(ValueError, match="Datum 1 has 2 tokens"):
        to_sdk([TokenDatum([1, 2], [2, 3]), TokenDatum([1, 2], [2, 3], weights=[1.0])])


class _Client:
    def __init__(self, *sequences):
        self.sequences = sequences

    async def sample_async(self, _prompt, *, num_samples, sampling_params, return_text):
        from pytrio.types.sample.sample_response import SampleResponse
        from pytrio.types.sample.sample_sequence import SampleSequence

        return SampleResponse(
            sequences=[SampleSequence(tokens=t, logprobs=p, stop_reason=r) for t, p, r in self.sequences]
        )


async def _unguarded(_what, call):
    return await call


async def sample(*sequences, num_samples=1):
    sampler = ServiceSampler(_Client(*sequences), _unguarded)
    return await sampler.sample(
        [1], num_samples=num_samples, max_tokens=2, seed=0, stop_token_ids=[9], settings=SamplingSettings()
    )


@pytest.mark.parametrize(
    ("tokens", "reason", "stop"),
    [
        ([5, 9], "stop", SamplerStop.STOP),
        ([5, 6], "length", SamplerStop.LENGTH),
        ([9], "eos", SamplerStop.STOP),
        ([5, 6], "max_tokens", SamplerStop.LENGTH),
        ([5], "eos", SamplerStop.STOP),
    ],
)
async def test_stop_reasons(tokens, reason, stop):
    (completion,) = await sample((tokens, [0.0] * len(tokens), reason))
    assert (completion.tokens, completion.stop) == (tuple(tokens), stop)


async def test_replies_that_do_not_fit_are_the_services_fault():
    with pytest.raises(InfrastructureError, match="2 samples were asked for; the service returned 1"):
        await sample(([5], [0.0], "stop"), num_samples=2)
    with pytest.raises(InfrastructureError, match="1 tokens with 0 logprobs"):
        await sample(([5], [], "stop"))


def test_tokenizers(model):
    assert load_tokenizer(str(model)).decode([3, END]) == "t3 <end>"


def test_a_tokenizer_that_cannot_be_had_is_the_users_matter(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"tokenizer of '.*empty' cannot be loaded"):
        load_tokenizer(str(tmp_path / "empty"))


def test_failures_are_told_apart():
    from pytrio.errors.base import ValidationError
    from pytrio.errors.control import ControlAPIError
    from pytrio.errors.event import EventFailedError

    refusal = ControlAPIError("No such model", status_code=404, code="model_not_found")
    assert isinstance(translate(refusal, "Starting", named_by_user=True), UserError)
    assert isinstance(translate(refusal, "Sampling"), InfrastructureError)
    assert isinstance(translate(ControlAPIError("No", status_code=401, code="unauthorized"), "Sampling"), UserError)
    assert isinstance(translate(ValidationError("too long"), "forward"), UserError)
    failed = translate(EventFailedError("event_1", "out_of_memory", "Out of memory."), "forward")
    assert isinstance(failed, InfrastructureError)
    assert str(failed) == "forward failed: Out of memory [out_of_memory]."
