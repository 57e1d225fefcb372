"""Configuration: what it may say (`schema`), whether it does (`check`), making objects of it (`build`), where it is
(`paths`), and entry points (`entry`).
"""

from retool.config.build import build, typed
from retool.config.check import check
from retool.config.paths import conf_dir

__all__ = ["build", "check", "conf_dir", "typed"]
