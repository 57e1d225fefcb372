"""The order of a training run's acts, with stand-ins for everything slow."""

import asyncio
import json
import os
import signal
from dataclasses import dataclass, field

import pytest
from omegaconf import OmegaConf
from run_doubles import failed, group, problem

from retool.config import schema
from retool.errors import InfrastructureError, UserError
from retool.ppo.update import UpdateResult
from retool.rollout.trajectory import TrajectoryGroup
from retool.runs.checkpoint import read_resume_state
from retool.runs.evaluation import EvaluationResult, evaluation_metrics
from retool.runs.loop import LoopParts, LoopSettings, TrainingLoop
from retool.runs.order import ProblemOrder
from retool.runs.preemption import Preempted, Preemption
from retool.runs.progress import Progress
from retool.runs.run_dir import RunDirectory
from retool.runs.saving import StateKeeper
from retool.runs.session import RunSession
from retool.runs.tools import Tools
from retool.tracking.jsonl import JsonlTracker

PROBLEMS = [problem(name) for name in "abcdef"]


@dataclass
class World:
    """Everything the loop talks to; `acts` is what happened, in order."""

    acts: list[str] = field(default_factory=list)
    trained: list[str] = field(default_factory=list)
    references: list[object] = field(default_factory=list)
    broken_step: int | None = None
    signal_in_step: int | None = None
    signal_in_evaluation: bool = False
    group_size: int = 2
    questions_per_batch: int = 2
    sampling_rounds: int = 1
    kl_coef: float = 0.0
    uniform: frozenset[str] = frozenset()

    # the client
    async def sampler(self) -> str:
        self.acts.append("sampler")
        return "sampler"

    async def save_state(self, name: str) -> str:
        self.acts.append(f"state {name}")
        return f"trio://run/weights/{name}"

    async def save_weights(self, name: str) -> str:
        self.acts.append(f"weights {name}")
        return f"trio://run/sampler_weights/{name}"

    # the rollout
    async def run(self, problems, *, group_size, seed, step, on_trajectory, **parts) -> list[TrajectoryGroup]:
        self.acts.append(f"rollout {step} {''.join(p.id for p in problems)} seed {seed}")
        if step == self.signal_in_step:
            os.kill(os.getpid(), signal.SIGUSR2)
        if step == self.broken_step:
            return [TrajectoryGroup(p, tuple(failed(p, n) for n in range(group_size))) for p in problems]
        return [group(p, True, p.id in self.uniform) for p in problems]

    # ppo
    async def update(self, client, groups, *, step, reference=None) -> UpdateResult:
        self.acts.append(f"update {step}")
        self.trained.append("".join(g.problem.id for g in groups))
        self.references.append(reference)
        return UpdateResult({"train/tokens": 10.0}, tuple(groups))

    # the sandbox
    def metrics(self) -> dict[str, float]:
        return {"sandbox/calls": 0.0}


class EvaluatorDouble:
    sets = ("a set",)

    def __init__(self, world: World) -> None:
        self.world = world

    async def run(self, sampler, *, label, progress) -> EvaluationResult:
        self.world.acts.append(f"evaluate {label}")
        if self.world.signal_in_evaluation:
            os.kill(os.getpid(), signal.SIGUSR2)
            await asyncio.Event().wait()
        groups = (group(PROBLEMS[0], True),)
        return EvaluationResult(evaluation_metrics({"a set": groups}, [1]), groups)


@pytest.fixture(autouse=True)
def as_in_submitit():
    saved = signal.signal(signal.SIGUSR2, lambda number, frame: None)
    yield
    signal.signal(signal.SIGUSR2, saved)


def train(tmp_path, world: World, *, reference=None, **changes) -> TrainingLoop:
    """Runs the loop on `tmp_path`, continuing what is there."""
    directory = RunDirectory(tmp_path)
    cfg = OmegaConf.create({"seed": 7, "ppo": {}})
    settings = {"max_steps": 3, "eval_every": None, "max_infrastructure_rate": 0.2, "max_cost": None, "price": None}
    settings |= changes
    checkpoint = schema.Checkpoint(every=2, resume_every=1, keep=2)
    with Preemption() as preemption, Progress(steps=3, visible=False) as progress:
        session = RunSession(cfg, directory, preemption, resume=read_resume_state(directory.resume))
        session._tracker = JsonlTracker(directory.metrics)
        parts = LoopParts(
            client=world,
            protocol=None,
            tools=Tools(world, None),
            rollout=world,
            ppo=world,
            order=ProblemOrder(PROBLEMS, batch=2, seed=7),
            evaluator=EvaluatorDouble(world),
            keeper=StateKeeper(session, world, checkpoint),
            reference=reference,
        )
        loop = TrainingLoop(session, parts, LoopSettings(seed=7, **settings), progress)
        try:
            asyncio.run(loop.run())
        finally:
            preemption._pending = None
    return loop


def rows(tmp_path) -> list[dict]:
    return [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]


def batches(world: World) -> list[str]:
    return [act.split()[2] for act in world.acts if act.startswith("rollout")]


