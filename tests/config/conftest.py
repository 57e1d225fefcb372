import pytest

from retool.config import schema
from retool.config.compose import Composition, compose, config_loader


@pytest.fixture(scope="session")
def loader():
    schema.register()
    return config_loader()


@pytest.fixture
def compose_entry(loader):
    """Composes an entry configuration from overrides, as the command line would."""
    from hydra.types import RunMode

    def composed(entry: str, *overrides: str) -> Composition:
        return compose(loader, entry, overrides, RunMode.MULTIRUN)

    return composed
