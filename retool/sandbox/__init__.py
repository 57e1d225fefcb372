"""Running model-written code: `open_sandbox`, and what it gives back, `ExecutionResult` with its `ExecutionStatus`."""

from retool.sandbox.base import ExecutionResult, ExecutionStatus, Sandbox
from retool.sandbox.opening import OpenSandbox, open_sandbox

__all__ = ["ExecutionResult", "ExecutionStatus", "OpenSandbox", "Sandbox", "open_sandbox"]
