"""Keys of the PyTRIO service: `resolve_credentials`, `check_credentials`.

A key belongs to the server it was issued for, and is sent to no other: the key that `trio login` stored goes to the
address stored with it; `PYTRIO_API_KEY` goes to `PYTRIO_BASE_URL`, or without that to the stored or public address.
"""

import os
from dataclasses import dataclass

from retool.errors import UserError
from retool.policy.sdk import load_sdk, user_home

_TRAIN_LOCALLY = "Without an account, model=tiny or model=smollm2_135m train on this machine."


@dataclass(frozen=True, slots=True)
class Credentials:
    """A server and the key for it."""

    base_url: str
    api_key: str


@dataclass(frozen=True, slots=True)
class _Offer:
    credentials: Credentials
    source: str


def check_credentials(base_url: str | None) -> None:
    """Raises `UserError` if no key for the service (`None`: the configured or public one) is to be found.

    Reads the environment and the SDK's files only; whether the service accepts the key shows when it is used.
    """
    resolve_credentials(base_url)


def resolve_credentials(base_url: str | None, api_key: str | None = None) -> Credentials:
    """The server to use and the key for it. Raises `UserError` where there is no key for that very server.

    `base_url` None means `PYTRIO_BASE_URL`, else the address of the active profile, else the public service.
    """
    sdk = load_sdk()
    from pytrio.config.config import auth_state, configuration, normalize_base_url  # type: ignore[import-untyped]

    sdk.configure(home=str(user_home()), env=os.environ.get("PYTRIO_ENV"))
    environment_url, environment_key = (
        os.environ.get(name, "").strip() for name in ("PYTRIO_BASE_URL", "PYTRIO_API_KEY")
    )
    stored_url = str(configuration.base_url)
    target = str(normalize_base_url(base_url or environment_url or stored_url))
    if api_key:
        return Credentials(target, api_key.strip())
    offers = [
        _Offer(Credentials(normalize_base_url(environment_url or stored_url), environment_key), "PYTRIO_API_KEY"),
        _Offer(Credentials(stored_url, str(auth_state.api_key)), f"the profile in {configuration.config_path}"),
    ]
    offers = [offer for offer in offers if offer.credentials.api_key]
    for offer in offers:
        if offer.credentials.base_url == target:
            return offer.credentials
    if auth_state.config_error is not None:
        raise UserError(f"The stored PyTRIO credentials cannot be read: {auth_state.config_error.message}")
    raise UserError(_explain(target, offers))


def _explain(target: str, offers: list[_Offer]) -> str:
    message = f"There is no API key for {target}."
    for offer in offers:
        message += f" The key from {offer.source} is for {offer.credentials.base_url} and is not sent elsewhere."
    if offers:
        return f"{message} Set PYTRIO_BASE_URL={target} together with PYTRIO_API_KEY."
    return f"{message} Run `trio login`, or set PYTRIO_API_KEY. {_TRAIN_LOCALLY}"
