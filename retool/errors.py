"""The two kinds of failure that end work, told apart everywhere.

`UserError`: what the user asked for cannot be done; the message says what is wrong, where, and what to do.
`InfrastructureError`: a service or a process that should have worked did not. It is retried, then masked out of
the loss, and past a threshold stops the run. What a *model* does wrong is neither: it is a status on the trajectory.
"""

from hydra.errors import CompactHydraException


class UserError(CompactHydraException):
    """A mistake in the configuration or the inputs. Hydra prints the message alone and exits with code 1."""


class InfrastructureError(RuntimeError):
    """A sandbox, scorer or service failed for reasons that have nothing to do with the model's output."""
