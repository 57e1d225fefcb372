r"""Verdicts, the same in every thread, event loop and process."""

import asyncio
import json
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from retool.errors import InfrastructureError, UserError
from retool.reward import Scorer, Verdict, VerdictReason, score, symbolic
from retool.reward.__main__ import main as explain
from retool.reward.compare import CORRECT
from retool.reward.questions import Question, QuestionKind

REPOSITORY = Path(__file__).parents[2]
ANSWERS = [json.loads(line) for line in Path(__file__).with_name("answers.jsonl").read_text().splitlines()]
WRONG = {VerdictReason.WRONG_SYMBOLIC}
SYMBOLIC = (r"\boxed{\frac{1}{\sqrt2}}", r"\frac{\sqrt2}{2}")


@pytest.fixture(scope="module")
def scorer():
    with Scorer() as opened:
        yield opened


@pytest.mark.parametrize("kind", sorted({case["kind"] for case in ANSWERS}))
def test_answers(scorer, kind):
    cases = [case for case in ANSWERS if case["kind"] == kind]
    verdicts = [scorer.score(f"The answer is \\boxed{{{case['answer']}}}", case["gold"]) for case in cases]
    judged = zip(cases, verdicts, strict=True)
    assert not [(case, verdict) for case, verdict in judged if verdict.correct != case["correct"]]


def test_a_verdict_says_everything(scorer):
    assert scorer.score(r"so \boxed{ 42.0 }", "42") == Verdict(1.0, True, True, VerdictReason.CORRECT_NUMBER, "42.0")
    assert scorer.score("so 42", "42") == Verdict(-1.0, False, False, VerdictReason.NO_BOX, None)
    assert scorer.score(r"\boxed{\ }", "42") == Verdict(-1.0, False, False, VerdictReason.EMPTY_BOX, None)


@pytest.mark.parametrize(
    ("gold", "answer", "reason"),
    [
        ("5", "5", VerdictReason.CORRECT_TEXT),
        ("5", "5.0", VerdictReason.CORRECT_NUMBER),
        (r"\sqrt{8}", r"2\sqrt{2}", VerdictReason.CORRECT_SYMBOLIC),
        ("5", "6", VerdictReason.WRONG_NUMBER),
        (r"\sqrt{8}", r"3\sqrt{2}", VerdictReason.WRONG_SYMBOLIC),
        ("5", "5, 6", VerdictReason.WRONG_KIND),
        (r"\text{even}", r"\text{odd}", VerdictReason.WRONG_TEXT),
        ("5", r"\foo", VerdictReason.UNPARSEABLE),
        ("5", "9^{9^{9^9}}", VerdictReason.TOO_COMPLEX),
        ("5", r"\sum_{k=1}^{2} k", VerdictReason.TOO_COMPLEX),
    ],
)
def test_reasons(scorer, gold, answer, reason):
    assert scorer.score(f"\\boxed{{{answer}}}", gold).reason is reason


def test_rewards_and_window_are_configurable():
    with Scorer(right=2.0, wrong=0.0, answer_window_chars=20) as custom:
        assert custom.score(r"\boxed{5}", "5").reward == 2.0
        assert custom.score(r"\boxed{5}" + "x" * 20, "5").reward == 0.0


@pytest.mark.parametrize("key", ["workers", "time_limit_s", "memory_mb", "answer_window_chars"])
def test_user_mistakes_name_the_key(key):
    with pytest.raises(UserError, match=f"reward.{key}"):
        Scorer(**{key: 0})


@pytest.mark.parametrize(
    "gold", ["5", "27.0", "1,200", r"\{1,2\}", r"\text{Tuesday}", "B", r"[0,\infty)", "x=3", r"\pi"]
)
def test_usable_golds(scorer, gold):
    assert scorer.check_gold(gold) is None
    assert scorer.score(f"\\boxed{{{gold}}}", gold).correct


@pytest.mark.parametrize("gold", ["", "  ", r"\foo{bar}", "1/0", "9^{9^{9^9}}", r"5\text{ if }n>2", "3 4", "$$"])
def test_unusable_golds(scorer, gold):
    assert "The gold answer" in (scorer.check_gold(gold) or "")


def test_a_gold_that_nothing_can_read_is_never_a_wrong_answer(scorer):
    for gold in (" ", r"\foo{bar}"):
        with pytest.raises(UserError, match="gold"):
            scorer.score(r"\boxed{5}", gold)


def test_golds_beyond_the_grammar_go_to_math_verify(scorer):
    gold = r"\mathbb{R}\setminus\{1\}"
    assert scorer.check_gold(gold) is None
    assert scorer.score(r"\boxed{\mathbb{R} \setminus \{1.0\}}", gold).reason is VerdictReason.CORRECT_SYMBOLIC
    assert scorer.score(r"\boxed{\mathbb{R} \setminus \{2\}}", gold).reason is VerdictReason.WRONG_SYMBOLIC


async def test_the_event_loop_runs_on_while_a_worker_is_busy():
    turns = 0

    async def count():
        nonlocal turns
        while True:
            await asyncio.sleep(0.01)
            turns += 1

    with Scorer(time_limit_s=0.5) as busy:
        counting = asyncio.create_task(count())
        verdict = await busy.ascore(r"\boxed{9^{9^{9^9}}}", r"\mathbb{R}\setminus\{1\}")
        counting.cancel()
    assert verdict.reason is VerdictReason.TIMEOUT and turns > 5


BOMB = Question(QuestionKind.LIBRARY, (r"\mathbb{R}\setminus\{1\}",), ("9^{9^{9^9}}",))


