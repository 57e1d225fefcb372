"""Composing configurations outside Hydra's own main, with errors in the user's terms.

`config_loader` makes Hydra's loader over `conf/` and the user's own directories. `Composition` is a composed
configuration and all that is wrong with the overrides; `compose` makes it: an override that Hydra refuses is noted with
a suggestion and left out, and composing goes on, so that one message lists every mistake.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.utils import create_config_search_path
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.utils import setup_globals
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from retool.config.constraints import did_you_mean
from retool.config.paths import conf_dir

_OVERRIDE_KEY = re.compile(r"(?:Could not override|Could not append to config\. .*? at|Key) '([^']+)'", re.DOTALL)
_MERGED_OVERRIDE = re.compile(r"Error merging override (.+)")
_MISSING_OPTION = re.compile(r"Could not (?:find|load) '([^']+)'")


_NULL_ERRORS = (AssertionError, AttributeError)
"""What OmegaConf raises for a key below a null."""


@dataclass(frozen=True, slots=True)
class Composition:
    """`cfg` includes the `hydra` node; it is `None` when nothing could be composed. `problems` is one line each."""

    cfg: DictConfig | None
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Source:
    """What overrides are applied to."""

    loader: ConfigLoaderImpl
    config_name: str
    mode: RunMode

    def load(self, overrides: Sequence[str]) -> DictConfig:
        return self.loader.load_configuration(
            self.config_name, list(overrides), run_mode=self.mode, validate_sweep_overrides=False
        )

    def choices(self, overrides: Sequence[str]) -> list[str]:
        """Those that choose an option of a group."""
        groups = self.loader.list_groups("")
        return [line for line in overrides if line.split("=", maxsplit=1)[0].lstrip("+") in groups]


def config_loader(config_dirs: Sequence[str] = (), primary: str | None = None) -> ConfigLoaderImpl:
    """Hydra's loader over `primary` (default: `conf/`) and further directories, as `--config-dir` adds them."""
    setup_globals()
    search_path = create_config_search_path(primary or str(conf_dir()))
    for directory in config_dirs:
        search_path.prepend(
            provider="command-line",
            path=f"file://{Path(directory).absolute()}",
            anchor=SearchPathQuery(provider="schema"),
        )
    return ConfigLoaderImpl(config_search_path=search_path)


def compose(loader: ConfigLoaderImpl, config_name: str, overrides: Sequence[str], mode: RunMode) -> Composition:
    """Composes as Hydra would, but leaves out and notes each override that Hydra refuses."""
    source = _Source(loader, config_name, mode)
    remaining = list(overrides)
    problems: list[str] = []
    while True:
        try:
            return Composition(source.load(remaining), tuple(problems))
        except HydraException as error:
            culprit = _culprit(error, remaining)
            problems.append(_explain(error, culprit, source, remaining))
            if culprit is None:
                return Composition(None, tuple(problems))
            remaining.remove(culprit)
        except _NULL_ERRORS:
            culprit = _below_null(source, remaining)
            if culprit is None:
                raise
            problems.append(_explain_null(culprit))
            remaining.remove(culprit)


def parse_overrides(lines: Sequence[str]) -> list[Override]:
    """Parsed overrides; raises Hydra's `OverrideParseException`."""
    return OverridesParser.create().parse_overrides(list(lines))


def _below_null(source: _Source, overrides: Sequence[str]) -> str | None:
    """The first override that sets a key below a null, found by trying each with the options that the others choose."""
    choices = source.choices(overrides)
    for line in overrides:
        try:
            source.load([*choices, line] if line not in choices else choices)
        except _NULL_ERRORS:
            return line
        except HydraException:
            continue
    return None


def _explain_null(culprit: str) -> str:
    override = parse_overrides([culprit])[0]
    key = override.key_or_group
    null = key if isinstance(override.value(), dict) else key.rpartition(".")[0]
    return f"{key}: '{null}' is null here, so it has no keys. Choose another option of '{key.partition('.')[0]}'."


def _culprit(error: HydraException, overrides: Sequence[str]) -> str | None:
    """The override that Hydra's message is about."""
    text = str(error)
    if isinstance(error, OverrideParseException):
        return error.override if error.override in overrides else None
    merged = _MERGED_OVERRIDE.search(text)
    if merged and merged.group(1) in overrides:
        return merged.group(1)
    found = _OVERRIDE_KEY.search(text)
    wanted = found.group(1) if found else None
    missing = _MISSING_OPTION.search(text)
    for line in overrides:
        override = parse_overrides([line])[0]
        if wanted is not None and override.key_or_group in (wanted, wanted.split("@")[0]):
            return line
        if missing and missing.group(1) == f"{override.key_or_group}/{override.value()}":
            return line
    return None


def _explain(error: HydraException, culprit: str | None, source: _Source, overrides: Sequence[str]) -> str:
    text = str(error).strip()
    if culprit is None:
        return "\n".join(filter(None, (text, str(error.__cause__ or ""))))
    if isinstance(error, OverrideParseException):
        reason = text.splitlines()[0]
        return f"'{culprit}' is not an override: {reason}. Write KEY=VALUE; quote brackets and spaces for the shell."
    override = parse_overrides([culprit])[0]
    key = override.key_or_group
    if isinstance(error, MissingConfigException):
        options = [str(option) for option in error.options or source.loader.get_group_options(key)]
        return (
            f"{key}: there is no option '{override.value()}'.{did_you_mean(str(override.value()), options)} "
            f"Options: {', '.join(options)}."
        )
    if _MERGED_OVERRIDE.search(text):
        cause = str(error.__cause__).splitlines()[0] if error.__cause__ else text
        return f"{key}: {cause.rstrip('.')}."
    if "Could not override" in text:
        known = [*_dotted(source.load(source.choices(overrides))), *source.loader.list_groups("")]
        return f"{key}: there is no such key.{_nearest_key(key, known)}"
    return text.splitlines()[0]


def _nearest_key(key: str, known: Sequence[str]) -> str:
    """A suggestion: first among the sister keys, then among all keys and groups."""
    parent, _, leaf = key.rpartition(".")
    sisters = [name.rpartition(".")[2] for name in known if name.rpartition(".")[0] == parent]
    suggestion = did_you_mean(leaf, sisters)
    if suggestion:
        return suggestion.replace("'", f"'{parent}.", 1) if parent else suggestion
    return did_you_mean(key, known)


def _dotted(node: DictConfig, prefix: str = "") -> Iterator[str]:
    for key in map(str, node):
        name = f"{prefix}{key}"
        if name == "hydra":
            continue
        yield name
        child = None if OmegaConf.is_missing(node, key) or OmegaConf.is_interpolation(node, key) else node[key]
        if isinstance(child, DictConfig):
            yield from _dotted(child, f"{name}.")
