"""Events of training runs: `EventLedger` keeps their states and results, `RunQueue` runs them in order.

Results are kept for a while after they were fetched, since a reply can be lost on the way, and longer when nobody
fetched them. What remains of an event afterwards is its identifier, so that a repeated submission is still known.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

import msgpack

from retool.engine.wire.errors import ApiError, as_api_error
from retool.engine.wire.protocol import EventEnvelope, EventStatus, EventType

PROTOCOL_VERSION = 1


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an event produced: its result, and how many tokens it read and trained on."""

    result: dict[str, object]
    input_tokens: int = 0
    train_tokens: int = 0


@dataclass(eq=False, slots=True)
class Event:
    """One event. `reply` is the encoded terminal reply; it is dropped some time after the event ended."""

    event_id: str
    type: EventType
    run_id: str
    index: int
    status: EventStatus = EventStatus.ACCEPTED
    reply: bytes | None = None
    ended_at: float = 0.0
    fetched: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def ended(self) -> bool:
        """Whether the status is final."""
        return self.status in (EventStatus.SUCCEEDED, EventStatus.FAILED)

    def current_reply(self) -> bytes:
        """The encoded reply to a question about this event. Raises `ApiError` 410 when its result was dropped."""
        if not self.ended:
            return _pack(self, {})
        if self.reply is None:
            raise ApiError(410, "event_result_expired", f"The result of {self.event_id} is no longer kept.")
        return self.reply

    def succeed(self, outcome: Outcome) -> None:
        """Ends the event with a result."""
        self._end(EventStatus.SUCCEEDED, {"result": outcome.result}, outcome.input_tokens, outcome.train_tokens)

    def fail(self, error: ApiError) -> None:
        """Ends the event with an error."""
        self._end(EventStatus.FAILED, {"error": error.body()}, 0, 0)

    def _end(self, status: EventStatus, fields: dict[str, object], input_tokens: int, train_tokens: int) -> None:
        self.status = status
        usage = {"input_tokens": input_tokens, "output_tokens": 0, "train_tokens": train_tokens}
        self.reply = _pack(self, {**fields, "usage": usage})
        self.ended_at = time.monotonic()
        self.changed.set()


class EventLedger:
    """Every event of every live run, by identifier."""

    def __init__(self, *, keep_fetched_s: float = 120.0, keep_unfetched_s: float = 3600.0) -> None:
        self._events: dict[str, Event] = {}
        self._keep_fetched_s = keep_fetched_s
        self._keep_unfetched_s = keep_unfetched_s
        self._closing = False

    def require_new(self, event_id: str) -> None:
        """Raises `ApiError` 409 `event_exists`, which the SDK takes for success, for an event already known."""
        if event_id in self._events:
            raise ApiError(409, "event_exists", f"{event_id} was submitted before.")

    def add(self, event: Event) -> None:
        """Records a new event."""
        self._events[event.event_id] = event

    def get(self, event_id: str) -> Event:
        """The event. Raises `ApiError` 404."""
        if event_id not in self._events:
            raise ApiError(404, "event_not_found", f"There is no event {event_id}; was the server restarted?")
        return self._events[event_id]

    async def wait(self, event: Event, seconds: float) -> bytes:
        """The reply about an event: as soon as it ends, or its state after `seconds`."""
        if not event.ended and not self._closing and seconds > 0:
            with suppress(TimeoutError):
                await asyncio.wait_for(event.changed.wait(), seconds)
        reply = event.current_reply()
        event.fetched = event.ended
        return reply

    def close(self) -> None:
        """Answers everyone who waits, so that the server can stop."""
        self._closing = True
        for event in self._events.values():
            event.changed.set()

    def forget_run(self, run_id: str) -> None:
        """Drops all events of a run."""
        self._events = {key: event for key, event in self._events.items() if event.run_id != run_id}

    def sweep(self) -> None:
        """Drops results that were kept long enough."""
        now = time.monotonic()
        for event in self._events.values():
            keep_s = self._keep_fetched_s if event.fetched else self._keep_unfetched_s
            if event.reply is not None and now - event.ended_at > keep_s:
                event.reply = None

    @property
    def retained_bytes(self) -> int:
        """Size of the results that are kept."""
        return sum(len(event.reply) for event in self._events.values() if event.reply is not None)


Execute = Callable[[EventEnvelope], Awaitable[Outcome]]


class RunQueue:
    """Runs the events of one training run one after the other, by index, whatever the order of their arrival."""

    def __init__(self, execute: Execute, *, gap_timeout_s: float = 60.0) -> None:
        """An event whose predecessor does not arrive within `gap_timeout_s` fails."""
        self._execute = execute
        self._gap_timeout_s = gap_timeout_s
        self._next_index = 1
        self._waiting: dict[int, tuple[Event, EventEnvelope]] = {}
        self._worker: asyncio.Task[None] | None = None
        self._gap_timer: asyncio.TimerHandle | None = None
        self._closed = False

    def check(self, index: int) -> None:
        """Raises `ApiError` 409 if an event of this index cannot be queued."""
        if self._closed:
            raise ApiError(409, "run_ended", "The training run has ended.")
        if index < self._next_index or index in self._waiting:
            raise ApiError(409, "event_index_taken", f"Another event of this run already has index {index}.")

    def submit(self, event: Event, envelope: EventEnvelope) -> None:
        """Queues an event that passed `check`."""
        self._waiting[event.index] = (event, envelope)
        if self._next_index in self._waiting:
            self._stop_gap_timer()
            if self._worker is None or self._worker.done():
                self._worker = asyncio.create_task(self._work())
        elif self._worker is None or self._worker.done():
            self._start_gap_timer()

    def close(self) -> None:
        """Fails what waits; an event that is running ends by itself."""
        self._closed = True
        self._stop_gap_timer()
        self._fail_waiting(ApiError(409, "run_ended", "The training run ended before this event was reached."))

    async def drained(self) -> None:
        """Returns when no event is running."""
        if self._worker is not None:
            await self._worker

    async def _work(self) -> None:
        while self._next_index in self._waiting:
            event, envelope = self._waiting.pop(self._next_index)
            self._next_index += 1
            event.status = EventStatus.RUNNING
            try:
                event.succeed(await self._execute(envelope))
            except Exception as error:  # noqa: BLE001 - the boundary: every fault becomes a failed event
                event.fail(as_api_error(error))
        if self._waiting:
            self._start_gap_timer()

    def _start_gap_timer(self) -> None:
        if self._gap_timer is None:
            self._gap_timer = asyncio.get_running_loop().call_later(self._gap_timeout_s, self._give_up)

    def _stop_gap_timer(self) -> None:
        if self._gap_timer is not None:
            self._gap_timer.cancel()
            self._gap_timer = None

    def _give_up(self) -> None:
        self._gap_timer = None
        missing = self._next_index
        self._fail_waiting(ApiError(409, "event_missing", f"Event {missing} of this run, due before, did not arrive."))

    def _fail_waiting(self, error: ApiError) -> None:
        for event, _ in self._waiting.values():
            event.fail(error)
        self._waiting.clear()


def _pack(event: Event, fields: dict[str, object]) -> bytes:
    head = {"version": PROTOCOL_VERSION, "event_id": event.event_id, "type": event.type, "status": event.status}
    return bytes(msgpack.packb({**head, **fields}))
