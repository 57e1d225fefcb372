"""Finds everything that is wrong with a composed configuration before anything heavy is imported.

`problems(cfg)` lists them, `check(cfg)` raises one `UserError` with all of them. Two parts: every key against the
schema (unknown even when forced in with `+`, missing, of the wrong type, outside its limits), then the rules that span
keys (`retool.config.rules`).
"""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any, get_args

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationToMissingValueError, OmegaConfBaseException

from retool.config import rules, schema
from retool.config.build import target_allowed
from retool.config.constraints import constraint_of, did_you_mean
from retool.errors import UserError

_MARK = {"train": "ppo", "sft": "sft"}
"""The group that tells an entry point's configuration from the others'."""


def check(cfg: DictConfig) -> None:
    """Raises `UserError` with every problem of `cfg`, each with its key and what to do."""
    found = problems(cfg)
    if found:
        raise UserError(summary(found))


def summary(found: list[str]) -> str:
    """All problems in one message."""
    head = "The configuration has a problem:" if len(found) == 1 else f"The configuration has {len(found)} problems:"
    return "\n".join([head, *(f"  {problem}" for problem in found)])


def problems(cfg: DictConfig) -> list[str]:
    """Everything that is wrong with `cfg`, one line each."""
    found = list(_against_schema(cfg, _entry_schema(cfg), ""))
    found.extend(_targets(cfg))
    found.extend(rules.violations(cfg))
    return list(dict.fromkeys(found))


def _entry_schema(cfg: DictConfig) -> type:
    """The dataclass that the configuration was composed from; for a saved file, that of the entry point it fits."""
    entry = OmegaConf.get_type(cfg)
    if entry is not None and dataclasses.is_dataclass(entry):
        return entry
    return next((node for name, node in schema.ENTRIES.items() if _MARK.get(name) in cfg), schema.Evaluate)


def _against_schema(node: DictConfig, node_type: type, path: str) -> Iterator[str]:
    fields = {field.name: field for field in dataclasses.fields(node_type)}
    typed = OmegaConf.structured(node_type)
    for key in map(str, node):
        name = f"{path}{key}"
        if key in fields:
            yield from _check_key(node, fields[key], typed, name)
        elif name != "hydra":
            yield f"{name}: there is no such key.{did_you_mean(key, list(fields)) or _known(fields)}"
    for key in fields:
        if key not in node.keys():  # noqa: SIM118 - `in node` is false for a key whose value is missing
            yield f"{path}{key}: the key is missing. Set {path}{key}=VALUE."


def _check_key(node: DictConfig, field: "dataclasses.Field[Any]", typed: DictConfig, name: str) -> Iterator[str]:
    key = field.name
    if OmegaConf.is_missing(node, key):
        yield f"{name}: a value is needed. Set {name}=VALUE."
        return
    try:
        value = node[key]
    except InterpolationToMissingValueError:
        return  # the key that it refers to is reported itself
    except OmegaConfBaseException as error:
        yield f"{name}: {_first_line(error)}"
        return
    constraint = constraint_of(field)
    if isinstance(value, DictConfig):
        declared = constraint.schema if constraint is not None else None
        child_type = declared or _schema_of(value, field.type)
        if child_type is not None:
            yield from _against_schema(value, child_type, f"{name}.")
        return
    try:
        typed[key] = value
    except OmegaConfBaseException as error:
        yield f"{name}: {_first_line(error)}"
        return
    violation = constraint.violation(typed[key]) if constraint is not None else None
    if violation:
        yield f"{name}: {violation}"


def _known(fields: Iterable[str]) -> str:
    return f" Known: {', '.join(name for name in fields if name != '_target_')}."


def _schema_of(node: DictConfig, annotation: object) -> type | None:
    """The dataclass that a node was composed from; else that of its annotation, or of its `_target_`, if we know it."""
    node_type = OmegaConf.get_type(node)
    if node_type is not None and dataclasses.is_dataclass(node_type):
        return node_type
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and dataclasses.is_dataclass(candidate):
            return candidate
    target = node.get("_target_")
    return schema.schema_of_target(target) if isinstance(target, str) else None


def _targets(cfg: DictConfig) -> Iterator[str]:
    allowed = [str(package) for package in cfg.get("allow_targets") or []]
    for group in map(str, cfg):
        value = None if OmegaConf.is_missing(cfg, group) else cfg._get_node(group)
        target = value.get("_target_") if isinstance(value, DictConfig) and not value._is_none() else None
        if isinstance(target, str) and not target_allowed(target, allowed):
            package = target.split(".", maxsplit=1)[0]
            yield f"{group}._target_: '{target}' is outside retool. Allow its package with allow_targets=[{package}]."


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0].rstrip(".") + "."
