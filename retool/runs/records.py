"""The records of an evaluation: one JSON object a problem, with every turn of every sample.

Contents: `RecordFile`. A record has `id`, `question`, `answer`, `data_source`, `set` and `samples`, each as in a
trajectory file (`retool.rollout.serialise`) without its problem.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path

from retool.data.problem import Problem
from retool.rollout.serialise import trajectory_from_json, trajectory_to_json
from retool.rollout.trajectory import Trajectory, TrajectoryGroup
from retool.runs.datasets import EvalSet
from retool.runs.files import JsonObject, replace_file
from retool.tracking.jsonl import read_jsonl


class RecordFile:
    """Collects trajectories in order of arrival and appends a line once a problem has all its samples.

    `groups` are the complete problems so far, those that an earlier process wrote included. A problem of which a sample
    failed for reasons of the machine is written, but counts as open for the next process.
    """

    def __init__(self, path: Path, eval_set: EvalSet, samples: int) -> None:
        """Reads what is there; a line that a crash tore is dropped."""
        self._path = path
        self._set = eval_set
        self._samples = samples
        self._arrived: dict[str, list[Trajectory]] = {}
        self.groups: dict[str, TrajectoryGroup] = {}
        wanted = {problem.id: problem for problem in eval_set.problems}
        for record in read_jsonl(path) if path.exists() else []:
            problem = wanted.get(str(record["id"]))
            if problem is not None:
                group = _group_of(problem, record)
                if len(group.trajectories) == samples and len(group.scored) == samples:
                    self.groups[problem.id] = group
        self.sort()

    @property
    def open(self) -> list[Problem]:
        """The problems without a complete record, in the order of the set."""
        return [problem for problem in self._set.problems if problem.id not in self.groups]

    def add(self, trajectory: Trajectory) -> None:
        """Takes one finished trajectory; usable as a rollout's `on_trajectory`."""
        arrived = self._arrived.setdefault(trajectory.problem.id, [])
        arrived.append(trajectory)
        if len(arrived) == self._samples:
            group = TrajectoryGroup(trajectory.problem, tuple(sorted(arrived, key=lambda t: t.sample_index)))
            self.groups[trajectory.problem.id] = group
            with self._path.open("ab") as file:
                file.write(self._line(group))
                file.flush()
                os.fsync(file.fileno())

    def sort(self) -> None:
        """Brings the lines into the order of the set, one a problem."""
        if self._path.exists():
            replace_file(self._path, b"".join(self._line(group) for group in self.ordered()))

    def ordered(self) -> list[TrajectoryGroup]:
        """The complete problems in the order of the set."""
        return [self.groups[problem.id] for problem in self._set.problems if problem.id in self.groups]

    def _line(self, group: TrajectoryGroup) -> bytes:
        problem = group.problem
        record = {
            "id": problem.id,
            "question": problem.question,
            "answer": problem.answer,
            "data_source": problem.data_source,
            "set": self._set.name,
            "samples": [_sample(trajectory) for trajectory in group.trajectories],
        }
        return json.dumps(record, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def _sample(trajectory: Trajectory) -> JsonObject:
    row = trajectory_to_json(trajectory, step=0)
    return {key: value for key, value in row.items() if key not in ("problem", "step")}


def _group_of(problem: Problem, record: JsonObject) -> TrajectoryGroup:
    samples = record["samples"]
    assert isinstance(samples, Sequence)
    fields = {key: record[key] for key in ("id", "question", "answer", "data_source")}
    rows = ({**sample, "problem": fields, "step": 0} for sample in samples)
    return TrajectoryGroup(problem, tuple(trajectory_from_json(row) for row in rows))
