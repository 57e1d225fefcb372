"""Problems from publishers' files: formats, golds, ids, splits, and what is said about files that cannot be used."""

import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retool.data import files
from retool.data.fields import gold_text, join_parts
from retool.data.problem import Problem
from retool.data.sources import FileSource
from retool.data.splits import comparable, holdout_order
from retool.errors import UserError

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
SVAMP_FIELDS = {"question": ["Body", "Question"], "answer": "Answer", "id": "ID"}


def write_jsonl(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def numbered(count: int) -> list[dict[str, object]]:
    return [{"id": f"p{i}", "question": f"What is {i} + {i}?", "answer": 2 * i} for i in range(count)]


def test_prepared_rows(tmp_path: Path) -> None:
    row = {"id": "set/7", "question": " What is 1 + 1? ", "answer": "2", "data_source": "set"}
    path = write_jsonl(tmp_path / "p.jsonl", [row])
    split = FileSource(name="mine", path=str(path)).load()
    assert split.train == [Problem("set/7", "What is 1 + 1?", "2", "set")]
    assert split.holdout == []


def test_gsm8k_solution_becomes_its_last_number(tmp_path: Path) -> None:
    solution = "He has 48/2 = <<48/2=24>>24.\nIn all <<24*1000=24000>>24,000.\n#### 24,000"
    path = write_jsonl(tmp_path / "gsm8k.jsonl", [{"question": "How many?", "answer": solution}])
    source = FileSource(name="gsm8k", path=str(path))
    assert source.load().train[0].answer == "24,000"
    assert source.load_rows().train[0].row["answer"] == solution


def test_svamp_joins_body_and_question(tmp_path: Path) -> None:
    row = {"ID": "chal-1", "Body": "If 290 bananas are in 2 groups", "Question": "How big is each?", "Answer": 145.0}
    path = write_jsonl(tmp_path / "svamp.jsonl", [row])
    problem = FileSource(name="svamp", path=str(path), fields=SVAMP_FIELDS).load().train[0]
    assert problem == Problem("svamp/chal-1", "If 290 bananas are in 2 groups, How big is each?", "145", "svamp")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (27.0, "27"),
        (-3.0, "-3"),
        (0.25, "0.25"),
        (1.3333333333, "1.3333333333"),
        (1e-7, "0.0000001"),
        (1e20, "100000000000000000000"),
        (6, "6"),
        ("27.0", "27"),
        ("27.50", "27.50"),
        ("025", "025"),
        ("1,000", "1,000"),
        (r"\frac{1}{2}", r"\frac{1}{2}"),
        (" 5 ", "5"),
        (["34"], "34"),
        ("see #### there\nand here", "see #### there\nand here"),
        (None, ""),
        (True, ""),
        (float("nan"), ""),
        (float("inf"), ""),
        (["1", "2"], ""),
    ],
)
def test_gold_text(value: object, expected: str) -> None:
    assert gold_text(value) == expected


def test_parts_are_joined_as_sentences() -> None:
    assert join_parts(["He has 2 cats.", "How many? "]) == "He has 2 cats. How many?"
    assert join_parts(["", "How many?"]) == "How many?"


def test_json_array_and_folder(tmp_path: Path) -> None:
    (tmp_path / "other.jsonl").write_text("")
    (tmp_path / "mine_test.json").write_text(json.dumps(numbered(3)), encoding="utf-8")
    split = FileSource(name="mine", path=str(tmp_path), split="test").load()
    assert [problem.id for problem in split.train] == ["mine/p0", "mine/p1", "mine/p2"]
    assert [problem.answer for problem in split.train] == ["0", "2", "4"]


def test_parquet_with_chat_prompt_and_many_copies(tmp_path: Path) -> None:
    """The layout of DAPO-Math-17k: a wrapped chat message, nested fields, each problem many times."""
    wrapped = (
        "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
        "$Answer (without quotes) where $Answer is the answer to the problem.\n\nWhat is {n} squared?\n\n"
        'Remember to put your answer on its own line after "Answer:".'
    )
    rows = [
        {
            "data_source": "math_dapo",
            "prompt": [{"content": wrapped.format(n=n), "role": "user"}],
            "reward_model": {"ground_truth": str(n * n), "style": "rule"},
            "extra_info": {"index": f"uuid-{n}"},
        }
        for n in (3, 4)
    ]
    path = tmp_path / "dapo.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows * 50), path)
    fields = {"question": "prompt", "answer": "reward_model.ground_truth", "id": "extra_info.index"}
    split = FileSource(name="dapo_math_17k", path=str(path), fields=fields).load()
    assert split.train == [
        Problem("math_dapo/uuid-3", "What is 3 squared?", "9", "math_dapo"),
        Problem("math_dapo/uuid-4", "What is 4 squared?", "16", "math_dapo"),
    ]


