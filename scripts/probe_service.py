"""Measures, on a service that speaks PyTRIO's protocol, what its documentation does not say; prints matching settings.

    python scripts/probe_service.py --base-model Qwen/Qwen3.5-4B                  # the cloud, with your credentials
    PYTRIO_BASE_URL=… PYTRIO_API_KEY=… python scripts/probe_service.py --base-model tiny       # retool-serve, say

Each loss is differentiated for a few small batches, each on a fresh adapter of the same seed. Against the batch of one
datum, `twice` repeats the datum; `blank` adds a datum, three times as long, without gradient; `blank_ignored` is the
same with targets of -100; `tail` lengthens the datum by tokens without gradient; `tail_ignored` the same with targets
of -100. The ratios of the gradients give the denominator: that of a sum, a mean over samples, over all targets, over
targets with a gradient, or a mean of each sequence's own mean. The gradient is read from the optimizer's metrics where
the service returns its norm, else from how far a small step moves the datum's logprobs.

A full run creates about 40 short training runs of under 200 tokens each.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retool.errors import UserError
from retool.policy.credentials import resolve_credentials
from retool.policy.sdk import Connection, configure, load_sdk, sdk_errors, translate, user_home

if TYPE_CHECKING:
    from pytrio import Datum, ServiceClient, TrainingClient  # type: ignore[import-untyped]

IGNORED = -100
LENGTH, TAIL, BLANK = 4, 8, 12
POLICY_LOSSES = ("importance_sampling", "ppo", "cispo", "dro")
TOLERANCE = 0.08
NORMALISATION = {"sum": "none", "mean over samples": "total_samples", "mean over targets": "active_tokens"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the probe; 0 when every loss could be told apart."""
    args = _parse(arguments)
    try:
        credentials = resolve_credentials(args.base_url, args.api_key)
        configure(Connection(credentials.base_url, credentials.api_key, user_home(), embedded=False, max_in_flight=16))
        report = _measure(args)
    except UserError as error:
        print(error, file=sys.stderr)
        return 1
    except sdk_errors() as error:
        print(translate(error, "The probe"), file=sys.stderr)
        return 1
    print(_render(report))
    if args.json:
        args.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0 if all(found["denominator"] != "unknown" for found in report["losses"].values()) else 2


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-model", required=True)
    parser.add_argument("--base-url", help="default: as the SDK is configured")
    parser.add_argument("--api-key", help="default: the key that belongs to the address")
    parser.add_argument("--rank", type=int, default=8, help="of the adapters that are trained")
    parser.add_argument("--losses", nargs="+", default=["cross_entropy", *POLICY_LOSSES])
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    return parser.parse_args(arguments)


def _measure(args: argparse.Namespace) -> dict[str, Any]:
    service = load_sdk().ServiceClient()
    trial = Trial(service, args.base_model, args.rank)
    losses = {loss: _measure_loss(trial, loss) for loss in args.losses}
    return {
        "service": service._runtime.configuration.base_url,
        "base_model": args.base_model,
        "losses": losses,
        "outputs": trial.describe_outputs(),
        "optimizer_metrics": trial.optimizer_metrics,
        "sampling": _measure_sampling(service, args.base_model),
    }


@dataclass(frozen=True)
class Part:
    """One datum: `active` tokens that carry the gradient, then `idle` ones; `ignored`: those have targets of -100."""

    active: int
    idle: int = 0
    ignored: bool = False


BATCHES = {
    "one": [Part(LENGTH)],
    "twice": [Part(LENGTH), Part(LENGTH)],
    "blank": [Part(LENGTH), Part(0, BLANK)],
    "blank_ignored": [Part(LENGTH), Part(0, BLANK, ignored=True)],
    "tail": [Part(LENGTH, TAIL)],
    "tail_ignored": [Part(LENGTH, TAIL, ignored=True)],
}


class Trial:
    """Gradients of small batches, each on a fresh adapter."""

    def __init__(self, service: "ServiceClient", base_model: str, rank: int) -> None:
        self._sdk = load_sdk()
        self._service = service
        self._base_model = base_model
        self._rank = rank
        self._step = 1e-3
        self._logprobs: dict[Part, list[float]] = {}
        self.optimizer_metrics: list[str] = []
        self.gradient_from = "unknown"

    def gradient(self, batch: Sequence[Part], loss: str) -> float:
        """A number proportional to the gradient's length, with the same factor for every batch of a loss."""
        old = [self._base_logprobs(part) for part in batch]
        run = self._run()
        data = [self._datum(part, loss, logprobs) for part, logprobs in zip(batch, old, strict=True)]
        run.forward_backward(data, loss).result()
        # With eps far above the gradient, Adam's first step is proportional to it.
        metrics = run.optim_step(self._sdk.AdamParams(learning_rate=self._step * 10, eps=10.0)).result().metrics
        self.optimizer_metrics = sorted(metrics)
        norm = next((value for name, value in metrics.items() if "grad" in name and "norm" in name), None)
        if norm is not None:
            self.gradient_from = "the gradient norm among the optimizer's metrics"
            return float(norm)
        self.gradient_from = "the shift of logprobs after a small step"
        after = self._forward(run, Part(LENGTH))
        return sum(after) - sum(self._base_logprobs(Part(LENGTH)))

    def describe_outputs(self) -> dict[str, Any]:
        """What `forward` returns for a datum, and whether targets of -100 are accepted and have logprobs."""
        part = Part(LENGTH, TAIL, ignored=True)
        (outputs,) = self._run().forward([self._datum(part, "cross_entropy", None)]).result().loss_fn_outputs
        values = outputs["logprobs"].data if "logprobs" in outputs else []
        return {
            "names": sorted(outputs),
            "logprobs_per_target": len(values) == LENGTH + TAIL,
            "logprob_of_ignored_targets": values[-1] if values else None,
        }

    def _base_logprobs(self, part: Part) -> list[float]:
        if part not in self._logprobs:
            self._logprobs[part] = self._forward(self._run(), Part(part.active, part.idle))
        return self._logprobs[part]

    def _forward(self, run: "TrainingClient", part: Part) -> list[float]:
        (outputs,) = run.forward([self._datum(part, "cross_entropy", None)]).result().loss_fn_outputs
        return list(outputs["logprobs"].data)

    def _run(self) -> "TrainingClient":
        return self._service.create_lora_training_client(self._base_model, rank=self._rank, seed=1)

    def _datum(self, part: Part, loss: str, old: Sequence[float] | None) -> "Datum":
        length = part.active + part.idle
        tokens = [10 + index % 20 for index in range(length + 1)]
        targets = [IGNORED if part.ignored and index >= part.active else tokens[index + 1] for index in range(length)]
        signal = [1.0] * part.active + [0.0] * part.idle
        inputs: dict[str, list[int] | list[float]] = {"target_tokens": targets}
        if loss == "cross_entropy":
            inputs["weights"] = signal
        else:
            inputs |= {"advantages": signal, "logprobs": list(old or [])}
        return self._sdk.Datum(model_input=self._sdk.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs)


