#!/usr/bin/env python3
"""The embedded engine beside `transformers`: tokens a second in sampling and training, on the same weights in turns.

    OMP_NUM_THREADS=1 python scripts/bench_engine.py [--models tiny smollm2_135m] [--batches 1 8 32 64]
        [--dtypes float32 bfloat16] [--rounds 3] [--json FILE]
    OMP_NUM_THREADS=1 python scripts/bench_engine.py --soak 1000

- `prefill`: prompts of `PROMPT` tokens and one sampled token each, against `generate`.
- `decode`: the time that `NEW` sampled tokens take beyond the first.
- `train`: one step of LoRA rank 16 on a ppo loss, right-padded batches of mixed lengths, against `transformers` with
  `peft` doing the same on the whole padded batch. At most `TRAIN_TOKENS` tokens a step, so that the latter fits.
- `one by one`: the same requests, each sent when the one before is done.
- `memory`: peak resident memory of one update, each contender in a process of its own.
- `--soak`: training steps of the tiny model with sampling through a server and the SDK; resident memory and open files.

The machine may be shared: rates are of CPU time of this process, the contenders take turns, figures are medians.
"""

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from bench_soak import soak
from rich.console import Console
from rich.table import Table

from retool.engine.loop import EngineLoop
from retool.engine.model.registry import resolve
from retool.engine.types import AdamParams, BatchTotals, LoraSpec, LossSpec, SampleRequest, TrainingSample

PROMPT, NEW, TRAIN_TOKENS, LONGEST = 32, 64, 2048, 128
RANK = 16
MEMORY_SAMPLES, MEMORY_LENGTH = 8, 1024


@contextmanager
def endless(directory: Path) -> Iterator[Path]:
    """The same model without an end token, so that every completion has the length that is asked for."""
    with tempfile.TemporaryDirectory(prefix="retool-bench-") as folder:
        for file in directory.iterdir():
            (Path(folder) / file.name).symlink_to(file)
        for name in ("config.json", "generation_config.json"):
            if (directory / name).is_file():
                (Path(folder) / name).unlink()
                described = json.loads((directory / name).read_text())
                described["eos_token_id"] = None
                (Path(folder) / name).write_text(json.dumps(described))
        yield Path(folder)


def timed(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def prompts(count: int, vocab_size: int, seed: int) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(3, vocab_size) for _ in range(PROMPT)] for _ in range(count)]


