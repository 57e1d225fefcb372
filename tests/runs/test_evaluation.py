"""Figures of an evaluation, and its records."""

import json

import pytest
from run_doubles import failed, group, problem, trajectory

from retool.rollout.trajectory import TrajectoryGroup
from retool.runs.datasets import EvalSet
from retool.runs.evaluation import describe, evaluation_metrics
from retool.runs.records import RecordFile

A, B, C = problem("a"), problem("b"), problem("c")


def test_figures_with_counts_and_intervals():
    metrics = evaluation_metrics({"holdout": [group(A, True, True), group(B, True, False)]}, k=[1, 2])
    assert metrics["eval/accuracy"] == 0.75
    assert metrics["eval/accuracy_low"] <= 0.75 <= metrics["eval/accuracy_high"]
    assert (metrics["eval/count"], metrics["eval/samples"]) == (2, 4)
    assert (metrics["eval/pass@1"], metrics["eval/pass@2"]) == (0.75, 1.0)
    assert metrics["eval/majority@2"] == 0.75  # a: right; b: one vote each, shared
    assert metrics["eval/tool_call_rate"] == 0.0
    assert "eval/holdout/accuracy" not in metrics
    assert describe(metrics).startswith("0.750 right (95 % interval 0.")
    assert describe(metrics).endswith("; 2 problems, 4 samples)")


def test_several_sets_are_shown_apart_and_together():
    metrics = evaluation_metrics({"x": [group(A, True, True)], "y": [group(B, False, False)]}, k=[1])
    assert (metrics["eval/accuracy"], metrics["eval/x/accuracy"], metrics["eval/y/accuracy"]) == (0.5, 1.0, 0.0)


def test_failures_of_the_machine_are_counted_and_left_out():
    groups = [
        TrajectoryGroup(A, (trajectory(A, 0, calls_tool=True), failed(A, 1))),
        TrajectoryGroup(B, (failed(B, 0), failed(B, 1))),
    ]
    metrics = evaluation_metrics({"holdout": groups}, k=[1, 2])
    assert (metrics["eval/accuracy"], metrics["eval/count"], metrics["eval/samples"]) == (1.0, 1, 1)
    assert metrics["eval/infrastructure_failures"] == 3
    assert metrics["eval/tool_call_rate"] == 1.0
    assert "eval/pass@2" not in metrics
    nothing = evaluation_metrics({"holdout": groups[1:]}, k=[1])
    assert nothing == {"eval/infrastructure_failures": 2.0} and describe(nothing) == "nothing could be evaluated"


def feed(records: RecordFile, *trajectories) -> None:
    for item in trajectories:
        records.add(item)


def test_records_are_whole_problems_in_the_order_of_the_set(tmp_path):
    path = tmp_path / "records.jsonl"
    records = RecordFile(path, EvalSet("set", (A, B, C)), samples=2)
    feed(records, trajectory(C, 1), trajectory(A, 0), trajectory(C, 0, right=False), trajectory(A, 1, calls_tool=True))
    assert [json.loads(line)["id"] for line in path.read_text().splitlines()] == ["c", "a"]
    assert records.open == [B]
    records.sort()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["id"] for line in lines] == ["a", "c"]
    assert lines[0]["set"] == "set" and lines[0]["answer"] == "1"
    assert [len(sample["turns"]) for sample in lines[0]["samples"]] == [1, 2]
    assert [sample["verdict"]["correct"] for sample in lines[1]["samples"]] == [False, True]


def test_an_interrupted_evaluation_goes_on(tmp_path):
    path = tmp_path / "records.jsonl"
    whole = EvalSet("set", (A, B, C))
    first = RecordFile(path, whole, samples=2)
    feed(first, trajectory(B, 0, calls_tool=True), trajectory(B, 1), failed(A, 0), trajectory(A, 1))
    with path.open("a") as file:
        file.write('{"id": "c", "samp')  # torn by a crash
    second = RecordFile(path, whole, samples=2)
    assert second.open == [A, C]  # a has a failure, c no whole line
    assert second.ordered() == [TrajectoryGroup(B, (trajectory(B, 0, calls_tool=True), trajectory(B, 1)))]
    feed(second, trajectory(A, 0), trajectory(A, 1), trajectory(C, 0), trajectory(C, 1))
    second.sort()
    assert [json.loads(line)["id"] for line in path.read_text().splitlines()] == ["a", "b", "c"]


def test_records_of_another_number_of_samples_do_not_count(tmp_path):
    path = tmp_path / "records.jsonl"
    feed(RecordFile(path, EvalSet("set", (A,)), samples=1), trajectory(A, 0))
    assert RecordFile(path, EvalSet("set", (A,)), samples=2).open == [A]


@pytest.mark.parametrize("k", [[1], [1, 2]])
def test_a_torn_group_never_raises(k):
    evaluation_metrics({"holdout": [TrajectoryGroup(A, (trajectory(A, 0), failed(A, 1)))]}, k)
