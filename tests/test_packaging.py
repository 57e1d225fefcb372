"""What a wheel holds, so that an installed retool works without its checkout."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from retool import __version__

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The project's wheel, built by its own backend without the network."""
    pytest.importorskip("hatchling")
    directory = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (built,) = directory.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def names(wheel) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def below(directory: Path, prefix: str) -> set[str]:
    """The files that belong into a wheel, as it names them."""
    return {
        f"{prefix}/{file.relative_to(directory).as_posix()}"
        for file in directory.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }


def test_it_is_named_after_the_version(wheel):
    assert wheel.name == f"retool-{__version__}-py3-none-any.whl"


def test_it_holds_all_of_the_package(names):
    assert below(ROOT / "retool", "retool") <= names
    assert "retool/engine/assets/tiny/model.safetensors" in names


def test_it_holds_the_configuration(names):
    personal = below(ROOT / "conf" / "local", "retool/conf/local")
    assert below(ROOT / "conf", "retool/conf") - personal <= names
    assert "retool/conf/train.yaml" in names


def test_it_holds_nothing_else(names):
    assert {name.split("/")[0] for name in names} == {"retool", f"retool-{__version__}.dist-info"}
    assert not [name for name in names if "__pycache__" in name]


def test_it_installs_the_commands(wheel):
    with zipfile.ZipFile(wheel) as archive:
        entry_points = archive.read(f"retool-{__version__}.dist-info/entry_points.txt").decode()
    for command in ("train", "eval", "sft", "serve"):
        assert f"retool-{command} = retool.{command}:main" in entry_points


def test_it_finds_its_configuration_anywhere(wheel, tmp_path):
    """Unpacked and run from a directory with a `conf` of its own."""
    site, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    (elsewhere / "conf").mkdir(parents=True)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    program = "import retool.config, retool.train; print(retool.config.conf_dir())"
    environment = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=elsewhere, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()) == site / "retool" / "conf"
