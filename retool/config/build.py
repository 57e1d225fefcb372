"""From configuration to objects: `build` calls a component's `_target_`, `typed` makes a schema object of a group.

`build` is the only caller of `hydra.utils.instantiate`.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

from omegaconf import DictConfig, OmegaConf

from retool.errors import InfrastructureError, UserError

T = TypeVar("T")


def typed(cfg: DictConfig, kind: type[T]) -> T:
    """The values of a group without a `_target_`, resolved, as an instance of its schema."""
    content = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    value = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(kind), content))
    assert isinstance(value, kind)
    return value


def target_allowed(target: str, allow_targets: Sequence[str]) -> bool:
    """True for `retool.…` and for names in one of the packages that the user listed."""
    return any(target.startswith(f"{package.rstrip('.')}.") for package in ("retool", *allow_targets))


def build(cfg: DictConfig, *, allow_targets: Sequence[str] = (), omit: Sequence[str] = (), **arguments: object) -> Any:  # noqa: ANN401 - the type is that of the configured target
    """Calls `cfg._target_` with the keys of `cfg`, without those in `omit`, and with `arguments` on top.

    Lists and mappings arrive as plain Python objects. Raises `UserError` for a target outside the allowed packages and
    for arguments that the target refuses; errors of the target itself pass unchanged when they are ours.
    """
    from hydra.errors import InstantiationException
    from hydra.utils import instantiate

    content = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    if not isinstance(content, dict) or not content.get("_target_"):
        raise UserError("A component's configuration has no _target_.")
    target = str(content["_target_"])
    if not target_allowed(target, allow_targets):
        raise UserError(
            f"_target_ '{target}' is outside the allowed packages. Name its package to allow it: "
            f"allow_targets=[{target.split('.', maxsplit=1)[0]}]"
        )
    for key in omit:
        content.pop(key, None)
    try:
        return instantiate(content, _convert_="all", **arguments)
    except InstantiationException as error:
        if isinstance(error.__cause__, UserError | InfrastructureError):
            raise error.__cause__ from None
        raise UserError(f"Cannot build {target}: {error.__cause__ or error}") from error
