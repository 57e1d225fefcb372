"""`AdapterPool`: which weights the engine holds for sampling, so that its memory stays bounded.

Temporary weights exist in the engine only; of each run the most recently used few are kept until they expire. Saved
weights are loaded from disk when a request needs them and dropped when others were used since; they come back on
demand. Weights with requests in flight are never dropped.
"""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from retool.engine.wire.checkpoints import Checkpoint
from retool.engine.wire.engine import Engine
from retool.engine.wire.errors import ApiError
from retool.engine.wire.futures import settle


@dataclass(eq=False, slots=True)
class _Held:
    """Weights that the engine holds, or is loading, under the name `adapter`."""

    adapter: str
    run_id: str
    expires_at: float | None
    ready: "asyncio.Future[None]"
    in_flight: int = 0
    used: int = 0
    doomed: bool = False


@dataclass(frozen=True, slots=True)
class SavedWeights:
    """What a sampler of saved weights refers to: one version of a checkpoint."""

    checkpoint: Checkpoint

    @property
    def adapter(self) -> str:
        """The engine's name for this version."""
        return f"{self.checkpoint.uri}#{self.checkpoint.version}"


@dataclass(eq=False)
class AdapterPool:
    """Every method runs on the server's event loop."""

    engine: Engine
    temporary_per_run: int = 4
    saved: int = 4
    _temporary: dict[str, _Held] = field(default_factory=dict)
    _loaded: dict[str, _Held] = field(default_factory=dict)
    _clock: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    async def add_temporary(self, uri: str, run_id: str, ttl_seconds: int | None) -> None:
        """Snapshots a run's current weights under `uri`."""
        await settle(self.engine.snapshot(run_id, uri))
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        ready.set_result(None)
        expires_at = None if ttl_seconds is None else time.monotonic() + ttl_seconds
        self._temporary[uri] = _Held(uri, run_id, expires_at, ready, used=next(self._clock))
        self._trim([held for held in self._temporary.values() if held.run_id == run_id], self.temporary_per_run)

    def require_temporary(self, uri: str) -> None:
        """Marks temporary weights as wanted. Raises `ApiError` 404 when they were dropped or never existed."""
        self._held_temporary(uri).used = next(self._clock)

    @asynccontextmanager
    async def use(self, weights: "str | SavedWeights | None") -> AsyncIterator[str | None]:
        """Keeps weights in the engine for one request and yields their name there.

        `weights` is the address of temporary weights, a version of a checkpoint, or `None` for the base model.
        """
        if weights is None:
            yield None
            return
        held = self._held_temporary(weights) if isinstance(weights, str) else self._load(weights)
        held.in_flight += 1
        held.used = next(self._clock)
        try:
            await asyncio.shield(held.ready)
            yield held.adapter
        finally:
            held.in_flight -= 1
            if held.doomed and not held.in_flight:
                self._drop(held)

    def drop_run(self, run_id: str) -> None:
        """Lets a run's temporary weights go, as soon as the last request that uses them is done."""
        for held in [held for held in self._temporary.values() if held.run_id == run_id]:
            self._doom(held)

    def sweep(self) -> None:
        """Lets expired weights go."""
        now = time.monotonic()
        for held in list(self._temporary.values()):
            if held.expires_at is not None and held.expires_at <= now:
                self._doom(held)

    @property
    def names(self) -> set[str]:
        """The engine's names of everything held."""
        return {held.adapter for held in (*self._temporary.values(), *self._loaded.values())}

    def _held_temporary(self, uri: str) -> _Held:
        held = self._temporary.get(uri)
        if held is None or held.doomed:
            raise ApiError(
                404,
                "weights_not_found",
                f"The temporary weights {uri} are gone: they expired, their run ended, or its next "
                f"{self.temporary_per_run} snapshots took their place. Weights saved under a name are kept.",
            )
        return held

    def _load(self, weights: SavedWeights) -> _Held:
        held = self._loaded.get(weights.adapter)
        if held is None or (held.ready.done() and held.ready.exception() is not None):
            checkpoint = weights.checkpoint
            if not checkpoint.directory.is_dir():
                raise ApiError(404, "checkpoint_not_found", f"The checkpoint {checkpoint.uri} was deleted.")
            ready = asyncio.ensure_future(settle(self.engine.load_adapter(weights.adapter, checkpoint.directory)))
            held = _Held(weights.adapter, checkpoint.run_id, None, ready, used=next(self._clock))
            self._loaded[weights.adapter] = held
            self._trim(list(self._loaded.values()), self.saved)
        return held

    def _trim(self, group: list[_Held], limit: int) -> None:
        idle = sorted((held for held in group if not held.in_flight), key=lambda held: held.used)
        newest = max(group, key=lambda held: held.used)
        for held in idle[: max(0, len(group) - limit)]:
            if held is not newest:
                self._drop(held)

    def _doom(self, held: _Held) -> None:
        held.doomed = True
        if not held.in_flight:
            self._drop(held)

    def _drop(self, held: _Held) -> None:
        for pool in (self._temporary, self._loaded):
            if pool.get(held.adapter) is held:
                del pool[held.adapter]
                self.engine.drop_adapter(held.adapter)
