"""Finds everything that is wrong with a composed configuration before anything heavy is imported.

`problems(cfg)` lists them, `check(cfg)` raises one `UserError` with all of them. Two parts: every key against the schema
(unknown even when forced in with `+`, missing, of the wrong type, outside its limits), then the rules that span keys
(`retool.config.rules`).
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationToMissingValueError, OmegaConfBaseException

from retool.config import rules, schema
from retool.config.build import target_allowed
from retool.config.constraints import constraint_of, did_you_mean
from retool.errors import UserError


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
    entry = OmegaConf.get_type(cfg)
    root = entry if dataclasses.is_dataclass(entry) else schema.Run
    found = list(_against_schema(cfg, root, ""))
    found.extend(_targets(cfg))
    found.extend(rules.violations(cfg))
    return list(dict.fromkeys(found))


def _against_schema(node: DictConfig, node_type: type, path: str) -> Iterator[str]:
    fields = {field.name: field for field in dataclasses.fields(node_type)}
    for key in node:
        name = f"{path}{key}"
        if key not in fields:
            if name != "hydra":
                yield f"{name}: there is no such key.{did_you_mean(str(key), list(fields))} Known: {', '.join(fields)}."
            continue
        yield from _check_key(node, str(key), fields[str(key)], node_type, name)
    for key in fields:
        if key not in node:
            yield f"{path}{key}: the key is missing. Set {path}{key}=VALUE."


def _check_key(
    node: DictConfig, key: str, field: "dataclasses.Field[Any]", node_type: type, name: str
) -> Iterator[str]:
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
    if isinstance(value, DictConfig):
        child_type = _schema_of(value)
        if child_type is not None:
            yield from _against_schema(value, child_type, f"{name}.")
        return
    try:
        typed = OmegaConf.structured(node_type)
        typed[key] = value
    except OmegaConfBaseException as error:
        yield f"{name}: {_first_line(error)}"
        return
    constraint = constraint_of(field)
    violation = constraint.violation(typed[key]) if constraint is not None else None
    if violation:
        yield f"{name}: {violation}"


def _schema_of(node: DictConfig) -> type | None:
    """The dataclass that a node was composed from; else the one that belongs to its `_target_`, if we know it."""
    node_type = OmegaConf.get_type(node)
    if node_type is not None and dataclasses.is_dataclass(node_type):
        return node_type
    target = node.get("_target_")
    return schema.schema_of_target(target) if isinstance(target, str) else None


def _targets(cfg: DictConfig) -> Iterator[str]:
    allowed = [str(package) for package in cfg.get("allow_targets") or []]
    for group in cfg:
        value = None if OmegaConf.is_missing(cfg, group) else cfg._get_node(group)
        target = value.get("_target_") if isinstance(value, DictConfig) and not value._is_none() else None
        if isinstance(target, str) and not target_allowed(target, allowed):
            package = target.split(".", maxsplit=1)[0]
            yield f"{group}._target_: '{target}' is outside retool. Allow its package with allow_targets=[{package}]."


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0].rstrip(".") + "."
