"""Watch a node with plain nats-py, without a line of this project: a dashboard or a bot of yours starts like this.

    python watch_bus.py "$(agentgym-runner nats-info --json)" [EPISODES]

Prints each ended episode from the beginning of the stream, then each new one; stops after EPISODES of them. A program
that keeps its place uses a durable consumer, and ignores a `ce-id` that it has seen before.
"""

import asyncio
import json
import sys
from pathlib import Path

import nats
from nats.js.api import ConsumerConfig, DeliverPolicy

SUBJECT = "agentgym.episode.completed.v1"


async def main(url: str, login: dict[str, str], n_episodes: float) -> None:
    client = await nats.connect(url, user=login["user"], password=login["password"])
    config = ConsumerConfig(deliver_policy=DeliverPolicy.ALL)
    episodes = await client.jetstream().subscribe(SUBJECT, ordered_consumer=True, config=config)
    seen = set[str]()
    while len(seen) < n_episodes:
        message = await episodes.next_msg(timeout=None)
        event, event_id = json.loads(message.data), (message.headers or {}).get("ce-id", "")
        if event_id not in seen:
            seen.add(event_id)
            # Texts come from outside: `ascii` shows control characters instead of sending them to the terminal.
            print(*(ascii(event.get(name)) for name in ("env", "task_index", "outcome", "reward")), flush=True)
    await client.close()


if __name__ == "__main__":
    node = json.loads(sys.argv[1])
    credential = json.loads(Path(node["credential_file"]).read_text())
    asyncio.run(main(node["url"], credential, int(sys.argv[2]) if len(sys.argv) > 2 else float("inf")))
