"""When failures of the machine stop a run: `check_infrastructure`."""

from collections.abc import Sequence

from retool.errors import InfrastructureError
from retool.rollout.trajectory import StopReason, TrajectoryGroup


def check_infrastructure(groups: Sequence[TrajectoryGroup], max_rate: float, what: str) -> None:
    """Raises `InfrastructureError` if more than the share `max_rate` of the trajectories of `what` failed so."""
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    failed = [trajectory for trajectory in trajectories if trajectory.stop_reason is StopReason.INFRASTRUCTURE]
    if len(failed) > max_rate * len(trajectories):
        raise InfrastructureError(
            f"{len(failed)} of {len(trajectories)} trajectories of {what} failed for reasons of the machine, more than "
            f"max_infrastructure_rate={max_rate:g} allows. The first: {failed[0].error}"
        )
