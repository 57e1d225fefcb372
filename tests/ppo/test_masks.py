"""Which trajectories stay out of the loss."""

import pytest
from ppo_samples import RESULT, tool_turns, trajectory, turn

from retool.policy.types import SamplerStop
from retool.ppo.masks import MaskReason, has_void_turn, mask_reason
from retool.rollout.trajectory import CallOutcome, StopReason

CUT = turn((1,), (10,), sampler_stop=SamplerStop.LENGTH)


@pytest.mark.parametrize(
    ("turns", "fields", "void"),
    [
        # A call, then a boxed answer.
        (tool_turns(), {}, False),
        # A call, then a last turn without a box.
        (tool_turns(), {"valid_format": False}, True),
        # A malformed call that was answered with its mistake, then a boxed answer.
        ((turn((1,), (10,), (20,), call=CallOutcome.MALFORMED), turn((1, 10, 20), (11,))), {}, True),
        # A call past the code budget is code all the same.
        (
            (turn((1,), (10,), (20,), call=CallOutcome.OVER_BUDGET, code="1"), turn((1, 10, 20), (11,))),
            {},
            False,
        ),
        # A turn that the sampler cut is part of the one that continues it.
        ((CUT, turn((1, 10), (11,))), {}, False),
        # A turn cut at the end of the budget.
        ((CUT,), {"stop": StopReason.TOKEN_LIMIT}, True),
        # The last allowed turn asked for the tool.
        (
            (turn((1,), (10,), call=CallOutcome.EXECUTED, code="1", result=RESULT),),
            {"stop": StopReason.TURN_LIMIT},
            False,
        ),
        ((turn((1,), (10,), call=CallOutcome.MALFORMED),), {"stop": StopReason.PARSE_ERROR}, True),
    ],
)
def test_void_turns(turns, fields, void):
    assert has_void_turn(trajectory(1.0, turns=turns, **fields)) is void


def test_infrastructure_is_always_masked():
    failed = trajectory(None)
    assert mask_reason(failed, mask_truncated=False, mask_void_turns=False) is MaskReason.INFRASTRUCTURE


def test_options_are_off_unless_asked_for():
    truncated = trajectory(-1.0, turns=(CUT,), stop=StopReason.TOKEN_LIMIT)
    assert mask_reason(truncated, mask_truncated=False, mask_void_turns=False) is None
    assert mask_reason(truncated, mask_truncated=True, mask_void_turns=False) is MaskReason.TRUNCATED
    assert mask_reason(truncated, mask_truncated=False, mask_void_turns=True) is MaskReason.VOID_TURN
