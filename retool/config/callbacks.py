"""Hydra callbacks: `LogFailure` puts the end of a failed job into that job's own log."""

import logging
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobStatus
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig

from retool.errors import UserError

logger = logging.getLogger("retool.job")


class LogFailure(Callback):
    """Hydra prints the failure of a single job, and of a sweep only the first, and logs none of them.

    Here every failure goes into the log of its job, and in a sweep to the console as well: a known mistake as its
    message, anything else with the traceback.
    """

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **kwargs: Any) -> None:  # noqa: ANN401  Hydra's own
        """Called by Hydra in the process of the job, while its log is open."""
        if job_return.status is not JobStatus.FAILED:
            return
        error = job_return._return_value
        if isinstance(error, UserError):
            record = _record("The job failed: %s", error, None)
        else:
            record = _record("The job failed with %r", error, error)
        if HydraConfig.get().mode == RunMode.MULTIRUN:
            logger.handle(record)
            return
        for handler in logging.getLogger().handlers:
            if isinstance(handler, logging.FileHandler):
                handler.handle(record)


def _record(message: str, error: BaseException, trace: BaseException | None) -> logging.LogRecord:
    exc_info = None if trace is None else (type(trace), trace, trace.__traceback__)
    return logger.makeRecord(logger.name, logging.ERROR, __file__, 0, message, (error,), exc_info)
