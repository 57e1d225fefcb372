"""Where the configuration files are, from any working directory, in a checkout and in an installed wheel."""

from pathlib import Path

from retool.errors import UserError

_PACKAGE = Path(__file__).resolve().parent.parent


def conf_dir() -> Path:
    """The directory of `train.yaml`. Inside the package first: beside it could be somebody else's `conf`."""
    for candidate in (_PACKAGE / "conf", _PACKAGE.parent / "conf"):
        if (candidate / "train.yaml").is_file():
            return candidate
    raise UserError(f"The configuration files are missing: looked for conf/train.yaml in {_PACKAGE} and beside it.")


def chat_template_path(name_or_path: str) -> Path:
    """The file of `model.chat_template`: a path, or the name of one of `conf/templates/*.jinja`.

    Raises `UserError` when there is no such file.
    """
    path = Path(name_or_path).expanduser()
    if path.is_file():
        return path
    shipped = conf_dir() / "templates" / f"{name_or_path}.jinja"
    if shipped.is_file():
        return shipped
    known = ", ".join(sorted(file.stem for file in shipped.parent.glob("*.jinja"))) or "none"
    raise UserError(f"model.chat_template: '{name_or_path}' is neither a file nor a shipped template ({known}).")
