"""Evaluating fixed weights on sets of problems, within a training run and on its own.

Contents: `Evaluator` (samples the sets), `build_evaluator`, `EvaluationResult`, `evaluation_metrics` (figures of
sampled groups), `describe`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from omegaconf import DictConfig

from retool.config import schema, typed
from retool.policy.types import Sampler
from retool.protocol.chat import ChatProtocol
from retool.report.statistics import average_at_k, majority_at_k, pass_at_k
from retool.reward.verdict import Verdict
from retool.rollout.groups import Rollout
from retool.rollout.serialise import trajectory_to_json
from retool.rollout.trajectory import Trajectory, TrajectoryGroup
from retool.runs.datasets import EvalSet
from retool.runs.files import write_jsonl_gz
from retool.runs.policy import open_protocol
from retool.runs.progress import Progress
from retool.runs.run_dir import RunDirectory
from retool.runs.tools import Tools, build_rollout

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """`metrics` under `eval/`; `sentence` says the accuracy with its count and interval."""

    metrics: dict[str, float]
    groups: tuple[TrajectoryGroup, ...]

    @property
    def sentence(self) -> str:
        return describe(self.metrics)


@dataclass(frozen=True, slots=True)
class Evaluator:
    """Samples every problem of its sets `settings.samples` times. The same seeds each time: two evaluations of a run
    differ by the weights alone.
    """

    sets: Sequence[EvalSet]
    settings: schema.Evaluation
    seed: int
    rollout: Rollout
    protocol: ChatProtocol
    tools: Tools
    directory: RunDirectory

    async def run(self, sampler: Sampler, *, label: str, progress: Progress) -> EvaluationResult:
        """Evaluates all sets and writes their trajectories. `label` names the files, such as `step-0010`."""
        by_set: dict[str, list[TrajectoryGroup]] = {}
        for eval_set in self.sets:
            progress.begin(f"eval {eval_set.name}", len(eval_set.problems) * self.settings.samples)
            groups = await self.sample(sampler, eval_set, progress.trajectory)
            rows = [trajectory_to_json(t, step=0) for group in groups for t in group.trajectories]
            write_jsonl_gz(self.directory.eval_trajectories(f"{label}-{eval_set.name}"), rows)
            by_set[eval_set.name] = groups
        every = tuple(group for groups in by_set.values() for group in groups)
        return EvaluationResult(evaluation_metrics(by_set, self.settings.k), every)

    async def sample(
        self, sampler: Sampler, eval_set: EvalSet, on_trajectory: Callable[[Trajectory], None]
    ) -> list[TrajectoryGroup]:
        """The trajectories of one set, in its order."""
        return await self.rollout.run(
            eval_set.problems,
            group_size=self.settings.samples,
            seed=self.seed,
            step=0,
            sampler=sampler,
            protocol=self.protocol,
            sandbox=self.tools.sandbox,
            scorer=self.tools.scorer,
            on_trajectory=on_trajectory,
        )


def build_evaluator(
    cfg: DictConfig,
    sets: Sequence[EvalSet],
    tokenizer: "PreTrainedTokenizerBase",
    tools: Tools,
    directory: RunDirectory,
) -> Evaluator:
    """An evaluator as the `eval` group says: its sampling, its mode, and the budgets of `rollout`."""
    settings, model = typed(cfg.eval, schema.Evaluation), typed(cfg.model, schema.Model)
    calls = cfg.rollout.max_code_calls
    sampling = {"temperature": settings.temperature, "top_p": settings.top_p, "top_k": settings.top_k}
    return Evaluator(
        sets=sets,
        settings=settings,
        seed=cfg.seed,
        rollout=build_rollout(cfg, **sampling),
        protocol=open_protocol(tokenizer, model, code_budget=calls, mode=settings.mode),
        tools=tools,
        directory=directory,
    )


def evaluation_metrics(by_set: Mapping[str, Sequence[TrajectoryGroup]], k: Sequence[int]) -> dict[str, float]:
    """Figures under `eval/`; with several sets also under `eval/<set>/`.

    `accuracy` is the mean over problems of the share of right samples, with its 95 % interval in `accuracy_low` and
    `accuracy_high`, over `count` problems. `pass@k` and `majority@k` for each k that the samples allow.
    Trajectories that failed for reasons of the machine are left out; `infrastructure_failures` counts them.
    """
    figures = _figures([group for groups in by_set.values() for group in groups], k)
    metrics = {f"eval/{name}": value for name, value in figures.items()}
    if len(by_set) > 1:
        for name, groups in by_set.items():
            metrics |= {f"eval/{name}/{figure}": value for figure, value in _figures(groups, k).items()}
    return metrics


def describe(metrics: Mapping[str, float]) -> str:
    """`0.52 right (95 % interval 0.47 to 0.57; 128 problems, 256 samples)`."""
    if "eval/accuracy" not in metrics:
        return "nothing could be evaluated"
    return (
        f"{metrics['eval/accuracy']:.3f} right (95 % interval {metrics['eval/accuracy_low']:.3f} to "
        f"{metrics['eval/accuracy_high']:.3f}; {metrics['eval/count']:.0f} problems, "
        f"{metrics['eval/samples']:.0f} samples)"
    )


def _figures(groups: Sequence[TrajectoryGroup], k: Sequence[int]) -> dict[str, float]:
    everything = [trajectory for group in groups for trajectory in group.trajectories]
    scored = [list(group.scored) for group in groups if group.scored]
    samples = [trajectory for group in scored for trajectory in group]
    figures = {"infrastructure_failures": float(len(everything) - len(samples))}
    if not samples:
        return figures
    right = [[_verdict(trajectory).correct for trajectory in group] for group in scored]
    answers = [[_verdict(trajectory).extracted for trajectory in group] for group in scored]
    accuracy = average_at_k(right)
    figures |= {"accuracy": accuracy.value, "accuracy_low": accuracy.low, "accuracy_high": accuracy.high}
    figures |= {"count": float(len(scored)), "samples": float(len(samples))}
    figures |= {"format": fmean(_verdict(trajectory).valid_format for trajectory in samples)}
    figures |= {"tool_call_rate": fmean(trajectory.code_calls > 0 for trajectory in samples)}
    figures |= {"code_calls": fmean(trajectory.code_calls for trajectory in samples)}
    figures |= {"trajectory_tokens": fmean(len(trajectory.tokens) for trajectory in samples)}
    for size in k:
        if size <= min(len(group) for group in scored):
            figures[f"pass@{size}"] = pass_at_k(right, size).value
            figures[f"majority@{size}"] = majority_at_k(answers, right, size).value
    return figures


def _verdict(trajectory: Trajectory) -> Verdict:
    assert trajectory.verdict is not None  # only scored trajectories come here
    return trajectory.verdict
