"""The policy update of one step: advantages, datums, and one optimizer step for each minibatch.

Contents: `Trainer` (what it needs of a client), `UpdateResult`, `PPO`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, TypeVar

from retool.errors import InfrastructureError, UserError
from retool.policy.types import ForwardOutput, TokenDatum
from retool.ppo.advantages import AdvantageEstimator
from retool.ppo.aggregation import LossAggregation, Normalisation
from retool.ppo.batch import BatchSettings, Minibatch, Offsets, PreparedBatch, prepare
from retool.ppo.losses import LossSettings, PolicyLoss
from retool.ppo.masks import MaskReason
from retool.ppo.metrics import TokenColumns, composition_metrics, mismatch_metrics, ratio_metrics, token_columns
from retool.ppo.reference import TrajectoryKey, kl_offsets
from retool.rollout.trajectory import TrajectoryGroup

NameT = TypeVar("NameT", bound=StrEnum)


class Trainer(Protocol):
    """The part of a policy client that an update uses."""

    async def train_step(
        self, data: Sequence[TokenDatum], *, loss: str, config: Mapping[str, float], adam: Mapping[str, float]
    ) -> tuple[ForwardOutput, dict[str, float]]:
        """`forward_backward` and `optim_step`, submitted together. Returns the output of both.

        The logprobs are those from before the step. Raises `InfrastructureError` when the service fails.
        """
        ...


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """`metrics` under `ppo/` and `train/`; `groups` with the advantages that the update used."""

    metrics: dict[str, float]
    groups: tuple[TrajectoryGroup, ...]


@dataclass(frozen=True, slots=True)
class _Call:
    """What one `forward_backward` and its optimizer step returned."""

    minibatch: Minibatch
    columns: TokenColumns
    forward: dict[str, float]
    optimizer: dict[str, float]


class PPO:
    """Trains a policy on groups of trajectories of the same question.

    Arguments are the keys of `conf/ppo/`:

    - `group_size`, `questions_per_batch`: the trajectories of a question and the questions of a step (for the caller).
    - `advantage`: mean, grpo, rloo or dr_grpo (`retool.ppo.advantages`).
    - `loss`, `clip_low`, `clip_high`, `dro_beta`: `retool.ppo.losses`; thresholds are absolute ratios.
    - `loss_aggregation`: sample_sum, sample_mean, token_mean or fixed_length (`retool.ppo.aggregation`).
    - `max_trajectory_tokens`: the L of `fixed_length`.
    - `normalisation`: what the service divides the token sum by: total_samples, active_tokens or none.
    - `updates_per_batch`: minibatches of whole groups, one optimizer step each; past 1 the clipping starts to matter.
    - `kl_coef`: penalty on the divergence from a reference policy (`retool.ppo.reference`); 0 needs no reference.
    - `overlong_buffer_tokens`, `overlong_penalty`: `retool.ppo.overlong`; a buffer of 0 punishes nothing.
    - `dynamic_sampling`: `enabled` and `max_rounds`, for the caller (`retool.runs.batches`).
    - `learning_rate`, `beta1`, `beta2`, `eps`, `weight_decay`, `grad_clip_norm`: AdamW; a norm of 0 clips nothing.
    - `mask_truncated`, `mask_void_turns`: keep such trajectories out of the loss, but in the baseline.
    - `ignore_unsampled_targets`: -100 as the target wherever the policy did not sample it.
    - `seed`: of the order of groups among minibatches.

    Raises `UserError` for values outside their range.
    """

    def __init__(
        self,
        *,
        group_size: int = 8,
        questions_per_batch: int = 8,
        advantage: str = "mean",
        loss: str = "ppo",
        clip_low: float | None = None,
        clip_high: float | None = None,
        dro_beta: float = 0.05,
        loss_aggregation: str = "sample_sum",
        max_trajectory_tokens: int = 8192,
        normalisation: str = "total_samples",
        updates_per_batch: int = 1,
        dynamic_sampling: Mapping[str, int] | None = None,
        kl_coef: float = 0.0,
        overlong_buffer_tokens: int = 0,
        overlong_penalty: float = 1.0,
        learning_rate: float = 4e-5,
        beta1: float = 0.9,
        beta2: float = 0.95,
        eps: float = 1e-12,
        weight_decay: float = 0.0,
        grad_clip_norm: float = 0.0,
        mask_truncated: bool = False,
        mask_void_turns: bool = False,
        ignore_unsampled_targets: bool = False,
        seed: int = 42,
    ) -> None:
        self.group_size = _at_least("group_size", group_size, 2)
        self.questions_per_batch = _at_least("questions_per_batch", questions_per_batch, 1)
        self.loss = LossSettings(_named(PolicyLoss, "loss", loss), clip_low, clip_high, dro_beta)
        self.batch = BatchSettings(
            estimator=_named(AdvantageEstimator, "advantage", advantage),
            aggregation=_named(LossAggregation, "loss_aggregation", loss_aggregation),
            normalisation=_named(Normalisation, "normalisation", normalisation),
            updates_per_batch=_at_least("updates_per_batch", updates_per_batch, 1),
            max_trajectory_tokens=_at_least("max_trajectory_tokens", max_trajectory_tokens, 1),
            mask_truncated=mask_truncated,
            mask_void_turns=mask_void_turns,
            ignore_unsampled_targets=ignore_unsampled_targets,
            overlong_buffer_tokens=_at_least("overlong_buffer_tokens", overlong_buffer_tokens, 0),
            overlong_penalty=overlong_penalty,
        )
        self.kl_coef = kl_coef
        dynamic = {"enabled": False, "max_rounds": 3, **(dynamic_sampling or {})}
        rounds = _at_least("dynamic_sampling.max_rounds", dynamic["max_rounds"], 1)
        self.sampling_rounds = rounds if dynamic["enabled"] else 1
        self.adam = {
            "learning_rate": learning_rate,
            "beta1": beta1,
            "beta2": beta2,
            "eps": eps,
            "weight_decay": weight_decay,
            "grad_clip_norm": grad_clip_norm,
        }
        self.seed = seed
        _check_numbers({**self.adam, "kl_coef": kl_coef, "overlong_penalty": overlong_penalty})
        self._check_dro()

    async def update(
        self,
        client: Trainer,
        groups: Sequence[TrajectoryGroup],
        *,
        step: int,
        reference: Mapping[TrajectoryKey, Sequence[float]] | None = None,
    ) -> UpdateResult:
        """One pass over the groups; `updates_per_batch` optimizer steps, fewer where fewer groups carry a signal.

        `reference`: the reference policy's logprobs of the sampled tokens, which `kl_coef` above 0 asks for.
        Where nothing carries a signal no call is made and `train/minibatches` is 0.
        Raises `InfrastructureError` when the service fails or returns a figure that is not finite.
        """
        offsets, metrics = self._penalties(groups, reference)
        prepared = prepare(groups, self.batch, seed=self.seed, step=step, offsets=offsets)
        _check_logprobs(prepared, step)
        calls = [await self._call(client, minibatch) for minibatch in prepared.minibatches]
        metrics |= {**composition_metrics(groups), **_batch_metrics(prepared)}
        if calls:
            metrics |= ratio_metrics([call.columns for call in calls], self.loss)
            metrics |= mismatch_metrics(calls[0].columns)
            metrics |= _call_metrics(calls)
        broken = {name: value for name, value in metrics.items() if not math.isfinite(value)}
        if broken:
            raise InfrastructureError(
                f"The update of step {step} gave figures that are not finite: {broken}. The weights after it cannot be "
                "trusted: resume from the last checkpoint, with a lower ppo.learning_rate or a ppo.grad_clip_norm."
            )
        return UpdateResult(metrics, prepared.groups)

    async def _call(self, client: Trainer, minibatch: Minibatch) -> _Call:
        output, optimizer = await client.train_step(
            minibatch.data,
            loss=self.loss.loss.value,
            config=self.loss.service_config(1.0 if minibatch.scale is None else minibatch.scale),
            adam=self.adam,
        )
        columns = token_columns(minibatch.data, minibatch.sampled, output.logprobs)
        return _Call(minibatch, columns, output.metrics, optimizer)

    def _penalties(
        self, groups: Sequence[TrajectoryGroup], reference: Mapping[TrajectoryKey, Sequence[float]] | None
    ) -> tuple[Offsets, dict[str, float]]:
        """What the divergence from the reference adds to advantages, and the figures of all penalties in use."""
        offsets: Offsets = {}
        metrics: dict[str, float] = {}
        scored = [t for group in groups for t in group.scored]
        if reference is not None:
            trained = [t for t in scored if self.batch.mask_reason(t) is None]
            offsets, metrics["ppo/kl_reference"] = kl_offsets(trained, reference, self.kl_coef)
        if self.batch.overlong_buffer_tokens:
            penalties = [self.batch.overlong(t) for t in scored]
            metrics["reward/overlong_penalty"] = sum(penalties) / len(penalties) if penalties else 0.0
        return offsets, metrics

    def _check_dro(self) -> None:
        if self.loss.loss is not PolicyLoss.DRO:
            return
        if not self.batch.ignore_unsampled_targets:
            raise UserError(
                "ppo.loss=dro needs ppo.ignore_unsampled_targets=true: its penalty does not vanish where the advantage "
                "is zero, and would train the policy on prompts and tool output."
            )
        if self.batch.aggregation is LossAggregation.SAMPLE_MEAN:
            raise UserError(
                "ppo.loss=dro cannot have ppo.loss_aggregation=sample_mean: its penalty has one weight for a whole "
                "call, not one for each trajectory. Use sample_sum, token_mean or fixed_length."
            )


def _batch_metrics(prepared: PreparedBatch) -> dict[str, float]:
    data = [datum for minibatch in prepared.minibatches for datum in minibatch.data]
    return {
        "train/datums": float(len(data)),
        "train/tokens": float(sum(len(datum.tokens) for datum in data)),
        "train/sampled_tokens": float(sum(sum(mask) for m in prepared.minibatches for mask in m.sampled)),
        "train/minibatches": float(len(prepared.minibatches)),
        "train/trajectories": float(prepared.scored),
        "train/kept_fraction": len(data) / prepared.scored if prepared.scored else 0.0,
        **{f"train/masked_{reason.value}": float(prepared.masked.get(reason, 0)) for reason in MaskReason},
    }


def _call_metrics(calls: Sequence[_Call]) -> dict[str, float]:
    """`ppo/loss` is the mean over minibatches of the loss that was differentiated; `ppo/loss_per_token` divides the
    same token sum by the tokens that the service counted. The optimizer's own figures are means over minibatches."""
    metrics: dict[str, float] = {}
    sums = [(call.forward["loss_sum"], call.minibatch.denominator) for call in calls if "loss_sum" in call.forward]
    if len(sums) == len(calls):
        metrics["ppo/loss"] = sum(loss / denominator for loss, denominator in sums) / len(calls)
        tokens = sum(call.forward.get("token_count", 0.0) for call in calls)
        if tokens > 0:
            metrics["ppo/loss_per_token"] = sum(loss for loss, _ in sums) / tokens
    for name in sorted(set.intersection(*(set(call.optimizer) for call in calls))):
        metrics[f"ppo/{name}"] = sum(call.optimizer[name] for call in calls) / len(calls)
    return metrics


def _check_logprobs(prepared: PreparedBatch, step: int) -> None:
    for minibatch in prepared.minibatches:
        for datum in minibatch.data:
            if not all(map(math.isfinite, datum.logprobs or ())):
                raise InfrastructureError(
                    f"The sampler returned a logprob that is not finite in step {step}. No update was made."
                )


def _named(names: type[NameT], key: str, value: str) -> NameT:
    try:
        return names(value)
    except ValueError as error:
        raise UserError(f"ppo.{key}={value} is not one of {', '.join(names)}.") from error


def _at_least(key: str, value: int, least: int) -> int:
    if value < least:
        raise UserError(f"ppo.{key}={value} must be at least {least}.")
    return value


def _check_numbers(settings: Mapping[str, float]) -> None:
    for key, value in settings.items():
        if not math.isfinite(value) or value < 0.0:
            raise UserError(f"ppo.{key}={value:g} must be a finite number of at least 0.")
    for key in ("beta1", "beta2"):
        if settings[key] >= 1.0:
            raise UserError(f"ppo.{key}={settings[key]:g} must be below 1.")
