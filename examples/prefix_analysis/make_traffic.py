"""Writes chat traffic to analyse: good prefixes, and two that are polluted early.

Run it, then look at what caching would save, and at what keeps it from saving more:

    python examples/prefix_analysis/make_traffic.py requests.jsonl
    python -m phloem.radix_cache analyze requests.jsonl --plot hit_rate.svg
"""

import json
import random
import sys
import uuid
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

SENTENCE = (
    "the a of to and in that is for on with as at by from this be are or an it not which we can "
    "your order account customer policy refund shipping answer question agent tool table result"
)
WORDS = SENTENCE.split()


def prose(rng: random.Random, words: int) -> str:
    """So many words of nothing in particular."""
    return " ".join(rng.choices(WORDS, k=words))


def traffic(requests: int, seed: int = 0) -> Iterator[dict[str, object]]:
    """OpenAI-style requests of three applications, in the order of arrival."""
    rng = random.Random(seed)
    rules, manual, persona = prose(rng, 500), prose(rng, 400), prose(rng, 300)
    now = datetime(2026, 11, 2, 9, 0)
    chats: list[list[dict[str, str]]] = []
    for _ in range(requests):
        now += timedelta(seconds=rng.randrange(1, 90))
        question = {"role": "user", "content": prose(rng, 25)}
        application = rng.randrange(4)
        if application == 0:
            system = f"Current time: {now.isoformat()}Z\nYou are a support agent. {rules}"
            yield {"messages": [{"role": "system", "content": system}, question]}
        elif application == 1:
            session = uuid.UUID(int=rng.getrandbits(128))
            yield {"prompt": f"[session {session}] Use the manual. {manual}\nQ: " + prose(rng, 20)}
        elif application == 2 or not chats:
            chats.append([{"role": "system", "content": f"You are a poet. {persona}"}, question])
            yield {"messages": list(chats[-1]), "cache_salt": "poets"}
        else:
            chat = rng.choice(chats[-20:])
            chat += [{"role": "assistant", "content": prose(rng, 60)}, question]
            yield {"messages": list(chat), "cache_salt": "poets"}


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "requests.jsonl")
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 2000
    target.write_text("".join(json.dumps(request) + "\n" for request in traffic(count)))
