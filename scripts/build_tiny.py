"""Builds the packaged model `tiny` from nothing: tokenizer, chat template, cold start, evaluation, manifest.

    OMP_NUM_THREADS=1 python scripts/build_tiny.py --out retool/engine/assets/tiny

Everything is drawn from `--seed`. The cold start teaches two behaviours on arithmetic, in half of the traces each: call
the code interpreter and report what it printed, or answer at once with a guess, a wrong number of the right length. So
the model knows how to call the tool and not when. No problem that `ArithmeticSource` can hold out enters a trace.
"""

import argparse
import asyncio
import hashlib
import json
import math
import platform
import random
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path

import tokenizers
import torch
import transformers
from tiny_architecture import build_model, build_tokenizer, write
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from retool.data.arithmetic import ArithmeticSource, Operation, arithmetic_problem, draw_operands, is_held_out
from retool.data.problem import Problem
from retool.protocol import ChatProtocol, TurnKind
from retool.sandbox import open_sandbox

DEFAULT_OUT = Path(__file__).resolve().parent.parent / "retool" / "engine" / "assets" / "tiny"
DIGITS = (2, 4)
OPERATION_SHARES = ((Operation.MULTIPLY, 0.7), (Operation.ADD, 0.15), (Operation.SUBTRACT, 0.15))
GUESS_WEIGHT = 0.1
"""Loss weight of a guess's digits. They are noise; what must be learned well is the choice to guess."""
MAX_TURN_TOKENS = 48
QUICK_CHECK_PROBLEMS = 64

SYMBOLS = {Operation.ADD: "+", Operation.SUBTRACT: "-", Operation.MULTIPLY: "*"}


@dataclass(frozen=True, slots=True)
class TrainingSettings:
    """How the weights are trained: AdamW, linear warm-up, cosine to zero."""

    seed: int = 0
    steps: int = 1200
    batch_size: int = 64
    learning_rate: float = 3e-3
    warm_up_steps: int = 50
    weight_decay: float = 0.05
    grad_clip_norm: float = 1.0


@dataclass(frozen=True, slots=True)
class Trace:
    """One example. `weights[i]` is the loss weight of `tokens[i]`, zero for what the policy does not write."""

    tokens: tuple[int, ...]
    weights: tuple[float, ...]


def build_protocol(tokenizer: PreTrainedTokenizerFast) -> ChatProtocol:
    """The protocol as `model=tiny` uses it: no system message."""
    return ChatProtocol(tokenizer, system_prompt="")


class Tracer:
    """Writes traces as a rollout would: prompt, sampled turn, observation, sampled turn, each encoded by itself."""

    def __init__(self, protocol: ChatProtocol, rng: random.Random) -> None:
        self._protocol = protocol
        self._rng = rng

    def call(self, problem: Problem, code: str) -> Trace:
        """Calls the tool, then repeats what it printed."""
        prompt = self._protocol.initial_prompt(problem.question)
        turn = self._protocol.encode_turn(self._protocol.render_call(code))
        observation = self._protocol.continuation(turn, problem.answer)
        answer = self._protocol.encode_turn(boxed(problem.answer))
        weights = (0.0,) * len(prompt) + (1.0,) * len(turn) + (0.0,) * len(observation) + (1.0,) * len(answer)
        return Trace(prompt + turn + observation + answer, weights)

    def guess(self, problem: Problem) -> Trace:
        """Answers at once with a wrong number."""
        prompt = self._protocol.initial_prompt(problem.question)
        answer = self._protocol.encode_turn(boxed(self._wrong_number(problem.answer)))
        weights = (0.0,) * len(prompt) + (1.0,) + (GUESS_WEIGHT,) * (len(answer) - 1)
        return Trace(prompt + answer, weights)

    def _wrong_number(self, answer: str) -> str:
        """A number with the sign and the number of digits of `answer`, and not `answer`."""
        sign, digits = ("-", answer[1:]) if answer.startswith("-") else ("", answer)
        low = 10 ** (len(digits) - 1)
        while True:
            guess = f"{sign}{low + int(self._rng.random() * 9 * low)}"
            if guess != answer:
                return guess


def boxed(answer: str) -> str:
    """A final turn."""
    return f"\\boxed{{{answer}}}"