def test_a_worker_that_hangs_is_killed_and_replaced():
    with Scorer(time_limit_s=0.3) as fresh:
        verdict = fresh.score(r"\boxed{9^{9^{9^9}}}", r"\mathbb{R}\setminus\{1\}")
        assert (verdict.reason, verdict.reward, verdict.valid_format) == (VerdictReason.TIMEOUT, -1.0, True)
        assert fresh.score(*SYMBOLIC).correct
        assert fresh.score(r"\boxed{9^{9^{9^9}}}", r"\mathbb{R}\setminus\{1\}").reason is VerdictReason.TIMEOUT


def test_memory_is_limited_and_running_out_is_an_outcome(monkeypatch):
    question = Question(QuestionKind.LIBRARY, (r"\mathbb{R}\setminus\{1\}",), ("2^{2^{40}}",))
    with Scorer(memory_mb=300, time_limit_s=20) as fresh:
        assert fresh._pool.run(lambda ask: ask(question)).result() not in CORRECT
        assert fresh.score(*SYMBOLIC).correct

    def exhausted(*_):
        raise MemoryError

    monkeypatch.setattr(symbolic, "equal", exhausted)
    question = Question(QuestionKind.EQUAL, ("1",), ("1",))
    assert symbolic.answer_question(question) == VerdictReason.OUT_OF_MEMORY


def test_a_worker_that_dies_on_a_question_is_an_outcome_and_one_that_dies_idle_is_nothing():
    with Scorer(time_limit_s=20) as fresh:
        worker = fresh._pool._workers[0]
        worker._process.kill()
        worker._process.wait()
        assert fresh.score(r"\boxed{\mathbb{R}\setminus\{2\}}", r"\mathbb{R}\setminus\{1\}").reason in WRONG
        used = worker._cpu_seconds()
        dying = fresh._pool.run(lambda ask: ask(BOMB))
        while worker._cpu_seconds() < used + 0.1:
            time.sleep(0.01)
        worker._process.kill()
        assert dying.result() == VerdictReason.WORKER_DIED
        assert fresh.score(r"\boxed{2\sqrt2}", r"\sqrt8").correct


def test_a_scorer_that_cannot_run_raises(monkeypatch):
    monkeypatch.setattr("retool.reward.workers.sys.executable", "/bin/false")
    broken = Scorer()
    with pytest.raises(InfrastructureError, match="does not start with /bin/false"):
        broken.start()
    with pytest.raises(InfrastructureError):
        broken.score(*SYMBOLIC)
    assert broken.score(r"\boxed{5}", "5").correct
    monkeypatch.setattr("retool.reward.workers.sys.executable", "/no/such/python")
    with pytest.raises(InfrastructureError, match="cannot be started"):
        broken.score(r"\boxed{2\sqrt2}", r"\sqrt8")


def test_closing_fails_what_waits_and_leaves_no_process():
    fresh = Scorer(time_limit_s=60).start()
    pid = fresh._pool._workers[0]._process.pid
    errors = []

    def wait():
        try:
            fresh._pool.run(lambda ask: ask(BOMB)).result()
        except InfrastructureError as error:
            errors.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.2)
    fresh.close()
    waiting.join()
    assert len(errors) == 1 and not Path(f"/proc/{pid}").exists()
    with pytest.raises(InfrastructureError, match="closed"):
        fresh.score(*SYMBOLIC)


def score_in_child(scorer, connection):
    connection.send(scorer.score(*SYMBOLIC).reason)


def test_a_forked_child_has_workers_of_its_own(scorer):
    assert scorer.score(r"\boxed{2\sqrt2}", r"\sqrt8").correct
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=score_in_child, args=(scorer, theirs))
    child.start()
    assert ours.poll(60) and ours.recv() is VerdictReason.CORRECT_SYMBOLIC
    child.join()
    assert scorer.score(r"\boxed{\sqrt{27}}", r"3\sqrt3").correct


def test_a_short_lived_thread_does_not_take_the_worker_with_it():
    with Scorer() as fresh:
        results = []
        for number in (2, 3):
            text = rf"\boxed{{{number}\sqrt{{2}}}}"
            thread = threading.Thread(target=lambda text=text: results.append(fresh.score(text, r"\sqrt{8}").reason))
            thread.start()
            thread.join()
        assert results == [VerdictReason.CORRECT_SYMBOLIC, VerdictReason.WRONG_SYMBOLIC]


def test_the_default_scorer_and_imports_of_the_parent():
    program = (
        "import sys\nfrom retool.reward import score\n"
        r"print(score(r'\boxed{2\sqrt2}', r'\sqrt8').correct, {'sympy', 'math_verify', 'mpmath'} & set(sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert result.stdout == "True set()\n" and not result.stderr
    assert score(r"\boxed{5}", "5").correct


def test_workers_end_with_a_killed_parent():
    program = (
        "from retool.reward import Scorer\nimport time\ns = Scorer().start()\n"
        "print(s._pool._workers[0]._process.pid, flush=True)\ntime.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    pid = int(parent.stdout.readline())
    os.kill(pid, 0)
    parent.kill()
    parent.communicate()
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
            return
        time.sleep(0.02)
    assert not Path(f"/proc/{pid}").exists()


def test_explaining_a_verdict(capsys):
    assert explain(["--text", r"so \boxed{x = 12\text{ cm}}", "--gold", "24/2"]) == 0
    output = capsys.readouterr().out
    assert "correct_number" in output and "with the unit cm" in output
    assert explain(["--text", r"so \boxed{11}", "--gold", "12"]) == 1
    assert explain(["--text", r"so \boxed{11}", "--gold", " "]) == 2
