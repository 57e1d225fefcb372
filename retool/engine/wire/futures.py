"""`settle`: waiting for the compute thread from the event loop."""

import asyncio
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


async def settle(future: "Future[T]") -> T:
    """The result of an operation of the compute thread. It goes on even if the waiting task is cancelled."""
    return await asyncio.shield(asyncio.wrap_future(future))