def test_the_acts_of_a_run(tmp_path):
    world = World()
    train(tmp_path, world, eval_every=2)
    first, second, third = batches(world)
    assert world.acts == [
        "sampler",
        "evaluate step-0000",
        f"rollout 0 {first} seed 7",
        "update 0",
        "state resume-0",
        "sampler",
        f"rollout 1 {second} seed 7",
        "update 1",
        "state step-0002",
        "weights step-0002",
        "sampler",
        "evaluate step-0002",
        f"rollout 2 {third} seed 7",
        "update 2",
        "state step-0003",
        "weights step-0003",
        "sampler",
        "evaluate step-0003",
    ]
    assert sorted(first + second + third) == list("abcdef")
    assert [row["step"] for row in rows(tmp_path)] == [0, 1, 2, 3]
    assert ["eval/accuracy" in row for row in rows(tmp_path)] == [True, False, True, True]
    assert "reward/mean" not in rows(tmp_path)[3]
    assert rows(tmp_path)[0]["cost/trained_tokens"] == 10.0
    assert sorted(file.name for file in (tmp_path / "trajectories").iterdir()) == [
        f"step-000{step}.jsonl.gz" for step in range(3)
    ]


def test_clock_and_machine_stand_under_time(tmp_path):
    train(tmp_path / "one", World())
    train(tmp_path / "two", World())
    untimed = [
        [{key: value for key, value in row.items() if not key.startswith("time/")} for row in rows(tmp_path / name)]
        for name in ("one", "two")
    ]
    assert untimed[0] == untimed[1]


def test_a_signal_ends_the_run_after_the_step_and_the_rest_follows_later(tmp_path):
    straight = World()
    train(tmp_path / "straight", straight)
    world = World(signal_in_step=1)
    with pytest.raises(Preempted):
        train(tmp_path / "left", world)
    assert world.acts[-2:] == ["state step-0002", "weights step-0002"]
    assert len(rows(tmp_path / "left")) == 2
    rest = World()
    loop = train(tmp_path / "left", rest)
    assert batches(world) + batches(rest) == batches(straight)
    assert rest.acts[:2] == ["sampler", f"rollout 2 {batches(straight)[2]} seed 7"]
    assert [row["step"] for row in rows(tmp_path / "left")] == [0, 1, 2, 3]
    assert loop.spent == train(tmp_path / "again", World()).spent


def test_a_signal_in_an_evaluation_gives_it_up(tmp_path):
    world = World(signal_in_evaluation=True)
    with pytest.raises(Preempted):
        train(tmp_path, world)
    assert world.acts == ["sampler", "evaluate step-0000"]
    assert read_resume_state(tmp_path / "resume.json") is None


def test_failures_of_the_machine_stop_the_run_before_the_update(tmp_path):
    world = World(broken_step=1)
    with pytest.raises(InfrastructureError, match=r"4 of 4 trajectories of step 1 failed .* the service is down"):
        train(tmp_path, world)
    assert "update 1" not in world.acts and read_resume_state(tmp_path / "resume.json").next_step == 1
    assert len(rows(tmp_path)) == 1


def test_the_cost_limit_stops_with_the_state_saved(tmp_path):
    price = schema.Price(prefill=0.0, sample=0.0, train=100_000.0, currency="CNY", source="x")  # 1 a step
    world = World()
    with pytest.raises(UserError, match=r"max_cost=2\.5 would be exceeded by step 2, with 2\.00 spent"):
        train(tmp_path, world, price=price, max_cost=2.5)
    assert read_resume_state(tmp_path / "resume.json").next_step == 2
    assert rows(tmp_path)[0]["cost/total"] == 1.0
    train(tmp_path, world, price=price, max_cost=5.0)
    assert [row["step"] for row in rows(tmp_path)] == [0, 1, 2, 3]


def test_no_steps_are_one_evaluation(tmp_path):
    world = World()
    train(tmp_path, world, max_steps=0)
    assert world.acts == ["sampler", "evaluate step-0000"]
    assert [row["step"] for row in rows(tmp_path)] == [0]


def test_groups_without_a_signal_are_replaced_within_the_rounds(tmp_path):
    usual = World()
    train(tmp_path / "usual", usual)
    order = "".join(batches(usual))
    world = World(sampling_rounds=2, uniform=frozenset(order[:3]))
    train(tmp_path / "dynamic", world, max_steps=1)
    assert batches(world) == [order[:2], order[2:4]]  # both of the first round carry none, one of the second does
    assert world.trained == [order[3]]
    (first, _) = rows(tmp_path / "dynamic")
    assert first["rollout/sampling_rounds"] == 2 and first["rollout/groups_replaced"] == 3
    assert first["rollout/trajectories"] == 8 and first["reward/correct"] == 7 / 8  # nothing is left out of the rates


def test_a_continued_run_takes_the_questions_of_a_straight_one_when_groups_are_replaced(tmp_path):
    uniform = frozenset("ace")
    straight = World(sampling_rounds=3, uniform=uniform)
    train(tmp_path / "straight", straight)
    world = World(sampling_rounds=3, uniform=uniform, signal_in_step=0)
    with pytest.raises(Preempted):
        train(tmp_path / "left", world)
    rest = World(sampling_rounds=3, uniform=uniform)
    train(tmp_path / "left", rest)
    assert batches(world) + batches(rest) == batches(straight)
    assert world.trained + rest.trained == straight.trained


def test_the_reference_is_asked_about_what_is_trained(tmp_path):
    class Reference:
        async def logprobs(self, tokens):
            return [-float(token) for token in tokens]

    world = World()
    loop = train(tmp_path, world, reference=Reference(), max_steps=1)
    (reference,) = world.references
    assert set(reference.values()) == {(-4.0, -5.0)}  # prompt 1 2 3, sampled 4 5
    assert loop.spent.sampled == 4 * 2 + 4 + 2 * 2  # rollouts, one token for each text that is scored, two evaluations
