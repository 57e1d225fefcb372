"""What the metrics of a run say is going wrong."""

from retool.runs.health import SymptomKind, symptoms


def row(step: int, **figures: float) -> dict[str, object]:
    usual = {"rollout/trajectories": 8.0, "rollout/tool_call_rate": 0.8, "rollout/degenerate_group_rate": 0.25}
    return {"step": step, **usual, **{name.replace("__", "/"): value for name, value in figures.items()}}


def test_a_healthy_run_has_no_symptom():
    assert symptoms([]) == []
    assert symptoms([row(step, ppo__mismatch_log_ratio_mean=1e-5) for step in range(10)]) == []


def test_the_tool_is_given_up():
    rates = [0.5, 0.7, 0.9, 0.6, 0.2, 0.1, 0.1, 0.0]
    (symptom,) = symptoms([row(step, rollout__tool_call_rate=rate) for step, rate in enumerate(rates)])
    # means of three: .70 .73 .57 .30 .13; the last is the first below a quarter of .73
    assert (symptom.kind, symptom.step) == (SymptomKind.TOOL_COLLAPSE, 6)
    assert "13% of trajectories run code, after 73%" in symptom.message


def test_a_policy_that_never_used_the_tool_does_not_collapse():
    assert symptoms([row(step, rollout__tool_call_rate=0.2 / (1 + step)) for step in range(10)]) == []


def test_groups_without_a_signal_and_why():
    def run(right: float):
        return [row(step, rollout__degenerate_group_rate=1.0, rollout__groups_all_right=right) for step in range(3)]

    (easy,), (hard,) = symptoms(run(0.8)), symptoms(run(0.0))
    assert easy.kind is hard.kind is SymptomKind.NO_SIGNAL and easy.step == 2
    assert "too easy" in easy.message and "too hard" in hard.message
    assert symptoms(run(0.8)[:2]) == []
    assert symptoms(run(1.0)) == []  # nothing is left to learn, which is no fault


def test_a_mismatch_counts_at_the_first_update_only():
    (symptom,) = symptoms([row(0, ppo__mismatch_log_ratio_mean=0.08), row(1)])
    assert (symptom.kind, symptom.step) == (SymptomKind.MISMATCH, 0)
    assert symptoms([row(0), row(1, ppo__mismatch_log_ratio_mean=0.08)]) == []


def test_rows_of_evaluations_alone_are_passed_over():
    assert symptoms([{"step": 0, "eval/average@1": 0.5}] * 5) == []
