import pytest
from omegaconf import OmegaConf

from retool.config import schema
from retool.errors import UserError
from retool.runs.checkpoint import (
    Checkpoint,
    ResumeState,
    append_checkpoint,
    changed_keys,
    identity,
    identity_hash,
    read_checkpoints,
    read_resume_state,
    write_resume_state,
)
from retool.runs.cost import Tokens
from retool.runs.references import CheckpointUse, engine_checkpoint, resolve_checkpoint
from retool.runs.run_dir import RunDirectory
from retool.runs.saving import StateKeeper
from retool.runs.session import RunSession


def state(**changes) -> ResumeState:
    fields = {"uri": "trio://r/weights/s", "next_step": 3, "cursor": 24, "config_hash": "h", "config": {"a": 1}}
    return ResumeState(**{**fields, **changes})


def test_a_resume_state_comes_back(tmp_path):
    path = tmp_path / "resume.json"
    assert read_resume_state(path) is None
    written = state(spent={"prefill": 1, "sampled": 2, "trained": 3}, retained=("a", "b"), tracker_id="t")
    write_resume_state(path, written)
    assert read_resume_state(path) == written


@pytest.mark.parametrize("content", ['{"uri": "x"}', '{"strange": 1}', "[1]", "{", '{"uri": 1, "next_step": 0}'])
def test_another_files_state_is_refused(tmp_path, content):
    path = tmp_path / "resume.json"
    path.write_text(content)
    with pytest.raises(UserError, match="is not a resume state of this version"):
        read_resume_state(path)


def test_checkpoints_made_again_replace_the_old_ones(tmp_path):
    path = tmp_path / "checkpoints.jsonl"
    for step in (5, 10, 15):
        append_checkpoint(path, Checkpoint(f"step-{step}", step, f"old state {step}", "w"))
    append_checkpoint(path, Checkpoint("step-10", 10, "new state 10", "w"))
    assert [(item.step, item.state) for item in read_checkpoints(path)] == [(5, "old state 5"), (10, "new state 10")]


TRAINING = {
    "seed": 1,
    "max_steps": 5,
    "ppo": {"learning_rate": 1e-3, "group_size": 8},
    "eval": {"samples": 2},
    "tracker": {"swanlab": {"mode": "disabled"}},
    "checkpoint": {"keep": 3},
    "model": {"base_model": "tiny", "recipe": {"learning_rate": 1e-3}, "price": None, "engine": None},
    "data": {"fields": {}},
}


def test_only_keys_that_change_a_step_are_compared():
    before = identity(OmegaConf.create(TRAINING))
    changed = OmegaConf.create(TRAINING)
    changed.max_steps, changed.eval.samples, changed.tracker.swanlab.mode = 9, 4, "offline"
    changed.checkpoint.keep, changed.model.recipe.learning_rate = 1, 1.0
    assert identity(changed) == before
    assert identity_hash(identity(changed)) == identity_hash(before)
    changed.ppo.learning_rate, changed.model.engine = 1e-2, {"device": "cpu"}
    assert changed_keys(before, identity(changed)) == [
        'model.engine: null -> "(absent)"',
        'model.engine.device: "(absent)" -> "cpu"',
        "ppo.learning_rate: 0.001 -> 0.01",
    ]


def test_an_evaluation_is_decided_by_its_eval_group():
    cfg = OmegaConf.create({key: value for key, value in TRAINING.items() if key != "ppo"})
    assert "eval.samples" in identity(cfg)


class SavingClient:
    """Saves into the layout of the embedded engine."""

    def __init__(self, run: RunDirectory, run_id: str = "r") -> None:
        self.run, self.run_id, self.calls = run, run_id, []

    async def save_state(self, name: str) -> str:
        return self._save("weights", name)

    async def save_weights(self, name: str) -> str:
        return self._save("sampler_weights", name)

    def _save(self, kind: str, name: str) -> str:
        address = f"trio://{self.run_id}/{kind}/{name}"
        engine_checkpoint(self.run.engine, address).mkdir(parents=True, exist_ok=True)
        self.calls.append(f"{kind}/{name}")
        return address


def keeper_for(run: RunDirectory, client: SavingClient, **settings: int) -> StateKeeper:
    session = RunSession(OmegaConf.create(TRAINING), run, None, resume=read_resume_state(run.resume))
    return StateKeeper(session, client, schema.Checkpoint(**{"every": 4, "resume_every": 1, "keep": 2, **settings}))


