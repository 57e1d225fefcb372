"""How a run begins, ends and is continued, whatever it does inside."""

import json

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from retool.config import conf_dir, schema
from retool.errors import InfrastructureError, UserError
from retool.runs.checkpoint import ResumeState, identity, identity_hash, write_resume_state
from retool.runs.preemption import Preempted
from retool.runs.session import open_run
from retool.runs.status import RunState, read_status


@pytest.fixture
def train_config(tmp_path):
    """A composed training configuration whose run directory is `tmp_path/run`."""
    (tmp_path / "run").mkdir()

    def composed(*overrides: str, entry: str = "train"):
        schema.register()
        with initialize_config_dir(str(conf_dir()), version_base="1.3"):
            return compose(entry, [f"resume={tmp_path}/run", *overrides])

    return composed


def finish(cfg, result: dict) -> None:
    with open_run(cfg) as session:
        session.record(result)
        session.finish()


def save_state(session, next_step: int) -> None:
    config = identity(session.cfg)
    write_resume_state(
        session.directory.resume, ResumeState("trio://r/weights/s", next_step, 8, identity_hash(config), config)
    )


def test_a_run_leaves_its_provenance(train_config):
    with open_run(train_config("max_steps=1")) as session:
        assert read_status(session.directory.status).state is RunState.RUNNING
        session.tracker.log(0, {"reward/mean": 0.5})
        session.completed(1)
        session.record({"kind": "train"})
        session.finish()
    directory = session.directory
    assert read_status(directory.status).state is RunState.DONE
    saved = OmegaConf.load(directory.config)
    assert saved.ppo.learning_rate == 3e-3 and "${" not in directory.config.read_text()
    meta = json.loads(directory.meta.read_text())
    assert {"argv", "versions", "git", "host", "slurm", "python", "continued"} <= meta.keys()
    assert {"retool", "pytrio", "torch", "hydra-core"} <= meta["versions"].keys()
    assert json.loads(directory.metrics.read_text()) == {"step": 0, "reward/mean": 0.5}
    assert not directory.is_live()


def test_a_finished_run_returns_its_result(train_config):
    with open_run(train_config("max_steps=2")) as session:
        save_state(session, 2)
        session.record({"kind": "train", "steps": 2})
        session.finish()
    with open_run(train_config("max_steps=2")) as session:
        assert session.finished == {"kind": "train", "steps": 2}
    assert json.loads(session.directory.meta.read_text())["continued"] == []


def test_a_finished_run_with_more_steps_goes_on(train_config):
    with open_run(train_config("max_steps=2")) as session:
        for step in range(3):
            session.tracker.log(step, {"x": 1.0})
        save_state(session, 2)
        session.record({"steps": 2})
        session.finish()
    with open_run(train_config("max_steps=4")) as session:
        assert session.finished is None and session.resume.next_step == 2
        rows = [json.loads(line)["step"] for line in session.directory.metrics.read_text().splitlines()]
        assert rows == [0, 1]


def test_a_changed_configuration_is_refused_and_the_status_kept(train_config):
    with open_run(train_config("max_steps=2")) as session:
        save_state(session, 1)
    refusal = pytest.raises(UserError, match=r"another configuration.*\n  ppo\.learning_rate: 0\.003 -> 0\.01\n")
    with refusal, open_run(train_config("max_steps=2", "ppo.learning_rate=0.01")):
        pytest.fail("the run began")
    assert read_status(session.directory.status).error is None
    with open_run(
        train_config("max_steps=9", "checkpoint.keep=1", "eval.samples=2", "tracker.swanlab.project=other")
    ) as session:
        assert session.resume.next_step == 1


def test_a_changed_evaluation_is_refused(train_config):
    finish(train_config(entry="eval"), {"kind": "eval"})
    with open_run(train_config(entry="eval")) as session:
        assert session.finished == {"kind": "eval"}
    with (
        pytest.raises(UserError, match=r"eval\.samples: 1 -> 4"),
        open_run(train_config("eval.samples=4", entry="eval")),
    ):
        pytest.fail("the run began")


def test_never_refuses_a_used_directory(train_config, tmp_path):
    from hydra.core.hydra_config import HydraConfig

    cfg = train_config("resume=never")
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        full = compose("train", [f"hydra.run.dir={tmp_path}/run"], return_hydra_config=True)
    full.hydra.runtime.output_dir = str(tmp_path / "run")
    HydraConfig.instance().set_config(full)
    try:
        with open_run(cfg) as session:
            session.completed(0)
        with pytest.raises(UserError, match="holds files of another run, and resume=never"), open_run(cfg):
            pytest.fail("the run began")
    finally:
        HydraConfig.instance().cfg = None


@pytest.mark.parametrize(
    ("error", "raised", "recorded"),
    [
        (UserError("bad data"), UserError, "bad data"),
        (InfrastructureError("engine died"), UserError, "engine died"),
        (ZeroDivisionError("oops"), ZeroDivisionError, "ZeroDivisionError: oops"),
        (KeyboardInterrupt(), KeyboardInterrupt, "interrupted"),
    ],
)
def test_errors_end_as_a_status(train_config, error, raised, recorded):
    with pytest.raises(raised), open_run(train_config()) as session:
        session.completed(3)
        raise error
    status = read_status(session.directory.status)
    assert (status.state, status.step, status.error) == (RunState.FAILED, 3, recorded)
    assert not session.directory.is_live()


def test_an_infrastructure_failure_says_how_to_go_on(train_config):
    refusal = pytest.raises(UserError, match=r"stopped after 2 steps: engine died\nTo continue .*hydra\.run\.dir=/")
    with refusal, open_run(train_config()) as session:
        session.completed(2)
        raise InfrastructureError("engine died")


def test_leaving_at_a_signal_is_not_a_failure(train_config):
    with open_run(train_config()) as session:
        session.completed(2)
        raise Preempted
    assert read_status(session.directory.status).state is RunState.REQUEUED


def test_a_wrong_configuration_touches_nothing(train_config, tmp_path):
    with pytest.raises(UserError, match=r"ppo\.group_size: 1 sample"), open_run(train_config("ppo.group_size=1")):
        pytest.fail("the run began")
    assert list((tmp_path / "run").iterdir()) == []


def test_what_was_made_after_the_saved_state_is_cut(train_config):
    with open_run(train_config("max_steps=9")) as session:
        session.directory.trajectories.mkdir()
        for step in range(4):
            session.tracker.log(step, {"x": float(step)})
            session.directory.step_trajectories(step).write_bytes(b"")
        save_state(session, 2)
    with open_run(train_config("max_steps=9")) as session:
        assert len(session.directory.metrics.read_text().splitlines()) == 2
        assert len(list(session.directory.trajectories.iterdir())) == 2
        assert session.step == 2
    assert len(json.loads(session.directory.meta.read_text())["continued"]) == 1