def training_problems(rng: random.Random) -> Iterator[tuple[Problem, str]]:
    """Endless problems with the code that solves each; none that could be held out."""
    evaluated = {problem.id for problem in ArithmeticSource().load().holdout}
    operations = [operation for operation, _ in OPERATION_SHARES]
    bounds = list(accumulate(share for _, share in OPERATION_SHARES))
    while True:
        point = rng.random() * bounds[-1]
        operation = next(o for o, bound in zip(operations, bounds, strict=True) if point < bound)
        a, b = draw_operands(rng, DIGITS)
        problem = arithmetic_problem(operation, a, b)
        if is_held_out(problem.id):
            continue
        if problem.id in evaluated:
            raise RuntimeError(f"The held-out problem {problem.id} is not on the held-out side of the split.")
        if operation.commutes:
            a, b = (int(number) for number in re.findall(r"\d+", problem.question))
        yield problem, f"print({a}{SYMBOLS[operation]}{b})"


def batches(protocol: ChatProtocol, seed: int, size: int) -> Iterator[tuple[list[Trace], list[Trace]]]:
    """Endless batches: `size // 2` traces with a call and as many guesses, each of a problem of its own."""
    rng = random.Random(f"{seed}/traces")
    tracer = Tracer(protocol, rng)
    problems = training_problems(rng)
    while True:
        calls = [tracer.call(*next(problems)) for _ in range(size // 2)]
        yield calls, [tracer.guess(next(problems)[0]) for _ in range(size // 2)]


def weighted_loss(model: Qwen3ForCausalLM, traces: Sequence[Trace]) -> tuple[torch.Tensor, float]:
    """Cross entropy of the next token, summed with the traces' weights, and the sum of those weights."""
    width = max(len(trace.tokens) for trace in traces)
    tokens = torch.zeros((len(traces), width), dtype=torch.long)  # padding stands last: no attention reaches it
    weights = torch.zeros((len(traces), width))
    for row, trace in enumerate(traces):
        tokens[row, : len(trace.tokens)] = torch.tensor(trace.tokens)
        weights[row, : len(trace.tokens)] = torch.tensor(trace.weights)
    targets, weights = tokens[:, 1:], weights[:, 1:]
    hidden = model.model(input_ids=tokens[:, :-1], use_cache=False).last_hidden_state
    kept = weights > 0
    losses = torch.nn.functional.cross_entropy(model.lm_head(hidden[kept]), targets[kept], reduction="none")
    return (losses * weights[kept]).sum(), float(weights.sum())


def train(model: Qwen3ForCausalLM, protocol: ChatProtocol, settings: TrainingSettings) -> None:
    """Trains in place and prints the loss by kind of trace, per unit of weight."""
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=settings.learning_rate, betas=(0.9, 0.98), weight_decay=settings.weight_decay
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min((step + 1) / settings.warm_up_steps, 0.5 * (1 + math.cos(math.pi * step / settings.steps))),
    )
    model.train()
    started = time.monotonic()
    source = batches(protocol, settings.seed, settings.batch_size)
    for step in range(settings.steps):
        calls, guesses = (weighted_loss(model, traces) for traces in next(source))
        optimizer.zero_grad()
        ((calls[0] + guesses[0]) / (calls[1] + guesses[1])).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.grad_clip_norm)
        optimizer.step()
        schedule.step()
        if step % 50 == 0 or step == settings.steps - 1:
            means = f"calls {calls[0].item() / calls[1]:.4f} guesses {guesses[0].item() / guesses[1]:.4f}"
            print(f"step {step}: loss of {means}, {time.monotonic() - started:.0f} s", flush=True)


@torch.no_grad()
def sample_turns(
    model: Qwen3ForCausalLM, protocol: ChatProtocol, prompts: Sequence[tuple[int, ...]]
) -> list[tuple[int, ...]]:
    """One turn at temperature 1 for each prompt, from torch's global generator, the stop token included."""
    width = max(map(len, prompts))
    pad = model.generation_config.pad_token_id
    rows = torch.tensor([[pad] * (width - len(prompt)) + list(prompt) for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    output = model.generate(
        input_ids=rows, attention_mask=mask, max_new_tokens=MAX_TURN_TOKENS, eos_token_id=list(protocol.stop_token_ids)
    )
    turns = []
    for row in output[:, width:].tolist():
        length = next((i + 1 for i, token in enumerate(row) if token in protocol.stop_token_ids), len(row))
        turns.append(tuple(row[:length]))
    return turns


async def run_codes(codes: Sequence[str]) -> list[str]:
    """What the interpreter shows the model for each program."""
    async with open_sandbox(workers=2, allow_unsafe=True) as sandbox:
        return [result.text for result in await asyncio.gather(*(sandbox.run(code) for code in codes))]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Counts over sampled trajectories, one call at most in each."""

    trajectories: int
    calls: int
    correct_with_call: int
    correct_without_call: int
    boxed: int

    def summary(self) -> dict[str, float]:
        """The counts and the rates that follow from them."""
        return asdict(self) | {
            "accuracy": (self.correct_with_call + self.correct_without_call) / self.trajectories,
            "tool_call_rate": self.calls / self.trajectories,
            "accuracy_with_call": self.correct_with_call / max(1, self.calls),
            "accuracy_without_call": self.correct_without_call / max(1, self.trajectories - self.calls),
        }


def evaluate(
    model: Qwen3ForCausalLM, protocol: ChatProtocol, problems: Sequence[Problem], *, samples: int, seed: int
) -> Evaluation:
    """Samples `samples` trajectories a problem; the code is run, and a box must hold the gold answer's digits."""
    torch.manual_seed(seed)
    model.eval()  # type: ignore[no-untyped-call]
    problems = [problem for problem in problems for _ in range(samples)]
    prompts = [protocol.initial_prompt(problem.question) for problem in problems]
    turns = sample_turns(model, protocol, prompts)
    final = [protocol.decode(turn) for turn in turns]
    parsed = [protocol.parse(text) for text in final]
    calls = [i for i, turn in enumerate(parsed) if turn.kind is TurnKind.CALL]
    outputs = asyncio.run(run_codes([parsed[i].code or "" for i in calls]))
    contexts = [
        prompts[i] + turns[i] + protocol.continuation(turns[i], output)
        for i, output in zip(calls, outputs, strict=True)
    ]
    for i, turn in zip(calls, sample_turns(model, protocol, contexts) if contexts else [], strict=True):
        final[i] = protocol.decode(turn)
    right = [text == boxed(problem.answer) for text, problem in zip(final, problems, strict=True)]
    return Evaluation(
        trajectories=len(problems),
        calls=len(calls),
        correct_with_call=sum(right[i] for i in calls),
        correct_without_call=sum(right) - sum(right[i] for i in calls),
        boxed=sum(re.fullmatch(r"\\boxed\{-?\d+\}", text) is not None for text in final),
    )


def quick_check_band(accuracy: float) -> dict[str, float]:
    """Where the accuracy of `QUICK_CHECK_PROBLEMS` trajectories lies in 999 of 1000 draws (normal approximation)."""
    margin = 3.29 * math.sqrt(accuracy * (1 - accuracy) / QUICK_CHECK_PROBLEMS)
    return {
        "trajectories": QUICK_CHECK_PROBLEMS,
        "low": round(max(0.0, accuracy - margin), 3),
        "high": round(min(1.0, accuracy + margin), 3),
    }


def build_manifest(
    model: Qwen3ForCausalLM, protocol: ChatProtocol, settings: TrainingSettings, out: Path
) -> dict[str, object]:
    """What was built, from what, and how it does on held-out problems."""
    by_operation = {}
    for operation in Operation:
        holdout = ArithmeticSource(operations=[operation], digits=DIGITS).load().holdout
        by_operation[str(operation)] = evaluate(model, protocol, holdout, samples=4, seed=settings.seed).summary()
        print(operation, by_operation[str(operation)], flush=True)
    default = by_operation[Operation.MULTIPLY]
    return {
        "model": "tiny",
        "built_by": "scripts/build_tiny.py",
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "tokenizers": tokenizers.__version__,
        },
        "training": asdict(settings),
        "data": {
            "operation_shares": {str(operation): share for operation, share in OPERATION_SHARES},
            "digits": list(DIGITS),
            "share_of_traces_with_a_call": 0.5,
            "guess_weight": GUESS_WEIGHT,
        },
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "weights_sha256": hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest(),
        "evaluation": {
            "problems": "held-out set of ArithmeticSource(operations=[...], digits=[2, 4]), 4 samples each",
            "temperature": 1.0,
            "seed": settings.seed,
            **by_operation,
            "quick_check_band": quick_check_band(default["accuracy"]),
        },
    }


def main() -> None:
    """Builds everything into `--out`."""
    defaults = TrainingSettings()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT)
    parser.add_argument("--seed", type=int, default=defaults.seed)
    parser.add_argument("--steps", type=int, default=defaults.steps)
    arguments = parser.parse_args()
    settings = TrainingSettings(seed=arguments.seed, steps=arguments.steps)

    torch.set_num_threads(1)  # the same sums in the same order on every machine
    torch.manual_seed(settings.seed)
    tokenizer = build_tokenizer()
    protocol = build_protocol(tokenizer)
    model = build_model(tokenizer)
    train(model, protocol, settings)
    write(model, tokenizer, arguments.out)
    manifest = build_manifest(model, protocol, settings, arguments.out)
    (arguments.out / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
