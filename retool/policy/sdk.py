"""The PyTRIO SDK, imported late and configured anew for each client.

Contents: `load_sdk`, `Connection`, `configure`, `sdk_errors`, `translate`.

The SDK's configuration is global to the process. A service client copies it when it is made, so it is set completely
right before that and what an earlier client needed does not linger.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from retool.errors import InfrastructureError, UserError

_SERVICE_RETRY_S = {
    "training_retry_timeout_seconds": 900.0,
    "control_retry_timeout_seconds": 900.0,
    "sampling_retry_timeout_seconds": 900.0,
}
# On loopback a connection fails only when the engine has died, which is noticed otherwise and at once.
_ENGINE_RETRY_S = {
    "training_retry_timeout_seconds": 10.0,
    "control_retry_timeout_seconds": 3.0,
    "sampling_retry_timeout_seconds": 10.0,
}
_MIN_QUEUE = 64
_SPARE_CONNECTIONS = 36
_SERVICE_KEEPALIVE = 20
_USER_STATUSES = frozenset({400, 402, 403, 404, 409, 413, 422})
_USER_CODES = frozenset({"unauthorized", "forbidden", "billing_insufficient_balance", "sequence_too_long"})


@dataclass(frozen=True, slots=True)
class Connection:
    """Which server a client talks to, and with which key. `home`: where the SDK may keep files."""

    base_url: str
    api_key: str
    home: Path
    embedded: bool
    max_in_flight: int


def load_sdk() -> ModuleType:
    """The SDK's top module. Raises `UserError` when its environment variables cannot be used."""
    try:
        import pytrio  # type: ignore[import-untyped]
    except ImportError as error:
        raise UserError(
            f"The PyTRIO SDK cannot be imported ({error}); install it with `pip install pytrio==0.2.9`."
        ) from error
    except ValueError as error:
        raise UserError(f"The environment configures PyTRIO wrongly: {error}") from error
    return pytrio  # type: ignore[no-any-return]


def user_home() -> Path:
    """Where `trio login` stores credentials."""
    return Path.home()


def configure(connection: Connection) -> None:
    """Sets everything that a service client made next will use. The embedded engine gets no telemetry."""
    sdk = load_sdk()
    from pytrio.config.config import configuration  # type: ignore[import-untyped]

    if connection.embedded:
        sdk.configure_observability(enabled=False)
    sdk.configure(
        home=str(connection.home),
        env=None if connection.embedded else os.environ.get("PYTRIO_ENV"),
        base_url=connection.base_url,
        api_key=connection.api_key,
        sampling_request_max_in_flight=connection.max_in_flight,
        sampling_request_queue_capacity=max(_MIN_QUEUE, connection.max_in_flight),
        log_level="WARNING" if connection.embedded else os.environ.get("PYTRIO_LOG_LEVEL", "INFO"),
        **(_ENGINE_RETRY_S if connection.embedded else _SERVICE_RETRY_S),
    )
    # No option of configure() reaches these. Every request of httpx looks at every idle connection, so that with many
    # of them it costs several times as much as a new connection on loopback; across a network it is the other way.
    configuration.actor_http_max_connections = connection.max_in_flight + _SPARE_CONNECTIONS
    configuration.actor_http_max_keepalive_connections = 1 if connection.embedded else _SERVICE_KEEPALIVE


def sdk_errors() -> tuple[type[Exception], ...]:
    """What calls of the SDK raise when a service refuses or fails; its replies are pydantic models."""
    from pydantic import ValidationError
    from pytrio.errors.base import PyTrioError  # type: ignore[import-untyped]

    return PyTrioError, ValidationError


def translate(error: Exception, what: str, *, named_by_user: bool = False) -> UserError | InfrastructureError:
    """One of `sdk_errors` as one of ours; `what` begins the message.

    `named_by_user`: the call uses names from the configuration, so that a refusal is the user's to mend.
    """
    from pytrio.errors.base import PyTrioError, ValidationError

    if not isinstance(error, PyTrioError):
        return InfrastructureError(f"{what} failed: the service's reply is not what the SDK expects ({error}).")
    message = f"{what} failed: {error.message.rstrip('.')} [{error.code}]."
    if error.hint:
        message += f" {error.hint}"
    refused = error.status_code == 401 or error.code in _USER_CODES or isinstance(error, ValidationError)
    if refused or (named_by_user and error.status_code in _USER_STATUSES):
        return UserError(message)
    return InfrastructureError(message)
