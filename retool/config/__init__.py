"""Configuration: what it may say (`schema`), whether it does (`check`), turning it into objects (`build`), where it is (`paths`)."""

from retool.config.build import build
from retool.config.check import check
from retool.config.paths import conf_dir

__all__ = ["build", "check", "conf_dir"]
