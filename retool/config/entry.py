"""`entry_point`: Hydra's main, after the schema is registered and the command line is checked."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from omegaconf import DictConfig

from retool.errors import UserError

_FULL_ERROR = "HYDRA_FULL_ERROR"


def entry_point(config_name: str) -> Callable[[Callable[[DictConfig], None]], Callable[[], None]]:
    """Decorates a task of two lines (import, call): Hydra pickles the task by value for its launchers.

    A mistake in the command line ends in one message on stderr and exit code 1 before anything heavy is imported.
    """

    def decorate(task: Callable[[DictConfig], None]) -> Callable[[], None]:
        def main() -> None:
            import hydra
            from hydra._internal.utils import get_args_parser

            from retool.config import schema
            from retool.config.paths import conf_dir
            from retool.config.preflight import preflight

            with _one_message():
                directory = str(conf_dir())
                schema.register()
                preflight(config_name, get_args_parser().parse_args())
                hydra.main(version_base="1.3", config_path=directory, config_name=config_name)(task)()

        return main

    return decorate


@contextmanager
def _one_message() -> Iterator[None]:
    """Ends the process with a known mistake's message alone; any other exception keeps its whole traceback.

    Hydra would add lines of its own around the first, and cut the second. `HYDRA_FULL_ERROR=1` shows both whole.
    """
    from hydra.errors import HydraException

    whole = os.environ.get(_FULL_ERROR) == "1"
    os.environ[_FULL_ERROR] = "1"
    try:
        yield
    except (UserError, HydraException) as error:
        if whole:
            raise
        sys.stderr.write(f"{error}\n")
        sys.exit(1)