def test_ids_are_hashes_of_the_question_where_the_publisher_gives_none_or_repeats_them(tmp_path: Path) -> None:
    rows = [{"id": 1, "question": "What is 1 + 1?", "answer": 2}, {"id": 1, "question": "And 2 + 2?", "answer": 4}]
    repeated = FileSource(name="s", path=str(write_jsonl(tmp_path / "a.jsonl", rows))).load().train
    without = [{key: value for key, value in row.items() if key != "id"} for row in reversed(rows)]
    missing = FileSource(name="s", path=str(write_jsonl(tmp_path / "b.jsonl", without))).load().train
    assert len({problem.id for problem in repeated}) == 2
    assert {problem.id for problem in repeated} == {problem.id for problem in missing}
    assert repeated[0].id == "s/ed390ae6bdcc3959"  # printf 'what is 1 + 1' | sha256sum


def test_one_of_several_copies_stays_and_contradictions_go(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"question": "What is 1 + 1?", "answer": 2},
        {"question": "what is  1 + 1", "answer": 2},
        {"question": "How many?", "answer": 6},
        {"question": "How many ?", "answer": 30},
    ]
    split = FileSource(name="s", path=str(write_jsonl(tmp_path / "a.jsonl", rows))).load()
    assert [problem.question for problem in split.train] == ["What is 1 + 1?"]


def test_holdout_depends_on_seed_and_id_alone(tmp_path: Path) -> None:
    forward = write_jsonl(tmp_path / "a.jsonl", numbered(40))
    backward = write_jsonl(tmp_path / "b.jsonl", numbered(40)[::-1])
    first = FileSource(name="s", path=str(forward), holdout=10, seed=1).load()
    second = FileSource(name="s", path=str(backward), holdout=10, seed=1).load()
    other = FileSource(name="s", path=str(forward), holdout=10, seed=2).load()
    assert first.holdout == second.holdout
    assert [problem.id for problem in first.train] == [problem.id for problem in second.train][::-1]
    assert first.holdout != other.holdout
    assert len(first.train) == 30
    assert not {problem.id for problem in first.train} & {problem.id for problem in first.holdout}
    larger = FileSource(name="s", path=str(forward), holdout=15, seed=1).load()
    assert larger.holdout[:10] == first.holdout


def test_limit_takes_training_problems_and_leaves_the_holdout(tmp_path: Path) -> None:
    path = str(write_jsonl(tmp_path / "a.jsonl", numbered(40)))
    whole = FileSource(name="s", path=path, holdout=10).load()
    limited = FileSource(name="s", path=path, holdout=10, limit=5).load()
    assert limited.holdout == whole.holdout
    assert len(limited.train) == 5
    assert set(limited.train) < set(whole.train)


@given(st.lists(st.text(alphabet="ab 1.?", min_size=1, max_size=8), min_size=4, max_size=30), st.integers(0, 5))
def test_train_and_holdout_never_share_a_question(tmp_path_factory: pytest.TempPathFactory, questions, seed) -> None:
    rows = [{"question": f"Q {text}", "answer": 1} for text in questions]
    unique = {comparable(f"Q {text}") for text in questions}
    path = write_jsonl(tmp_path_factory.mktemp("split") / "a.jsonl", rows)
    holdout = len(unique) // 2
    split = FileSource(name="s", path=str(path), holdout=holdout, seed=seed).load()
    train, held = ({comparable(problem.question) for problem in part} for part in (split.train, split.holdout))
    assert not train & held
    assert train | held == unique
    assert len(held) == holdout


def test_comparable_keeps_what_numbers_mean() -> None:
    assert comparable("It costs 1.5!  Why?") == comparable("it costs 1.5 why")
    assert comparable("1.5") != comparable("15")
    assert comparable("3 - 2") != comparable("3 + 2")


def test_holdout_order_is_fixed() -> None:
    assert holdout_order(["a", "b", "c", "d"], 42) == ["c", "a", "b", "d"]  # by sha256 of 42:a, 42:b, ...


def message(source_arguments: dict[str, object]) -> str:
    with pytest.raises(UserError) as error:
        FileSource(**{"name": "s", **source_arguments}).load()  # type: ignore[arg-type]
    return str(error.value)


