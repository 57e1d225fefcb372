import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf
from run_doubles import failed, group, problem, trajectory

from retool.config import schema
from retool.errors import InfrastructureError, UserError
from retool.rollout.trajectory import TrajectoryGroup
from retool.runs.cost import Tokens, describe, evaluation_plan, rollout_tokens, training_plan
from retool.runs.infrastructure import check_infrastructure
from retool.runs.order import ProblemOrder

PRICE = schema.Price(prefill=1.0, sample=2.0, train=4.0, currency="CNY", source="a page, 2026-01")


@given(count=st.integers(1, 40), batch=st.integers(1, 8), seed=st.integers(0, 3))
def test_an_epoch_holds_each_problem_at_most_once(count, batch, seed):
    if count < batch:
        return
    order = ProblemOrder([problem(str(n)) for n in range(count)], batch=batch, seed=seed)
    batches = [[p.id for p in order.take(step * batch, batch)[0]] for step in range(count // batch)]
    flat = [name for ids in batches for name in ids]
    assert len(flat) == len(set(flat)) == count // batch * batch
    assert all(len(set(ids)) == batch for ids in batches)


def test_the_order_follows_the_seed_and_the_epoch_alone():
    problems = [problem(str(n)) for n in range(8)]
    order = ProblemOrder(problems, batch=4, seed=1)
    assert order.take(4, 4) == ProblemOrder(problems[::-1], batch=4, seed=1).take(4, 4)
    assert order.take(0, 4) != ProblemOrder(problems, batch=4, seed=2).take(0, 4)
    assert {p.id for p in order.take(8, 8)[0]} == {p.id for p in problems}
    assert order.take(0, 8)[0] != order.take(8, 8)[0]
    assert order.epoch(12) == 1.5


def test_too_few_problems_are_the_users_mistake():
    with pytest.raises(UserError, match="questions_per_batch=4, but data has 3 training problems"):
        ProblemOrder([problem(str(n)) for n in range(3)], batch=4, seed=1)


def test_tokens_of_requests():
    one = problem("p")
    # first request: prompt of 3, shared by the group, 2 sampled each; second request of one: prompt of 7, 1 sampled
    groups = [TrajectoryGroup(one, (trajectory(one, 0), trajectory(one, 1, calls_tool=True), failed(one, 2)))]
    assert rollout_tokens(groups) == Tokens(prefill=3 + 7, sampled=2 + 2 + 1)


def test_cost_needs_a_price():
    tokens = Tokens(1_000_000, 500_000, 250_000)
    assert tokens.cost(None) is None and "cost/total" not in tokens.metrics(None)
    assert tokens.metrics(PRICE)["cost/total"] == 1.0 + 1.0 + 1.0
    assert "Cost unknown: model.price is not set." in describe([("training", tokens)], None)
    assert "Cost 3.00 CNY (prices: a page, 2026-01)." in describe([("training", tokens)], PRICE)


def test_plans_count_full_budgets():
    cfg = OmegaConf.create(
        {
            "max_steps": 10,
            "ppo": {"questions_per_batch": 2, "group_size": 4, "kl_coef": 0.0, "dynamic_sampling": {"enabled": False}},
            "rollout": {"max_trajectory_tokens": 100, "max_assistant_turns": 3},
            "eval": {"samples": 2, "every": 4},
        }
    )
    # 10 steps of 8 trajectories; in 3 turns a budget of 100 is prefilled up to 200 times
    assert dict(training_plan(cfg, problems=5)) == {
        "training": Tokens(80 * 200, 80 * 100, 80 * 100),
        "evaluation": Tokens(40 * 200, 40 * 100),  # before steps 0, 4, 8 and after: 4 times 5 problems, 2 samples each
    }
    assert dict(evaluation_plan(cfg, problems=5)) == {"evaluation": Tokens(10 * 200, 10 * 100)}


def test_failures_of_the_machine_stop_a_run_past_the_rate():
    one = problem("p")
    groups = [TrajectoryGroup(one, (failed(one), *(trajectory(one, n) for n in range(1, 5))))]
    check_infrastructure(groups, 0.2, "step 3")
    with pytest.raises(InfrastructureError, match=r"1 of 5 trajectories of step 3 .* The first: the service is down"):
        check_infrastructure(groups, 0.19, "step 3")
    check_infrastructure([], 0.0, "step 3")
    check_infrastructure([group(one, True)], 0.0, "step 3")
