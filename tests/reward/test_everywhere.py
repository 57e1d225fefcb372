"""The same verdicts wherever the scorer is called: threads, event loops, child processes, hash seeds."""

import asyncio
import multiprocessing
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from reward_cases import given_cases, misjudged, own_cases
from reward_everywhere import lines, send_lines

from retool.reward import Scorer

REPOSITORY = Path(__file__).parents[2]
CASES = own_cases() + given_cases()
KINDS = sorted({case.kind for case in CASES})


@pytest.fixture(scope="module")
def scorer():
    with Scorer() as opened:
        yield opened


@pytest.fixture(scope="module")
def expected():
    return lines()


@pytest.mark.parametrize("kind", KINDS)
def test_labels(scorer, kind):
    cases = [case for case in CASES if case.kind == kind]
    assert not misjudged(cases, [scorer.score(case.text, case.gold) for case in cases])


def test_another_thread():
    with Scorer() as fresh, ThreadPoolExecutor(1) as thread:
        assert not misjudged(CASES, list(thread.map(lambda case: fresh.score(case.text, case.gold), CASES)))


def test_eight_threads_at_once():
    with Scorer(workers=2) as fresh, ThreadPoolExecutor(8) as threads:
        assert not misjudged(CASES, list(threads.map(lambda case: fresh.score(case.text, case.gold), CASES)))


async def test_asyncio():
    with Scorer() as fresh:
        verdicts = await asyncio.gather(*[fresh.ascore(case.text, case.gold) for case in CASES])
    assert not misjudged(CASES, verdicts)


def test_an_event_loop_in_another_thread():
    async def all_of_them(fresh):
        return [await fresh.ascore(case.text, case.gold) for case in CASES[::4]]

    with Scorer() as fresh, ThreadPoolExecutor(1) as thread:
        verdicts = thread.submit(lambda: asyncio.run(all_of_them(fresh))).result()
    assert not misjudged(CASES[::4], verdicts)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_child_processes(method, expected):
    context = multiprocessing.get_context(method)
    ours, theirs = context.Pipe()
    child = context.Process(target=send_lines, args=(theirs,))
    child.start()
    assert ours.poll(120) and ours.recv() == expected
    child.join()
    assert child.exitcode == 0


@pytest.mark.parametrize("seed", range(6))
def test_hash_seeds(seed, expected):
    result = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("reward_everywhere.py"))],
        cwd=REPOSITORY,
        env=os.environ | {"PYTHONHASHSEED": str(seed), "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.splitlines() == expected


LONG = [
    ("\\boxed{" * 5000, False),
    ("\\boxed{8}" * 3000, True),
    ("{" * 50_000 + "\\boxed{8}", True),
    ("}" * 50_000 + "\\boxed{8}", True),
    ("<tool_call>" * 5000 + "\\boxed{8}", False),
    ("```\n" * 5001 + "\\boxed{8}", False),
    ("x" * 200_000 + "\\boxed{8}", True),
    ("\\" * 10_001 + "boxed{8}", True),
    ("$" * 10_000 + "\\boxed{8}", True),
]


@pytest.mark.parametrize(("text", "correct"), LONG, ids=range(len(LONG)))
def test_long_texts(scorer, text, correct):
    assert scorer.score(text, "8").correct is correct
