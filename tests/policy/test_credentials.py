"""Which key goes to which server."""

import pytest

from retool.errors import UserError
from retool.policy.credentials import Credentials, check_credentials, resolve_credentials

CLOUD = "https://pytrio.com"
OTHER = "http://gpu-server:8765"


def store(home, key, base_url=None, env=None):
    folder = home / ".pytrio" / (f"envs/{env}" if env else "")
    folder.mkdir(parents=True, exist_ok=True)
    address = f'base_url = "{base_url}"\n' if base_url else ""
    (folder / "config.toml").write_text(f'api_key = "{key}"\n{address}')


def test_without_any_key_the_message_says_what_to_do(isolated_home):
    with pytest.raises(UserError, match=r"no API key for https://pytrio\.com.*trio login.*PYTRIO_API_KEY.*model=tiny"):
        check_credentials(None)


def test_the_stored_key_goes_to_its_own_server(isolated_home):
    store(isolated_home, "cloud-key")
    assert resolve_credentials(None) == Credentials(CLOUD, "cloud-key")
    assert resolve_credentials(CLOUD + "/api/") == Credentials(CLOUD, "cloud-key")
    with pytest.raises(UserError, match=r"for http://gpu-server:8765.*is for https://pytrio\.com and is not sent"):
        resolve_credentials(OTHER)


def test_a_stored_key_is_not_sent_to_the_address_of_the_environment(isolated_home, monkeypatch):
    store(isolated_home, "cloud-key")
    monkeypatch.setenv("PYTRIO_BASE_URL", OTHER)
    with pytest.raises(UserError, match="not sent elsewhere"):
        resolve_credentials(None)


def test_key_and_address_of_the_environment_belong_together(isolated_home, monkeypatch):
    store(isolated_home, "cloud-key")
    monkeypatch.setenv("PYTRIO_BASE_URL", OTHER + "/")
    monkeypatch.setenv("PYTRIO_API_KEY", "local")
    assert resolve_credentials(None) == Credentials(OTHER, "local")
    assert resolve_credentials(OTHER) == Credentials(OTHER, "local")
    assert resolve_credentials(CLOUD) == Credentials(CLOUD, "cloud-key")


def test_a_key_of_the_environment_alone_is_for_the_configured_service(isolated_home, monkeypatch):
    monkeypatch.setenv("PYTRIO_API_KEY", "env-key")
    assert resolve_credentials(None) == Credentials(CLOUD, "env-key")
    with pytest.raises(UserError, match="PYTRIO_BASE_URL=http://gpu-server:8765 together with PYTRIO_API_KEY"):
        resolve_credentials(OTHER)


def test_profiles(isolated_home, monkeypatch):
    store(isolated_home, "default-key")
    store(isolated_home, "staging-key", base_url="https://staging.example", env="staging")
    monkeypatch.setenv("PYTRIO_ENV", "staging")
    assert resolve_credentials(None) == Credentials("https://staging.example", "staging-key")


def test_an_explicit_key_is_taken(isolated_home):
    assert resolve_credentials(OTHER, "given") == Credentials(OTHER, "given")


def test_unreadable_credentials_are_reported(isolated_home):
    (isolated_home / ".pytrio").mkdir()
    (isolated_home / ".pytrio" / "config.toml").write_text("api_key = [")
    with pytest.raises(UserError, match="cannot be read"):
        check_credentials(None)


def test_what_an_earlier_client_configured_does_not_linger(isolated_home):
    import pytrio

    pytrio.configure(base_url=OTHER, api_key="engine-key")
    with pytest.raises(UserError, match="no API key"):
        check_credentials(None)