async def save_steps(keeper: StateKeeper, steps: range, last: int) -> None:
    for step in steps:
        if keeper.due(step, last):
            await keeper.save(next_step=step, cursor=step * 8, spent=Tokens(), named=keeper.named(step, last))


def states_on_disk(run: RunDirectory) -> list[str]:
    return sorted(
        str(path.relative_to(run.engine / "checkpoints")) for path in run.engine.glob("checkpoints/*/weights/*")
    )


async def test_old_states_go_and_named_ones_stay(tmp_path):
    run = RunDirectory(tmp_path)
    client = SavingClient(run)
    await save_steps(keeper_for(run, client), range(1, 8), last=7)
    assert client.calls == [
        "weights/resume-0",
        "weights/resume-1",
        "weights/resume-2",
        "weights/step-0004",
        "sampler_weights/step-0004",
        "weights/resume-1",
        "weights/resume-2",
        "weights/step-0007",
        "sampler_weights/step-0007",
    ]
    assert states_on_disk(run) == ["r/weights/resume-2", "r/weights/step-0004", "r/weights/step-0007"]
    assert [item.name for item in read_checkpoints(run.checkpoints)] == ["step-0004", "step-0007"]
    resumed = read_resume_state(run.resume)
    assert (resumed.uri, resumed.next_step, resumed.cursor) == ("trio://r/weights/step-0007", 7, 56)


async def test_a_continued_run_prunes_what_the_earlier_process_saved(tmp_path):
    run = RunDirectory(tmp_path)
    await save_steps(keeper_for(run, SavingClient(run, "first")), range(1, 4), last=9)
    assert states_on_disk(run) == ["first/weights/resume-1", "first/weights/resume-2"]
    await save_steps(keeper_for(run, SavingClient(run, "second")), range(4, 7), last=9)
    assert states_on_disk(run) == ["second/weights/resume-1", "second/weights/resume-2", "second/weights/step-0004"]


async def test_a_step_is_saved_once(tmp_path):
    run = RunDirectory(tmp_path)
    client = SavingClient(run)
    keeper = keeper_for(run, client)
    for _ in range(2):
        await keeper.save(next_step=1, cursor=8, spent=Tokens(), named=False)
    assert client.calls == ["weights/resume-0"]


def test_the_rhythm_of_saving(tmp_path):
    keeper = keeper_for(RunDirectory(tmp_path), SavingClient(RunDirectory(tmp_path)), every=10, resume_every=4)
    assert [step for step in range(1, 18) if keeper.due(step, 17)] == [4, 8, 10, 12, 16, 17]
    assert [step for step in range(18) if keeper.named(step, 17)] == [10, 17]


@pytest.fixture
async def trained(tmp_path) -> RunDirectory:
    run = RunDirectory(tmp_path / "trained")
    run.path.mkdir()
    await save_steps(keeper_for(run, SavingClient(run)), range(1, 7), last=9)
    return run


def resolve(reference: object, use: CheckpointUse = CheckpointUse.SAMPLE, embedded: bool = True) -> str:
    return resolve_checkpoint(str(reference), key="model.checkpoint", use=use, embedded=embedded)


def test_references_to_checkpoints(trained):
    engine = trained.engine / "checkpoints" / "r"
    assert resolve(trained.path) == (engine / "sampler_weights" / "step-0004").as_uri()
    assert resolve(trained.path, CheckpointUse.TRAIN) == (engine / "weights" / "step-0004").as_uri()
    assert resolve(trained.path / "step-0004") == (engine / "sampler_weights" / "step-0004").as_uri()
    assert resolve("trio://x/weights/y") == "trio://x/weights/y"
    trained.checkpoints.unlink()
    assert resolve(trained.path) == (engine / "weights" / "resume-2").as_uri()


def test_references_to_nothing_are_explained(trained, tmp_path):
    with pytest.raises(
        UserError, match=r"no checkpoint 'step-0005' in .*Did you mean 'step-0004'\? It has: step-0004\."
    ):
        resolve(trained.path / "step-0005")
    with pytest.raises(UserError, match=r"model\.checkpoint: .* holds no checkpoint of a run"):
        resolve(tmp_path)
    with pytest.raises(UserError, match="are those of an embedded engine"):
        resolve(trained.path, embedded=False)


def test_weights_that_were_left_behind_are_missed(trained):
    trained.engine.rename(trained.engine.with_name("elsewhere"))
    with pytest.raises(UserError, match="its weights are not in"):
        resolve(trained.path)
    assert resolve(trained.path, embedded=False) == "trio://r/sampler_weights/step-0004"