def _measure_loss(trial: Trial, loss: str) -> dict[str, Any]:
    gradients = {name: trial.gradient(batch, loss) for name, batch in BATCHES.items()}
    ratios = {name: value / gradients["one"] for name, value in gradients.items() if name != "one"}
    return {"denominator": classify(ratios), "ratios": ratios, "gradient_from": trial.gradient_from}


def classify(ratios: dict[str, float]) -> str:
    """The denominator whose predictions the measured ratios meet, or "unknown"."""
    tail_share, blank_share = LENGTH / (LENGTH + TAIL), LENGTH / (LENGTH + BLANK)
    predictions: dict[str, dict[str, float]] = {
        "sum": {"twice": 2, "blank": 1, "blank_ignored": 1, "tail": 1, "tail_ignored": 1},
        "mean over samples": {"twice": 1, "blank": 0.5, "blank_ignored": 0.5, "tail": 1, "tail_ignored": 1},
        "mean over targets": {
            "twice": 1,
            "blank": blank_share,
            "blank_ignored": 1,
            "tail": tail_share,
            "tail_ignored": 1,
        },
        "mean over targets with a gradient": {
            "twice": 1,
            "blank": 1,
            "blank_ignored": 1,
            "tail": 1,
            "tail_ignored": 1,
        },
        "mean over samples of their means": {
            "twice": 1,
            "blank": 0.5,
            "blank_ignored": 0.5,
            "tail": tail_share,
            "tail_ignored": 1,
        },
    }
    for name, expected in predictions.items():
        if all(abs(ratios[batch] - value) < TOLERANCE for batch, value in expected.items()):
            return name
    return "unknown"


def _measure_sampling(service: "ServiceClient", base_model: str) -> dict[str, bool]:
    sdk = load_sdk()
    sampler = service.create_sampling_client(base_model)
    params = sdk.SamplingParams(max_tokens=8, seed=7, temperature=1.0)
    prompt = sdk.ModelInput.from_ints([10, 11, 12])

    def draw(count: int) -> list[list[int]]:
        return [list(sequence.tokens) for sequence in sampler.sample(prompt, count, params).result().sequences]

    two, again, single = draw(2), draw(2), draw(1)
    first = single[0][0]
    stopping = sdk.SamplingParams(max_tokens=8, seed=7, temperature=1.0, stop=[first])
    (stopped,) = sampler.sample(prompt, 1, stopping).result().sequences
    return {
        "same_seed_same_samples": two == again,
        "samples_of_a_request_differ": two[0] != two[1],
        "first_sample_does_not_depend_on_their_number": two[0] == single[0],
        "stop_token_is_returned": list(stopped.tokens) == [first],
    }


def _render(report: dict[str, Any]) -> str:
    lines = [f"{report['base_model']} on {report['service']}", ""]
    for loss, found in report["losses"].items():
        ratios = "  ".join(f"{name}={value:.3f}" for name, value in found["ratios"].items())
        lines += [f"{loss}: {found['denominator']}", f"    {ratios}  (from {found['gradient_from']})"]
    lines += ["", f"forward returns {report['outputs']}"]
    lines += [f"sampling: {name} {'yes' if value else 'no'}" for name, value in report["sampling"].items()]
    return "\n".join([*lines, "", *_settings(report["losses"])])


def _settings(losses: dict[str, dict[str, Any]]) -> list[str]:
    found = {losses[loss]["denominator"] for loss in POLICY_LOSSES if loss in losses}
    if len(found) != 1 or not found <= NORMALISATION.keys():
        return [f"No setting of model.engine.normalisation matches the policy losses: {', '.join(sorted(found))}."]
    (denominator,) = found
    needed = denominator == "mean over targets"
    why = "else prompt and tool output count" if needed else "makes no difference to this denominator"
    return [
        "Settings with which the embedded engine does the same:",
        f"  model.engine.normalisation={NORMALISATION[denominator]}",
        f"  ppo.ignore_unsampled_targets={str(needed).lower()}    # {why}",
    ]


if __name__ == "__main__":
    sys.exit(main())
