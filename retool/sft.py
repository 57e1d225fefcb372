"""Entry point: supervised fine-tuning on worked traces. `python -m retool.sft`, keys in `conf/sft.yaml`."""

from omegaconf import DictConfig

from retool.config.entry import entry_point


@entry_point("sft")
def main(cfg: DictConfig) -> None:
    from retool.runs import sft

    sft.run(cfg)


if __name__ == "__main__":
    main()
