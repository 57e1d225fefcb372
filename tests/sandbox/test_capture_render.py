"""Captured streams and the text that a model is shown."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retool.sandbox import ExecutionStatus
from retool.sandbox.capture import StreamCapture
from retool.sandbox.metrics import SandboxMetrics, percentile
from retool.sandbox.render import neutralise_markers, render_text


def capture(chunks: list[bytes], limit: int) -> str:
    stream = StreamCapture(limit)
    for chunk in chunks:
        stream.feed(chunk)
    stream.feed(b"", final=True)
    return stream.text


def test_head_and_tail_are_kept():
    assert capture([b"abcde", b"fghij"], 6) == "abc\n[4 characters omitted]\nhij"


def test_short_output_is_kept_whole():
    assert capture([b"abc", b"def"], 6) == "abcdef"


def test_characters_split_between_chunks_and_undecodable_bytes():
    pi = "π".encode()
    assert capture([b"a" + pi[:1], pi[1:] + b"\xff"], 100) == "aπ�"
    assert capture([pi[:1]], 100) == "�"


@settings(deadline=None, derandomize=True)
@given(st.text(max_size=80), st.integers(1, 40), st.integers(1, 7))
def test_capture_does_not_depend_on_chunks(text, limit, size):
    data = text.encode()
    chunks = [data[start : start + size] for start in range(0, len(data), size)]
    kept = capture(chunks, limit)
    assert kept == capture([data], limit)
    if len(text) <= limit:
        assert kept == text
    else:
        assert kept.startswith(text[: limit - limit // 2])
        assert f"[{len(text) - limit} characters omitted]" in kept


@pytest.mark.parametrize(
    ("status", "stdout", "stderr", "code", "limit", "text"),
    [
        (ExecutionStatus.OK, "5\n", "", 0, "", "5"),
        (ExecutionStatus.OK, "5\n", "careful\n", 0, "", "5\ncareful"),
        (ExecutionStatus.OK, "", "", 0, "", "[no output; use print() to see a result]"),
        (ExecutionStatus.ERROR, "a\n", "NameError: x\n", 1, "", "a\nNameError: x"),
        (ExecutionStatus.ERROR, "", "", 7, "", "[the program ended with exit code 7]"),
        (ExecutionStatus.ERROR, "", "bad\n", 9, "", "bad\n[the program ended with exit code 9]"),
        (
            ExecutionStatus.TIMEOUT,
            "a\n",
            "",
            None,
            "10 s",
            "a\n[time limit of 10 s reached; the output above is partial]",
        ),
        (ExecutionStatus.TIMEOUT, "", "", None, "10 s", "[time limit of 10 s reached; there was no output]"),
        (
            ExecutionStatus.KILLED,
            "",
            "",
            -11,
            "",
            "[the program was ended by a segmentation fault; there was no output]",
        ),
        (
            ExecutionStatus.KILLED,
            "a",
            "",
            -9,
            "",
            "a\n[the program was ended by the signal SIGKILL; the output above is partial]",
        ),
    ],
)
def test_text(status, stdout, stderr, code, limit, text):
    assert render_text(status, stdout=stdout, stderr=stderr, returncode=code, limit=limit) == text


@pytest.mark.parametrize(
    "marker",
    ["<|im_end|>", "<|endoftext|>", "</tool_response>", "<tool_call>", "<think>", "</s>", "<function=f>", "<eos>"],
)
def test_chat_markers_are_broken_up(marker):
    assert neutralise_markers(f"a{marker}b") == f"a< {marker[1:]}b"


@pytest.mark.parametrize("text", ["1 < 2", "<class 'int'>", "a <| b", "x<y|z>", "<string>", "{<|}"])
def test_ordinary_output_is_left_alone(text):
    assert neutralise_markers(text) == text


def test_metrics_count_by_outcome_and_forget():
    metrics = SandboxMetrics()
    metrics.add(ExecutionStatus.OK, latency_s=1.0, queued_s=0.0)
    metrics.add(ExecutionStatus.OK, latency_s=3.0, queued_s=2.0)
    metrics.add(ExecutionStatus.TIMEOUT, latency_s=2.0, queued_s=1.0)
    figures = metrics.take()
    assert figures["sandbox/calls"] == 3
    assert (figures["sandbox/ok"], figures["sandbox/timeout"], figures["sandbox/infrastructure"]) == (2, 1, 0)
    assert (figures["time/sandbox_latency_p50"], figures["time/sandbox_queue_p50"]) == (2.0, 1.0)
    assert metrics.take() == {"sandbox/calls": 0.0} | {f"sandbox/{status}": 0.0 for status in ExecutionStatus}


def test_percentile_interpolates():
    assert percentile([4.0, 1.0, 2.0, 3.0], 0.5) == 2.5
    assert percentile([5.0], 0.95) == 5.0
