"""`run`: serves a model of `conf/model` over HTTP, for the unmodified PyTRIO SDK."""

from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from retool.config.check import check
from retool.errors import UserError


def run(cfg: DictConfig) -> None:
    """Serves until interrupted. The model answers to the name of its option and to its `base_model`.

    Raises `UserError` for a model that does not run on the embedded engine.
    """
    check(cfg)
    option = HydraConfig.get().runtime.choices["model"]
    if cfg.model.engine is None:
        raise UserError(f"model={option} runs on the PyTRIO cloud, there is nothing to serve. Choose model=tiny, say.")
    from retool.engine.serving import serve

    directory = cfg.engine_dir or Path("outputs") / "serve" / option
    serve(
        base_model=cfg.model.base_model,
        engine={str(key): cfg.model.engine[key] for key in cfg.model.engine},
        names=tuple(dict.fromkeys((option, cfg.model.base_model))),
        engine_dir=Path(directory).resolve(),
        host=cfg.host,
        port=cfg.port,
        key=cfg.key,
    )