def test_missing_file(tmp_path: Path) -> None:
    assert "no file or folder at" in message({"path": str(tmp_path / "none.jsonl")})


def test_folder_without_the_set(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        write_jsonl(tmp_path / name, numbered(1))
    text = message({"path": str(tmp_path)})
    assert "no file named s" in text
    assert "a.jsonl, b.jsonl" in text


def test_unknown_suffix(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("question,answer\n")
    assert ".jsonl, .json, .parquet" in message({"path": str(tmp_path / "a.csv")})


def test_bad_json_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"question": "q", "answer": 1}\n\n{"question": \n', encoding="utf-8")
    assert f"{path}, line 3: not JSON" in message({"path": str(path)})
    path.write_text("[1]\n", encoding="utf-8")
    assert "line 1: expected a JSON object, found list" in message({"path": str(path)})


def test_one_object_in_a_json_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"question": "q", "answer": 1}', encoding="utf-8")
    assert "expected a JSON array" in message({"path": str(path)})


def test_no_parquet(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_text("text")
    assert "not a parquet file" in message({"path": str(path)})


def test_missing_field_lists_those_found_and_the_closest(tmp_path: Path) -> None:
    path = str(write_jsonl(tmp_path / "a.jsonl", [{"Question": "q", "target": 1}]))
    text = message({"path": path})
    assert "row 1: there is no field 'question'" in text
    assert "Question, target" in text
    assert "Did you mean 'Question'?" in text


def test_unknown_name_in_the_mapping(tmp_path: Path) -> None:
    path = str(write_jsonl(tmp_path / "a.jsonl", numbered(1)))
    assert "Did you mean 'answer'?" in message({"path": path, "fields": {"anwser": "x"}})
    assert "expected a field name" in message({"path": path, "fields": {"answer": 3}})


def test_empty_set_and_empty_values(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("\n")
    assert "holds no problems" in message({"path": str(path)})
    write_jsonl(path, [{"question": " ", "answer": 1}])
    assert "row 1: the question (question) is empty" in message({"path": str(path)})
    write_jsonl(path, [{"question": "q", "answer": None}])
    assert "row 1: the answer (answer) is empty" in message({"path": str(path)})


def test_holdout_that_leaves_nothing(tmp_path: Path) -> None:
    path = str(write_jsonl(tmp_path / "a.jsonl", numbered(4)))
    assert "data.holdout=4 leaves no problem to train on" in message({"path": path, "holdout": 4})


def test_golds_that_cannot_be_scored_are_refused(tmp_path: Path) -> None:
    path = str(write_jsonl(tmp_path / "a.jsonl", numbered(3)))
    with pytest.raises(UserError, match=r"1 of 3 gold answers cannot be scored[\s\S]*s/p2: '4': too large"):
        FileSource(name="s", path=path).load(lambda gold: "too large" if gold == "4" else None)


def test_neither_path_nor_hub() -> None:
    assert "pass data.path" in message({})


def test_hub_out_of_reach_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(repository: str, configuration: str | None, **_: object) -> None:
        assert (repository, configuration) == ("openai/gsm8k", "main")
        raise ConnectionError("name resolution failed\nmore")

    monkeypatch.setattr(files, "_load_hub", unreachable)
    text = message({"hub": "openai/gsm8k:main"})
    assert "name resolution failed" in text
    assert "data.path=" in text


PUBLISHED = [
    ("gsm8k", "train", {}, 7473, "72"),
    ("gsm8k", "test", {}, 1319, "18"),
    ("svamp", None, SVAMP_FIELDS, 1000, "145"),
    ("mawps", None, {"question": "input", "answer": "target"}, 1876, "43"),
    ("amc23", None, {"question": "problem"}, 40, "27"),
    ("aime24", None, {"question": "problem"}, 30, "204"),
    ("aime25", None, {"question": "problem"}, 30, "70"),
]


@pytest.mark.skipif(not SHARED.is_dir(), reason="the publishers' files are not here")
@pytest.mark.parametrize(("name", "split", "fields", "count", "first"), PUBLISHED)
def test_published_sets(name: str, split: str | None, fields: dict[str, object], count: int, first: str) -> None:
    train = FileSource(name=name, path=str(SHARED), split=split, fields=fields).load().train
    assert len(train) == count
    assert train[0].answer == first
    assert len({problem.id for problem in train}) == count
    assert not any(problem.answer.endswith(".0") or "####" in problem.answer for problem in train)
