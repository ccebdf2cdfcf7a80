"""Some processes with a consumer client of `azure-eventhub` each, of which only the receiving of events is made up.

With settings in JSON as its argument this forks them, prints their process ids on one line, and waits for them. Each
ends by itself after a minute and a half. What they do is appended to a log, a line for each:

    open PARTITION PID OWNER      the client began to read a partition
    event PARTITION NUMBER PID    the application got an event
    close PARTITION PID           the client ended reading it
"""

import asyncio
import json
import os
import signal
import sys
import time
from typing import Any, NamedTuple

from azure.eventhub import EventHubConsumerClient
from azure.eventhub.aio import EventHubConsumerClient as AsyncClient

from pyspark_checkpointer.consumers.eventhub import CheckpointStore, aio

CONNECTION = "Endpoint=sb://orders.servicebus.windows.net/;SharedAccessKeyName=k;SharedAccessKey=a2V5"
HUB, GROUP = "clicks", "$Default"
INTERVAL = 0.4
EXPIRATION = 4.0
"""Seconds. The stores' servers tell the time in whole ones."""

PAUSE = 0.01
LIFETIME = 90


class Event(NamedTuple):
    sequence_number: int
    offset: str


class Application:
    """What the callbacks of a client do."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.partitions = [str(n) for n in range(settings["partitions"])]
        self._end = settings["end"]
        self._log = os.open(settings["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self.client: Any = None

    def has(self, number: int) -> bool:
        """Whether there is an event of this number: always, until a file says where they end."""
        try:
            with open(self._end) as file:
                return number < int(file.read())
        except FileNotFoundError:
            return True

    def note(self, *words: object) -> None:
        os.write(self._log, (" ".join(map(str, words)) + "\n").encode())

    def opened(self, context: Any) -> None:
        [processor] = self.client._event_processors.values()
        self.note("open", context.partition_id, os.getpid(), processor._id)

    def got(self, context: Any, event: Event) -> None:
        self.note("event", context.partition_id, event.sequence_number, os.getpid())

    def closed(self, context: Any, reason: object) -> None:
        self.note("close", context.partition_id, os.getpid())


class Source:
    """A consumer as the client makes one: events are numbered, and the position is the offset of the last one read."""

    def __init__(self, application: Application, position: str, handle: Any) -> None:
        self._next, self._has, self._handle = int(position) + 1, application.has, handle
        self.stop = False

    def receive(self, batch: bool, most: int, wait: float | None) -> None:
        time.sleep(PAUSE)
        if self._has(self._next):
            self._handle(self._take())

    def close(self) -> None:
        pass

    def _take(self) -> Event:
        self._next += 1
        return Event(self._next - 1, str(self._next - 1))


class AsyncSource(Source):
    async def receive(self, batch: bool, most: int, wait: float | None) -> None:  # type: ignore[override]
        await asyncio.sleep(PAUSE * 4)
        if self._has(self._next):
            await self._handle(self._take())

    async def close(self) -> None:  # type: ignore[override]
        pass


def arguments(store: Any) -> dict[str, Any]:
    return {
        "eventhub_name": HUB,
        "checkpoint_store": store,
        "load_balancing_interval": INTERVAL,
        "partition_ownership_expiration_interval": EXPIRATION,
    }


def consume(settings: dict[str, Any]) -> None:
    application = Application(settings)
    store = CheckpointStore(settings["url"], settings["options"], **settings["store"])
    client = EventHubConsumerClient.from_connection_string(CONNECTION, GROUP, **arguments(store))
    application.client = client
    client.get_partition_ids = lambda: application.partitions
    client._create_consumer = lambda group, partition, position, handle, **_: Source(application, position, handle)

    def on_event(context: Any, event: Event) -> None:
        application.got(context, event)
        context.update_checkpoint(event)

    client.receive(
        on_event,
        starting_position="-1",
        on_partition_initialize=application.opened,
        on_partition_close=application.closed,
    )


async def consume_awaiting(settings: dict[str, Any]) -> None:
    application = Application(settings)
    store = aio.CheckpointStore(settings["url"], settings["options"], **settings["store"])
    client = AsyncClient.from_connection_string(CONNECTION, GROUP, **arguments(store))
    application.client = client

    async def partition_ids() -> list[str]:
        return application.partitions

    client.get_partition_ids = partition_ids
    client._create_consumer = lambda group, partition, position, handle, **_: AsyncSource(application, position, handle)

    async def on_event(context: Any, event: Event) -> None:
        application.got(context, event)
        await context.update_checkpoint(event)

    async def opened(context: Any) -> None:
        application.opened(context)

    async def closed(context: Any, reason: object) -> None:
        application.closed(context, reason)

    await client.receive(on_event, starting_position="-1", on_partition_initialize=opened, on_partition_close=closed)


def main() -> None:
    settings = json.loads(sys.argv[1])
    children = []
    for _ in range(settings["processes"]):
        child = os.fork()
        if child == 0:
            signal.alarm(LIFETIME)
            if settings["face"] == "sync":
                consume(settings)
            else:
                asyncio.run(consume_awaiting(settings))
            os._exit(0)
        children.append(child)
    print(*children, flush=True)
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
