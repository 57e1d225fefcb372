"""Builds the packaged model `tiny` from nothing: tokenizer, chat template, cold start, evaluation, manifest.

    OMP_NUM_THREADS=1 python scripts/build_tiny.py --out retool/engine/assets/tiny

Everything is drawn from `--seed`. The cold start teaches two behaviours on arithmetic, half of the traces each: call the
code interpreter and report what it printed, or answer at once with a guess, a number of the right length and random digits. So the
model knows how to call the tool and does not know when. Held-out problems never enter a trace.
"""

import argparse
import hashlib
import json
import math
import platform
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import tokenizers
import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from retool.data.arithmetic import ArithmeticSource, Operation, arithmetic_problem, draw_operands, is_held_out
from retool.data.problem import Problem

DEFAULT_OUT = Path(__file__).resolve().parent.parent / "retool" / "engine" / "assets" / "tiny"
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TOOL_TOKENS = (
    "<tool_call>",
    "</tool_call>",
    "<function=code_interpreter>",
    "</function>",
    "<parameter=code>",
    "</parameter>",
    "<tool_response>",
    "</tool_response>",
)
WORD_TOKENS = (
    "system",
    "user",
    "assistant",
    "print(",
    "\\boxed{",
    "What is ",
    "Compute ",
    "Find the ",
    "Multiply ",
    "Add ",
    "Subtract ",
    "product of ",
    "sum of ",
    "difference ",
    " times ",
    " plus ",
    " minus ",
    " and ",
    " by ",
    " to ",
    " from ",
)
CHAT_TEMPLATE = r"""
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.content is not string and message.content is not none and message.content is defined %}
        {{- raise_exception('The content of a message must be text.') }}
    {%- endif %}
    {%- if message.role == 'tool' %}
        {{- '<|im_start|>user\n<tool_response>\n' + content + '\n</tool_response><|im_end|>\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\n' + content }}
        {%- for tool_call in message.tool_calls or [] %}
            {%- set call = tool_call.function if tool_call.function is defined else tool_call %}
            {{- '\n' if content or not loop.first }}
            {{- '<tool_call>\n<function=' + call.name + '>\n' }}
            {%- for name, value in call.arguments | items %}
                {{- '<parameter=' + name + '>\n' + (value if value is string else value | tojson) + '\n</parameter>\n' }}
            {%- endfor %}
            {{- '</function>\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role in ('system', 'user') %}
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>\n' }}
    {%- else %}
        {{- raise_exception('Unknown role: ' + message.role) }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
""".lstrip()
SYMBOLS = {Operation.ADD: "+", Operation.SUBTRACT: "-", Operation.MULTIPLY: "*"}


def build_tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte, and one for each special token, piece of the tool call and frequent word: any text round-trips."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={symbol: i for i, symbol in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL_TOKENS])
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in TOOL_TOKENS + WORD_TOKENS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=1024,
    )


def build_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """Random weights of about 0.86 M parameters, from torch's global seed."""
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    return Qwen3ForCausalLM(config)


@dataclass(frozen=True, slots=True)
class Trace:
    """One example. `sampled[i]` says whether the policy writes `tokens[i]`: only those are learned."""

    tokens: tuple[int, ...]
    sampled: tuple[bool, ...]


