"""Entry point: train a policy with reinforcement learning. `python -m retool.train`, keys in `conf/train.yaml`."""

from omegaconf import DictConfig

from retool.config.entry import entry_point


@entry_point("train")
def main(cfg: DictConfig) -> None:
    from retool.runs import train

    train.run(cfg)


if __name__ == "__main__":
    main()
