"""`soak`: many training steps with sampling through a server and the unmodified SDK; what the server's process holds.

The server is the process that a training run starts. A step is a new sampler, a group of samples, a forward_backward
and an optimizer step; every hundredth saves a state over the one before.
"""

import asyncio
import logging
import os
import tempfile
from pathlib import Path

from retool.policy.engine_process import EngineProcess

POINTS = 20
PROMPT = [5, 6, 7, 8]


def resident_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def soak(steps: int) -> list[dict[str, object]]:
    """Rows of step, resident memory in MB, open files and files in the engine's directory."""
    with tempfile.TemporaryDirectory(prefix="retool-soak-") as folder:
        return asyncio.run(_soak(steps, Path(folder)))


async def _soak(steps: int, folder: Path) -> list[dict[str, object]]:
    import pytrio as trio

    logging.getLogger().setLevel(logging.WARNING)
    engine_dir = folder / "engine"
    process = await EngineProcess.start(engine={"base_model": "tiny"}, engine_dir=engine_dir, names=["tiny"])
    rows: list[dict[str, object]] = []
    try:
        url = f"http://127.0.0.1:{process.ready['port']}"
        trio.configure_observability(enabled=False)
        trio.configure(
            home=str(folder / "home"), base_url=url, api_key=str(process.ready["api_key"]), log_level="ERROR"
        )
        service = trio.ServiceClient()
        training = service.create_lora_training_client("tiny", rank=32, seed=1)
        for step in range(steps + 1):
            if step % max(1, steps // POINTS) == 0:
                rows.append(_row(step, process.pid, engine_dir))
            await _step(trio, training, step)
        service._runtime.shutdown()
        await asyncio.sleep(1.0)
        rows.append(_row("session closed", process.pid, engine_dir))
    finally:
        await process.stop()
    return rows


def _row(step: object, pid: int, engine_dir: Path) -> dict[str, object]:
    return {
        "step": step,
        "resident_mb": resident_mb(pid),
        "open_files": open_files(pid),
        "files_on_disk": sum(path.is_file() for path in engine_dir.rglob("*")),
    }


async def _step(trio, training, step: int) -> None:  # noqa: ANN001
    sampler = await training.save_weights_and_get_sampling_client_async()
    params = trio.SamplingParams(max_tokens=16, seed=step)
    response = await sampler.sample_async(trio.ModelInput.from_ints(PROMPT), 8, params)
    data = []
    for number, sequence in enumerate(response.sequences):
        tokens = [*PROMPT, *sequence.tokens]
        blank = [0.0] * (len(PROMPT) - 1)
        inputs = {
            "target_tokens": tokens[1:],
            "logprobs": [*blank, *sequence.logprobs],
            "advantages": [*blank, *[1.0 if number % 2 else -1.0] * len(sequence.tokens)],
        }
        data.append(trio.Datum(model_input=trio.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs))
    forward = await training.forward_backward_async(data, "ppo")
    update = await training.optim_step_async(trio.AdamParams(learning_rate=1e-5))
    await forward
    await update
    if step % 100 == 0:
        await (await training.save_state_async("latest", overwrite=True))
