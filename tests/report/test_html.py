"""The page of a run: its figures are the files', hostile text stays text, and half a run gives half a page."""

import gzip
import json
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from retool.report.curves import Series, line_chart
from retool.report.html import write_report

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\u2028\ud800"


def trajectory(step: int, text: str, *, correct: bool) -> dict[str, object]:
    return {
        "step": step,
        "problem": {"id": "p/1", "question": f"What is 6 * 7? {text}", "answer": "42", "data_source": "p"},
        "sample_index": 0,
        "stop_reason": "answered",
        "final_text": text,
        "verdict": {"reward": 1.0 if correct else -1.0, "correct": correct, "reason": text, "extracted": text},
        "advantage": 0.5,
        "error": None,
        "turns": [
            {
                "prompt_tokens": [1, 2, 3],
                "prompt_text": text,
                "completion_tokens": [4, 5],
                "text": text,
                "observation_tokens": [6],
                "observation_text": text,
            }
        ],
    }


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    evaluation = {"eval/accuracy": 0.5, "eval/accuracy_low": 0.4, "eval/accuracy_high": 0.6, "eval/count": 256}
    rows = [{"step": 0, "reward/mean": -0.25, **evaluation}, {"step": 1, "reward/mean": 0.75}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"step": 2, "rew')
    before = {**evaluation, "eval/tool_call_rate": 0.5}
    after = {**before, "eval/accuracy": 0.9375, "eval/accuracy_low": 0.9, "eval/accuracy_high": 0.97}
    result = {"kind": "train", "name": HOSTILE, "steps": 2, "seconds": 12.3, "eval": {"before": before, "after": after}}
    (tmp_path / "result.json").write_text(json.dumps(result))
    (tmp_path / "status.json").write_text(json.dumps({"state": "done", "step": 2, "error": HOSTILE}))
    (tmp_path / "config.yaml").write_text("ppo:\n  group_size: 8\n")
    (tmp_path / "trajectories").mkdir()
    for step in (0, 1):
        lines = [json.dumps(trajectory(step, HOSTILE, correct=correct)) for correct in (True, False, True)]
        with gzip.open(tmp_path / "trajectories" / f"step-{step:04d}.jsonl.gz", "wt") as file:
            file.write("\n".join(lines) + "\n")
    return tmp_path


class Elements(HTMLParser):
    """Counts elements and collects attributes that could run or load something."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.dangerous: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.dangerous += [name for name, _ in attrs if name.startswith("on") or name in ("src", "href")]


def test_figures_are_those_of_the_files(run_dir: Path) -> None:
    page = write_report(run_dir).read_text("utf-8")
    assert "0.500 (95 % interval 0.400 to 0.600; 256 problems)" in page
    assert "0.938 (95 % interval 0.900 to 0.970; 256 problems)" in page
    assert "mean reward: -0.25 at step 0" in page and "mean reward: 0.75 at step 1" in page
    assert "group_size: 8" in page
    assert page.count('class="trajectory"') == 6


def test_model_text_is_never_markup(run_dir: Path) -> None:
    elements = Elements(write_report(run_dir).read_text("utf-8"))
    assert elements.tags.count("script") == 1
    assert "img" not in elements.tags
    assert elements.dangerous == []


def test_the_page_is_the_same_each_time(run_dir: Path) -> None:
    assert write_report(run_dir).read_bytes() == write_report(run_dir).read_bytes()


@pytest.mark.parametrize("missing", ["metrics.jsonl", "result.json", "status.json", "config.yaml", "trajectories"])
def test_a_missing_file_leaves_out_what_it_would_show(run_dir: Path, missing: str) -> None:
    path = run_dir / missing
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert "</html>" in write_report(run_dir).read_text("utf-8")


def test_half_written_files(run_dir: Path) -> None:
    file = run_dir / "trajectories" / "step-0001.jsonl.gz"
    file.write_bytes(file.read_bytes()[:-20])
    (run_dir / "result.json").write_text('{"kind": "tra')
    assert "step 0" in write_report(run_dir).read_text("utf-8")


def test_an_empty_directory(tmp_path: Path) -> None:
    page = write_report(tmp_path).read_text("utf-8")
    assert "No step has been recorded" in page and "No trajectory has been recorded" in page


def test_a_bad_line_costs_only_itself_and_a_failure_is_not_called_wrong(run_dir: Path) -> None:
    failed = {**trajectory(0, "failed", correct=False), "verdict": None}
    lines = ["[" * 5000, "not json", json.dumps(failed), json.dumps(trajectory(0, "fine", correct=True))]
    with gzip.open(run_dir / "trajectories" / "step-0000.jsonl.gz", "wt") as file:
        file.write("\n".join(lines) + "\n")
    (run_dir / "metrics.jsonl").write_text('{"step": 0, "reward/mean": 1' + "0" * 400 + "}\n" + "[" * 5000 + "\n")
    page = write_report(run_dir).read_text("utf-8")
    assert page.count('data-outcome="failed"') == 1 and page.count('data-outcome="right"') == 3


def test_long_texts_are_cut_and_say_so(run_dir: Path) -> None:
    with gzip.open(run_dir / "trajectories" / "step-0000.jsonl.gz", "wt") as file:
        file.write(json.dumps(trajectory(0, "x" * 1_000_000, correct=False)) + "\n")
    page = write_report(run_dir).read_text("utf-8")
    assert len(page) < 400_000 and "(1000000 characters)" in page


def test_a_chart_of_one_value_or_none() -> None:
    assert line_chart("Nothing", [Series("a", [])]) == ""
    assert line_chart("Not finite", [Series("a", [(0, float("nan"))])]) == ""
    assert "a: 3 at step 0" in line_chart("One", [Series("a", [(0, 3)])])


def test_the_page_opens_in_a_browser(run_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("chromium is not installed")
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    command += [f"--user-data-dir={tmp_path_factory.mktemp('profile')}", "--dump-dom", write_report(run_dir).as_uri()]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    assert Elements(dom).tags.count("script") == 1 and 'class="trajectory"' in dom
