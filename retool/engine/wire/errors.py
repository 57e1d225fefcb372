"""`ApiError`, the one failure that clients see, and the translation of other failures into it.

The SDK retries 408, 429 and 5xx for a quarter of an hour, so a fault of the server itself is never one of those.
"""

import logging

from pydantic import ValidationError

from retool.engine.types import EngineError

logger = logging.getLogger(__name__)

_NOT_FOUND_CODES = frozenset({"run_not_found", "weights_not_found", "checkpoint_not_found"})
_REPORTED_PROBLEMS = 3


class ApiError(Exception):
    """A request that cannot be served: an HTTP status below 500, a stable code and a message for people."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message

    def body(self) -> dict[str, str]:
        """The JSON object that the SDK turns into its own error."""
        return {"code": self.code, "message": self.message}


def invalid_request(error: ValidationError) -> ApiError:
    """Names the fields that a request model rejected, without repeating their values."""
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    shown = [f"{'.'.join(map(str, problem['loc'])) or 'body'}: {problem['msg']}" for problem in problems]
    more = f"; and {len(shown) - _REPORTED_PROBLEMS} more" if len(shown) > _REPORTED_PROBLEMS else ""
    return ApiError(422, "invalid_request", "; ".join(shown[:_REPORTED_PROBLEMS]) + more)


def as_api_error(error: BaseException) -> ApiError:
    """Any failure as an `ApiError`. Faults of the server are logged with their traceback."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, EngineError):
        return ApiError(404 if error.code in _NOT_FOUND_CODES else 400, error.code, str(error))
    if isinstance(error, ValidationError):
        return invalid_request(error)
    logger.error("The engine failed", exc_info=error)
    return ApiError(400, "engine_fault", f"{type(error).__name__}: {error}")
