"""Ask a server by the typed client: several prompts at once, then one as it comes.

The server runs in the background for as long as the example does; a running one is asked alike.
"""

from __future__ import annotations

import asyncio

from phloem.server.background import running_server
from phloem.server.client import AsyncClient
from phloem.server.config import ServerArgs

GREEDY = {"temperature": 0, "max_new_tokens": 12}
PROMPTS = ["The capital of France is", "The capital of Japan is", "The capital of Italy is"]


async def ask(url: str) -> None:
    """Show answers and what came with them."""
    async with AsyncClient(url) as client:
        for result in await asyncio.gather(*(client.generate(p, GREEDY) for p in PROMPTS)):
            print(result.text.strip().split("\n")[0])
        async with client.stream(PROMPTS[0], GREEDY | {"top_logprobs": 0}) as parts:
            async for part in parts:
                print("".join(f"{entry.token_id}:{entry.logprob:.2f} " for entry in part.logprobs))
        print(f"cached: {part.cached_tokens} of {part.prompt_tokens} prompt tokens")


if __name__ == "__main__":
    with running_server(ServerArgs(model="smollm2")) as server:
        asyncio.run(ask(server.url))
