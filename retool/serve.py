"""Entry point: the embedded engine as a server for others. `python -m retool.serve`, keys in `conf/serve.yaml`."""

from omegaconf import DictConfig

from retool.config.entry import entry_point


@entry_point("serve")
def main(cfg: DictConfig) -> None:
    from retool.runs import serve

    serve.run(cfg)


if __name__ == "__main__":
    main()
