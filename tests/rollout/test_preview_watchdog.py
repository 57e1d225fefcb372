"""The preview of a dialogue, and the watchdog's report."""

import asyncio
import logging

from rollout_fakes import CALL, protocol, text

from retool.rollout.preview import SegmentKind, preview
from retool.rollout.watchdog import Watchdog


def test_preview_shows_who_writes_what():
    call = "```python\nprint(6 * 7)\n```"
    segments = preview(protocol(), "2")
    assert [(segment.kind, segment.text) for segment in segments] == [
        (SegmentKind.PROMPT, "Q2<|end|>"),
        (SegmentKind.SAMPLED, f"{call}<|end|>"),
        (SegmentKind.OBSERVATION, "R42<|end|>"),
        (SegmentKind.SAMPLED, "The answer is \\boxed{42}.<|end|>"),
    ]
    assert "".join(text(segment.tokens) for segment in segments) == f"Q2|{call}|R42|The answer is \\boxed{{42}}.|"
    assert protocol().parse(call).code == "print(6 * 7)"
    assert CALL not in call


def test_preview_of_text_only_has_no_call():
    kinds = [segment.kind for segment in preview(protocol(mode="text_only"), "2")]
    assert kinds == [SegmentKind.PROMPT, SegmentKind.SAMPLED]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_watchdog_reports_the_oldest_wait_only_when_it_is_long():
    clock = Clock()
    watchdog = Watchdog(patience_s=10, clock=clock)
    with watchdog.waiting("the sampler for a"):
        clock.now = 5
        with watchdog.waiting("the sandbox for b"):
            clock.now = 9
            assert watchdog.report() is None
            clock.now = 12
            assert watchdog.report() == ("1 of 2 waits are long; the oldest, the sampler for a, takes 12 s so far.")
    assert watchdog.report() is None


async def test_watchdog_logs_until_cancelled(caplog):
    watchdog = Watchdog(patience_s=0)
    with caplog.at_level(logging.WARNING), watchdog.waiting("the sampler for a"):
        task = asyncio.create_task(watchdog.run())
        for _ in range(20):
            await asyncio.sleep(0)
        task.cancel()
    assert "the oldest, the sampler for a," in caplog.messages[0]