def samples(count: int, longest: int, vocab_size: int, seed: int) -> list[TrainingSample]:
    """Sequences of mixed lengths, half prompt, half sampled."""
    rng = random.Random(seed)
    made = []
    for _ in range(count):
        tokens = [rng.randrange(3, vocab_size) for _ in range(rng.randint(longest // 2, longest) + 1)]
        half = len(tokens) // 2
        advantages = [0.0] * half + [rng.choice([1.0, -1.0])] * (len(tokens) - 1 - half)
        made.append(TrainingSample(tokens[:-1], tokens[1:], logprobs=[-8.0] * (len(tokens) - 1), advantages=advantages))
    return made


class Engine:
    """The engine, without HTTP."""

    def __init__(self, directory: Path, dtype: str, rows: int, length: int) -> None:
        self.loop = EngineLoop(
            base_model=str(directory),
            dtype=dtype,
            max_batch_rows=rows,
            max_seq_len=length,
            micro_batch_tokens=1024,
            gather_window_s=0.002,
        )
        self.loop.create_run("run", LoraSpec(RANK, train_unembed=False)).result()

    def decode(self, batch: list[list[int]], seed: int, new: int = NEW) -> None:
        requests = [SampleRequest(prompt=p, adapter=None, max_tokens=new, seed=seed) for p in batch]
        for future in [self.loop.sample(request) for request in requests]:
            future.result()

    def one_by_one(self, batch: list[list[int]], seed: int) -> None:
        for prompt in batch:
            self.decode([prompt], seed)

    def train(self, batch: list[TrainingSample]) -> None:
        totals = BatchTotals(len(batch), 1, 1)
        self.loop.forward("run", batch, LossSpec("ppo"), totals, backward=True)
        self.loop.optim_step("run", AdamParams(1e-6)).result()


class Transformers:
    """`generate`, and a training step with `peft`, as one would write it."""

    def __init__(self, directory: Path, dtype: str) -> None:
        from peft import LoraConfig, get_peft_model
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(directory, dtype=getattr(torch, dtype)).eval()
        targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
        trained = AutoModelForCausalLM.from_pretrained(directory, dtype=getattr(torch, dtype))
        self.peft = get_peft_model(trained, LoraConfig(r=RANK, lora_alpha=32, target_modules=targets))
        trainable = [parameter for parameter in self.peft.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(trainable, lr=1e-6)

    def decode(self, batch: list[list[int]], seed: int, new: int = NEW) -> None:
        torch.manual_seed(seed)
        tokens = torch.tensor(batch)
        with torch.no_grad():
            self.model.generate(
                tokens,
                attention_mask=torch.ones_like(tokens),
                max_new_tokens=new,
                min_new_tokens=new,
                do_sample=True,
                top_k=0,
                pad_token_id=0,
            )

    def train(self, batch: list[TrainingSample]) -> None:
        width = max(len(sample.tokens) for sample in batch)
        columns = torch.zeros(4, len(batch), width)
        for row, sample in enumerate(batch):
            length = len(sample.tokens)
            for column, values in enumerate((sample.tokens, sample.target_ids, sample.logprobs, sample.advantages)):
                columns[column, row, :length] = torch.tensor(values)
        tokens, targets = columns[0].long(), columns[1].long()
        mask = torch.tensor([[i < len(s.tokens) for i in range(width)] for s in batch])
        logits = self.peft(input_ids=tokens, attention_mask=mask).logits.float()
        new = torch.log_softmax(logits, -1).gather(-1, targets[..., None])[..., 0]
        ratio, advantages = torch.exp(new - columns[2]), columns[3]
        loss = -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.28) * advantages)
        ((loss * mask).sum() / len(batch)).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def compare(ours: Callable[[int], object], theirs: Callable[[int], object], rounds: int) -> tuple[float, float]:
    """Median CPU seconds of each, taking turns, after one of each that is not counted."""
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + 1):
        for contender, found in zip((ours, theirs), times, strict=True):
            found.append(timed(lambda c=contender, n=number: c(n)))
    return statistics.median(times[0][1:]), statistics.median(times[1][1:])


def measure(model: str, dtype: str, batches: list[int], rounds: int) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []

    def note(what: str, batch: int, tokens: int, ours: float, theirs: float) -> None:
        row = {"model": model, "dtype": dtype, "what": what, "batch": batch}
        rows.append({**row, "engine": tokens / ours, "other": tokens / theirs, "ratio": theirs / ours})
        print(rows[-1], file=sys.stderr, flush=True)

    with endless(resolve(model)) as directory:
        engine, plain = Engine(directory, dtype, max(batches), LONGEST), Transformers(directory, dtype)
        vocab = engine.loop.vocab_size
        for batch in batches:
            first = compare(
                lambda n, b=batch: engine.decode(prompts(b, vocab, n), n, 1),
                lambda n, b=batch: plain.decode(prompts(b, vocab, n), n, 1),
                rounds,
            )
            whole = compare(
                lambda n, b=batch: engine.decode(prompts(b, vocab, n), n),
                lambda n, b=batch: plain.decode(prompts(b, vocab, n), n),
                rounds,
            )
            note("prefill", batch, batch * PROMPT, *first)
            ours, theirs = whole[0] - first[0], whole[1] - first[1]
            note("decode", batch, batch * (NEW - 1), ours, theirs)
            longest = min(LONGEST, TRAIN_TOKENS // batch)
            ours, theirs = compare(
                lambda n, b=batch, w=longest: engine.train(samples(b, w, vocab, n)),
                lambda n, b=batch, w=longest: plain.train(samples(b, w, vocab, n)),
                rounds,
            )
            trained = statistics.median(
                sum(len(s.tokens) for s in samples(batch, longest, vocab, n)) for n in range(1, rounds + 1)
            )
            note("train", batch, int(trained), ours, theirs)
        most = max(batches)
        ours, theirs = compare(
            lambda n: engine.decode(prompts(most, vocab, n), n),
            lambda n: engine.one_by_one(prompts(most, vocab, n), n),
            1,
        )
        note("decode, other: one by one", most, most * NEW, ours, theirs)
        engine.loop.close()
    return rows


def peak_of_update(contender: str, model: str, dtype: str, count: int, length: int) -> None:
    """Prints the peak resident memory of one update in GB; run in a process of its own."""
    directory = resolve(model)
    made: Engine | Transformers
    made = Engine(directory, dtype, 8, length + 8) if contender == "engine" else Transformers(directory, dtype)
    vocab = json.loads((directory / "config.json").read_text())["vocab_size"]
    rng = random.Random(0)
    batch = []
    for _ in range(count):
        tokens = [rng.randrange(3, vocab) for _ in range(length + 1)]
        advantages = [1.0] * length
        batch.append(TrainingSample(tokens[:-1], tokens[1:], logprobs=[-8.0] * length, advantages=advantages))
    made.train(batch)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)


def memory(models: list[str]) -> list[dict[str, object]]:
    rows = []
    for model in models:
        if model == "tiny":
            continue
        for contender, count in (("engine", MEMORY_SAMPLES), ("engine", 1), ("transformers + peft", 1)):
            command = [sys.executable, __file__, "--peak", contender, model, "float32", str(count), str(MEMORY_LENGTH)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            rows.append({"model": model, "update": f"{count} x {MEMORY_LENGTH}", "by": contender})
            rows[-1]["peak_gb"] = float(done.stdout.split()[-1])
    return rows


def show(title: str, rows: list[dict[str, object]]) -> None:
    table = Table(title=title)
    for column in rows[0]:
        table.add_column(column)
    for row in rows:
        table.add_row(*(f"{value:,.2f}" if isinstance(value, float) else str(value) for value in row.values()))
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["tiny", "smollm2_135m"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 32, 64])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--soak", type=int, metavar="STEPS", help="only: memory over this many training steps")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--peak", nargs=5, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.peak:
        contender, model, dtype, count, length = arguments.peak
        peak_of_update(contender, model, dtype, int(count), int(length))
        return
    if arguments.soak:
        show(f"{arguments.soak} steps of tiny with sampling", soak(arguments.soak))
        return
    rows = [
        row
        for m in arguments.models
        for d in arguments.dtypes
        for row in measure(m, d, arguments.batches, arguments.rounds)
    ]
    load = os.getloadavg()[0]
    show(f"tokens a second of CPU time, one thread (load {load:.1f} of {os.cpu_count()} CPUs at the end)", rows)
    peaks = [] if arguments.no_memory else memory(arguments.models)
    if peaks:
        show("peak resident memory of one update", peaks)
    if arguments.json:
        arguments.json.write_text(json.dumps({"rates": rows, "memory": peaks}, indent=2))


if __name__ == "__main__":
    main()
