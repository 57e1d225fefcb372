"""Entry point: evaluate a policy. `python -m retool.eval`, keys in `conf/eval.yaml`."""

from omegaconf import DictConfig

from retool.config.entry import entry_point


@entry_point("eval")
def main(cfg: DictConfig) -> None:
    from retool.runs import evaluate

    evaluate.run(cfg)


if __name__ == "__main__":
    main()