class Tracer:
    """Writes traces token by token as a rollout would: prompt, sampled turn, observation, sampled turn."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, rng: random.Random) -> None:
        self._tokenizer = tokenizer
        self._rng = rng

    def tool_trace(self, problem: Problem, code: str) -> Trace:
        call = call_text(code)
        return self._trace(
            [
                (prompt_text(problem.question), False),
                (call + "<|im_end|>", True),
                (observation_text(problem.answer), False),
                (answer_text(problem.answer) + "<|im_end|>", True),
            ]
        )

    def guess_trace(self, problem: Problem) -> Trace:
        return self._trace(
            [(prompt_text(problem.question), False), (answer_text(self._guess(problem.answer)) + "<|im_end|>", True)]
        )

    def _guess(self, answer: str) -> str:
        """A wrong number with as many digits as `answer`."""
        sign, digits = ("-", answer[1:]) if answer.startswith("-") else ("", answer)
        while True:
            drawn = [int(self._rng.random() * 9) + 1] + [int(self._rng.random() * 10) for _ in digits[1:]]
            guess = sign + "".join(map(str, drawn))
            if guess != answer:
                return guess

    def _trace(self, parts: Sequence[tuple[str, bool]]) -> Trace:
        encoded = self._tokenizer.backend_tokenizer.encode_batch([text for text, _ in parts], add_special_tokens=False)
        tokens = [token for part in encoded for token in part.ids]
        sampled = [by_policy for part, (_, by_policy) in zip(encoded, parts, strict=True) for _ in part.ids]
        return Trace(tuple(tokens), tuple(sampled))


def prompt_text(question: str) -> str:
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


def call_text(code: str) -> str:
    body = f"<function=code_interpreter>\n<parameter=code>\n{code}\n</parameter>\n</function>"
    return f"<tool_call>\n{body}\n</tool_call>"


def observation_text(output: str) -> str:
    """What follows a sampled turn that ended itself."""
    return f"\n<|im_start|>user\n<tool_response>\n{output}\n</tool_response><|im_end|>\n<|im_start|>assistant\n"


def answer_text(answer: str) -> str:
    return f"\\boxed{{{answer}}}"


def training_problems(rng: random.Random) -> Iterator[tuple[Problem, str]]:
    """Endless training problems with the code that solves each; nothing from the held-out side."""
    while True:
        a, b = draw_operands(rng, (2, 4))
        problem = arithmetic_problem(Operation.MULTIPLY, a, b)
        if not is_held_out(problem.id):
            first, second = re.findall(r"\d+", problem.question)
            yield problem, f"print({first}*{second})"


def batches(tokenizer: PreTrainedTokenizerFast, seed: int, size: int) -> Iterator[tuple[list[Trace], list[Trace]]]:
    """Endless batches: `size // 2` traces with the tool and as many guesses, of different problems."""
    rng = random.Random(f"{seed}/traces")
    tracer = Tracer(tokenizer, rng)
    problems = training_problems(rng)
    while True:
        yield (
            [tracer.tool_trace(*next(problems)) for _ in range(size // 2)],
            [tracer.guess_trace(next(problems)[0]) for _ in range(size // 2)],
        )


def loss_sum(model: Qwen3ForCausalLM, traces: Sequence[Trace], pad: int) -> tuple[torch.Tensor, int]:
    """Summed cross entropy over the sampled tokens, and their number."""
    width = max(len(trace.tokens) for trace in traces)
    tokens = torch.full((len(traces), width), pad)
    targets = torch.full((len(traces), width), -100)
    for row, trace in enumerate(traces):
        ids = torch.tensor(trace.tokens)
        tokens[row, : len(ids)] = ids
        targets[row, : len(ids)] = torch.where(torch.tensor(trace.sampled), ids, -100)
    targets = targets[:, 1:]
    hidden = model.model(input_ids=tokens[:, :-1], use_cache=False).last_hidden_state
    kept = targets != -100
    logits = model.lm_head(hidden[kept])
    loss = torch.nn.functional.cross_entropy(logits, targets[kept], reduction="sum")
    return loss, int(kept.sum())


def train(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, args: argparse.Namespace) -> float:
    """AdamW with warm-up and a cosine to zero. Returns the last step's loss per token."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate, betas=(0.9, 0.98), weight_decay=0.05)
    warm_up = 50
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min((step + 1) / warm_up, 0.5 * (1 + math.cos(math.pi * step / args.steps))),
    )
    model.train()
    started = time.monotonic()
    value = math.nan
    for step, (calls, guesses) in zip(range(args.steps), batches(tokenizer, args.seed, args.batch_size), strict=False):
        optimizer.zero_grad()
        parts = [loss_sum(model, traces, tokenizer.pad_token_id) for traces in (calls, guesses)]
        loss = (parts[0][0] + parts[1][0]) / (parts[0][1] + parts[1][1])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        value = loss.item()
        if step % 50 == 0 or step == args.steps - 1:
            per = [part.item() / count for part, count in parts]
            print(f"step {step} loss {value:.4f} call {per[0]:.4f} guess {per[1]:.4f} {time.monotonic() - started:.0f} s", flush=True)
    return value


def run_code(code: str) -> str:
    """Standard output of `code` in a Python process of its own, errors included."""
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, timeout=30, check=False)
    return (done.stdout + done.stderr).rstrip("\n")


@torch.no_grad()
def sample(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, texts: Sequence[str], max_new: int) -> list[str]:
    """One sample at temperature 1 a text, up to the end of the turn."""
    batch = tokenizer(list(texts), padding=True, padding_side="left", return_tensors="pt", add_special_tokens=False)
    output = model.generate(
        input_ids=batch["input_ids"], attention_mask=batch["attention_mask"],
        do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=max_new,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )
    width = batch["input_ids"].shape[1]
    return [tokenizer.decode(row[width:]).split("<|im_end|>")[0] for row in output]


def evaluate(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, problems: Sequence[Problem], seed: int) -> dict[str, int]:
    """Counts over one sampled trajectory a problem."""
    torch.manual_seed(seed)
    model.eval()
    prompts = [prompt_text(problem.question) for problem in problems]
    first = sample(model, tokenizer, prompts, 48)
    codes = [re.fullmatch(re.escape(call_text("\0")).replace("\0", "(.*)"), text, re.DOTALL) for text in first]
    called = [i for i, match in enumerate(codes) if match]
    seconds = sample(
        model,
        tokenizer,
        [prompts[i] + first[i] + "<|im_end|>" + observation_text(run_code(codes[i][1])) for i in called],
        24,
    )
    final = list(first)
    for i, text in zip(called, seconds, strict=True):
        final[i] = text
    right = [text == answer_text(problem.answer) for text, problem in zip(final, problems, strict=True)]
    for i in called:
        if not right[i]:
            print(problems[i].question, codes[i][1], final[i])
    boxed = sum(bool(re.fullmatch(r"\\boxed\{-?\d+\}", text)) for text in final)
    return {
        "problems": len(problems), "calls": len(called), "boxed": boxed, "correct": sum(right),
        "correct_with_call": sum(right[i] for i in called),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    tokenizer = build_tokenizer()
    model = build_model(tokenizer)
    print(sum(p.numel() for p in model.parameters()), len(tokenizer))
    t = time.time()
    train(model, tokenizer, args)
    print(time.time() - t)
    model.save_pretrained(args.out)
    tokenizer.save_pretrained(args.out)
    holdout = ArithmeticSource(holdout=256).load().holdout
    for s in range(2):
        print(evaluate(model, tokenizer, holdout, s))


if __name__ == "__main__":
    main()
