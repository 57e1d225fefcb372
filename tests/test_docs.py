"""The documentation tells the truth: its commands are accepted, its examples run, its links lead somewhere."""

import argparse
import re
import shlex
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
import yaml
from hydra._internal.utils import get_args_parser

from retool.config import schema
from retool.config.preflight import preflight

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
ENTRIES = frozenset(schema.ENTRIES)
ARGPARSE = {"retool.sandbox", "retool.reward"}
DATA_FILE = re.compile(r"^(?:data\.path|eval\.paths\.\w+)=(\S+)$")
WRITTEN_BY_THE_USER = {"conf/local/default.yaml"}
RUN_DIRECTORY = re.compile(r"^resume=(?!auto$|never$)(\S+)$")


def blocks(page: Path, language: str) -> list[str]:
    """Fenced code blocks of a language, those indented in a list included."""
    fence = re.compile(rf"^( *)```{language}\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
    return [
        "\n".join(line.removeprefix(indent) for line in body.splitlines())
        for indent, body in fence.findall(page.read_text(encoding="utf-8"))
    ]


def commands() -> list[tuple[str, list[str]]]:
    """Every command in a `sh` block: the page, and its words without comments and variables before it."""
    found = []
    for page in PAGES:
        for block in blocks(page, "sh"):
            for line in block.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                while words and re.match(r"^[A-Z_]+=", words[0]):
                    words = words[1:]
                if words:
                    found.append((page.name, words))
    return found


def as_module(words: list[str]) -> tuple[str, list[str]] | None:
    """The module that a command runs, and its arguments; `None` for other programs."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    if words[:2] == ["python", "-m"]:
        return words[2], words[3:]
    if words[0] in scripts:
        return scripts[words[0]].partition(":")[0], words[1:]
    if words[:2] == ["sh", "scripts/quickstart.sh"]:
        return "retool.train", words[2:]
    return None


COMMANDS = [(page, *found) for page, words in commands() if (found := as_module(words)) is not None]


def write_example_options(directory: Path) -> None:
    """The options that the cookbook shows, under the paths that it names."""
    page = ROOT / "docs" / "cookbook.md"
    named = re.findall(r"`(my_conf/\S+\.yaml)`", page.read_text(encoding="utf-8"))
    for path, content in zip(named, blocks(page, "yaml"), strict=True):
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_text(content, encoding="utf-8")


@pytest.mark.parametrize(("page", "module", "arguments"), COMMANDS, ids=[f"{c[1]} {' '.join(c[2])}" for c in COMMANDS])
def test_commands_are_accepted(page, module, arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_example_options(tmp_path)
    for argument in arguments:
        if data := DATA_FILE.match(argument):
            Path(data[1]).parent.mkdir(parents=True, exist_ok=True)
            Path(data[1]).touch()
        if run := RUN_DIRECTORY.match(argument):
            Path(run[1]).mkdir(parents=True, exist_ok=True)
    name = module.removeprefix("retool.")
    if name in ENTRIES:
        schema.register()
        preflight(name, get_args_parser().parse_args(arguments))
    else:
        assert module in ARGPARSE, f"{page} has a command of {module}, which is not known here"
        check_argparse(module, arguments, monkeypatch)


def check_argparse(module: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a module parse its command line, and no more."""

    class ParsedError(Exception):
        pass

    parse = argparse.ArgumentParser.parse_args

    def parse_only(self, *args, **kwargs):
        parse(self, *args, **kwargs)
        raise ParsedError

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_only)
    with pytest.raises(ParsedError):
        import_module(f"{module}.__main__").main(arguments)


def test_the_commands_are_found():
    modules = {module for _, module, _ in COMMANDS}
    assert {"retool.train", "retool.eval", "retool.sft", "retool.serve", "retool.sandbox"} <= modules
    assert len(COMMANDS) > 25


def test_a_wrong_command_is_noticed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    schema.register()
    with pytest.raises(Exception, match=r"ppo\.group_size"):
        preflight("train", get_args_parser().parse_args(["ppo.group_sise=4"]))


def test_scripts_that_are_named_exist():
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    for path in set(re.findall(r"\bscripts/[\w./]+\.(?:py|sh)\b", text)):
        assert (ROOT / path).is_file(), path
    for path in set(re.findall(r"`((?:conf|retool|tests)/[\w/]+\.\w+)`", text)) - WRITTEN_BY_THE_USER:
        assert (ROOT / path).is_file(), path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'src="([^"]+)"', text):
        if re.match(r"^[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{page.name}: {target}"
        assert file.is_relative_to(ROOT), f"{page.name}: {target}"
        if anchor:
            assert anchor in anchors(file), f"{page.name}: {target}"


def anchors(page: Path) -> set[str]:
    """The anchors that a heading gets when Markdown is shown by a forge."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_nothing_of_this_machine(page):
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"(?<![\w.])/(?:home|root|tmp|work|mnt|Users)/", text)
    assert str(ROOT) not in text


def test_python_examples_run(tmp_path, monkeypatch):
    examples = [block for page in PAGES for block in blocks(page, "python")]
    assert examples
    for number, example in enumerate(examples):
        (tmp_path / f"docs_example_{number}.py").write_text(example, encoding="utf-8")
        monkeypatch.syspath_prepend(str(tmp_path))
        import_module(f"docs_example_{number}")


async def test_the_sandbox_example_says_42(tmp_path, monkeypatch, capsys):
    (tmp_path / "docs_example_sandbox.py").write_text(example_with("open_sandbox"), encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    await import_module("docs_example_sandbox").main()
    assert capsys.readouterr().out == "ok 42\n"


async def test_the_reward_example_pays_for_a_box(tmp_path, monkeypatch):
    (tmp_path / "my_project.py").write_text(example_with("class FormatScorer"), encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    options = yaml.safe_load(blocks(ROOT / "docs" / "cookbook.md", "yaml")[0])
    module, _, name = options.pop("_target_").rpartition(".")
    with getattr(import_module(module), name)(**options) as scorer:
        texts = (r"\boxed{4}", r"\boxed{5}", "five")
        rewards = [(await scorer.ascore(text, "4")).reward for text in texts]
    assert rewards == [1.0, -0.5, -1.0]


def example_with(text: str) -> str:
    (found,) = [block for block in blocks(ROOT / "docs" / "cookbook.md", "python") if text in block]
    return found
