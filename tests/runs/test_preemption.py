"""Signals are put off to a step boundary, and then do what they would have done."""

import asyncio
import os
import signal
import subprocess
import sys

import pytest

from retool.runs.preemption import Preempted, Preemption


@pytest.fixture
def handlers():
    """Restores whatever a test installs."""
    saved = {number: signal.getsignal(number) for number in (signal.SIGUSR2, signal.SIGTERM)}
    yield
    for number, handler in saved.items():
        signal.signal(number, handler)


def test_inside_submitit_the_requeue_signal_waits_for_the_hand_over(handlers):
    calls = []
    signal.signal(signal.SIGUSR2, lambda number, frame: calls.append(number))  # as submitit installs its own
    with Preemption() as preemption:
        assert not preemption.requested
        os.kill(os.getpid(), signal.SIGUSR2)
        assert preemption.requested and preemption.must_leave and calls == []
        with pytest.raises(Preempted):
            preemption.checkpointed()
    assert calls == []
    preemption.hand_over()
    assert calls == [signal.SIGUSR2]
    preemption.hand_over()
    assert calls == [signal.SIGUSR2]


def test_inside_submitit_a_term_is_saved_for_and_then_ignored(handlers):
    calls = []
    signal.signal(signal.SIGTERM, lambda number, frame: calls.append(number))  # submitit's bypass
    with Preemption() as preemption:
        os.kill(os.getpid(), signal.SIGTERM)
        assert preemption.requested and not preemption.must_leave
        preemption.checkpointed()
        assert calls == [signal.SIGTERM] and not preemption.requested


def test_a_requeue_signal_after_an_ignored_term_counts(handlers):
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    signal.signal(signal.SIGUSR2, lambda number, frame: None)
    with Preemption() as preemption:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGUSR2)
        assert preemption.must_leave


def test_handlers_come_back(handlers):
    def mine(number, frame):
        return None

    signal.signal(signal.SIGUSR2, mine)
    with Preemption():
        assert signal.getsignal(signal.SIGUSR2) is not mine
    assert signal.getsignal(signal.SIGUSR2) is mine


async def test_long_work_is_given_up(handlers):
    ended = []

    async def work() -> None:
        os.kill(os.getpid(), signal.SIGUSR2)
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    with Preemption() as preemption:
        with pytest.raises(Preempted):
            await preemption.unless_leaving(work())
        preemption._pending = None
    assert ended == ["cancelled"]


async def test_work_that_ends_gives_its_result_or_error():
    async def result() -> int:
        return 3

    async def error() -> int:
        raise KeyError("x")

    with Preemption() as preemption:
        assert await preemption.unless_leaving(result()) == 3
        with pytest.raises(KeyError):
            await preemption.unless_leaving(error())


OUTSIDE = """
import os, signal
from retool.runs.preemption import Preemption, Preempted
try:
    with Preemption() as preemption:
        os.kill(os.getpid(), signal.SIGTERM)
        print("saved", flush=True)
        preemption.checkpointed()
except Preempted:
    print("closed", flush=True)
preemption.hand_over()
print("not reached", flush=True)
"""


def test_outside_submitit_the_process_ends_by_the_signal():
    done = subprocess.run([sys.executable, "-c", OUTSIDE], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, "saved\nclosed\n")
