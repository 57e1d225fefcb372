"""Progress on a terminal as bars, elsewhere as plain log lines.

Contents: `Progress` (a bar for steps and one for the trajectories of the step at hand).
"""

import sys
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars


class Progress:
    """Shows bars only where stderr is a terminal; the run's own log lines say the same once a step."""

    def __init__(self, *, steps: int, completed: int = 0, visible: bool | None = None) -> None:
        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not (sys.stderr.isatty() if visible is None else visible),
            transient=True,
        )
        self._steps = self._bars.add_task("steps", total=steps, completed=completed, visible=steps > 0)
        self._trajectories = self._bars.add_task("trajectories", total=None)

    def __enter__(self) -> "Progress":
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def begin(self, description: str, trajectories: int) -> None:
        """A batch of trajectories starts."""
        self._bars.reset(self._trajectories, total=trajectories, description=description)

    def trajectory(self, _: object = None) -> None:
        """One trajectory is complete; usable as a rollout's `on_trajectory`."""
        self._bars.advance(self._trajectories)

    def step(self) -> None:
        """One step is complete."""
        self._bars.advance(self._steps)
