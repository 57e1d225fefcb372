"""Checks a command line before Hydra runs it: the job, or every job of a sweep before the first is launched."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from retool.config.check import problems, summary
from retool.config.compose import Composition, compose, config_loader, parse_overrides
from retool.errors import UserError

_BASIC_SWEEPER = f"{BasicSweeper.__module__}.{BasicSweeper.__name__}"


def preflight(config_name: str, args: argparse.Namespace) -> None:
    """Raises `UserError` with all problems of all jobs that the parsed Hydra command line `args` asks for.

    Commands that only show something (`--help`, `--info`, completion) are left to Hydra; `--cfg` must compose, no more.
    """
    if args.help or args.hydra_help or args.shell_completion or args.info is not None or args.experimental_rerun:
        return
    if args.config_path is not None and not Path(args.config_path).is_absolute():
        return  # relative to the calling module, which Hydra alone knows; the run checks its own configuration
    dirs = [args.config_dir] if args.config_dir is not None else []
    loader = config_loader(dirs, args.config_path)
    name = args.config_name or config_name
    found = command_problems(loader, name, args.overrides, multirun=args.multirun, show=args.cfg is not None)
    if found:
        raise UserError(summary(found))


def command_problems(
    loader: ConfigLoaderImpl, config_name: str, overrides: Sequence[str], *, multirun: bool = False, show: bool = False
) -> list[str]:
    """What is wrong with the job or jobs of a command line."""
    master = compose(loader, config_name, overrides, RunMode.MULTIRUN)
    if master.cfg is None:
        return list(master.problems)
    found = list(master.problems)
    if show:
        return found
    sweeping = multirun or master.cfg.hydra.mode == RunMode.MULTIRUN
    found.extend(_directory_problems(master.cfg, "sweep" if sweeping else "run"))
    if not sweeping:
        return found + _single_problems(loader, master, overrides)
    return found + _sweep_problems(loader, config_name, master.cfg)


def _single_problems(loader: ConfigLoaderImpl, master: Composition, overrides: Sequence[str]) -> list[str]:
    if not master.problems:
        try:
            loader.validate_sweep_overrides_legal(parse_overrides(overrides), run_mode=RunMode.RUN, from_shell=True)
        except HydraException as error:
            return [str(error)]
    assert master.cfg is not None
    return problems(master.cfg)


def _sweep_problems(loader: ConfigLoaderImpl, config_name: str, master: DictConfig) -> list[str]:
    """Composes each job as Hydra's basic sweeper will. Of another sweeper's jobs only what they share is known."""
    hydra_overrides = [str(line) for line in master.hydra.overrides.hydra]
    task = [f"{key}={value}" for key, value in (master.hydra.sweeper.get("params") or {}).items()]
    parsed = parse_overrides([*task, *(str(line) for line in master.hydra.overrides.task)])
    if master.hydra.sweeper._target_ != _BASIC_SWEEPER:
        parsed = [override for override in parsed if not override.is_sweep_override()]
    (jobs,) = BasicSweeper.split_arguments(parsed, max_batch_size=None)
    by_problem: dict[str, list[int]] = {}
    for number, job in enumerate(jobs):
        composition = compose(loader, config_name, [*hydra_overrides, *job], RunMode.RUN)
        own = list(composition.problems)
        if composition.cfg is not None:
            own += problems(composition.cfg)
        for problem in own:
            by_problem.setdefault(problem, []).append(number)
    return [
        problem if len(numbers) == len(jobs) else f"job {', '.join(map(str, numbers))}: {problem}"
        for problem, numbers in by_problem.items()
    ]


def _directory_problems(cfg: DictConfig, kind: str) -> list[str]:
    key = f"hydra.{kind}.dir"
    directory = Path(str(OmegaConf.select(cfg, key))).expanduser().absolute()
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    if not existing.is_dir():
        return [f"{key}: '{existing}' is a file, so the run directory {directory} cannot be made."]
    try:
        with TemporaryDirectory(dir=existing, prefix=".retool-"):
            pass
    except OSError as error:
        return [
            f"{key}: '{existing}' is not writable ({error.strerror}). "
            "Set output_root (or RETOOL_OUTPUT) to a directory that is."
        ]
    return []
