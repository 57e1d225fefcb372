import pytest

from retool.runs.files import read_json, read_jsonl_gz, replace_file, write_json, write_jsonl_gz


def test_a_failed_write_leaves_the_old_content(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, {"a": 1})
    with pytest.raises(ValueError):
        write_json(path, {"a": float("nan")})
    with pytest.raises(TypeError):
        replace_file(path, "not bytes")  # type: ignore[arg-type]
    assert read_json(path) == {"a": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["a.json"]


def test_a_missing_file_is_none_and_a_list_is_refused(tmp_path):
    assert read_json(tmp_path / "absent") is None
    (tmp_path / "list").write_text("[]")
    with pytest.raises(ValueError, match="does not hold a JSON object"):
        read_json(tmp_path / "list")


def test_compressed_rows_have_the_same_bytes_every_time(tmp_path):
    rows = [{"text": "é\n", "n": 1}, {"text": "", "n": 2}]
    first, second = tmp_path / "x" / "one.jsonl.gz", tmp_path / "two.jsonl.gz"
    write_jsonl_gz(first, rows)
    write_jsonl_gz(second, rows)
    assert list(read_jsonl_gz(first)) == rows
    assert first.read_bytes() == second.read_bytes()
