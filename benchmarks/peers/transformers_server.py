"""A small server with the part of the OpenAI API that W1 uses, over transformers' `generate`.

Run in the environment of the `transformers` peer: `python transformers_server.py FOLDER --port N
--threads N`. Greedy text completions in float32, streamed or not, one at a time: others wait.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import torch
from aiohttp import web
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream
from transformers import AutoModelForCausalLM
from transformers.generation.streamers import BaseStreamer


class _Tokens(BaseStreamer):
    """Hands on what `generate` gives, but for the prompt, which comes first."""

    def __init__(self, put: Callable[[int], object]) -> None:
        self._put, self._begun = put, False

    def put(self, value: torch.Tensor) -> None:
        if self._begun:
            self._put(int(value))
        self._begun = True

    def end(self) -> None:
        """`generate` returns at the same time."""


class _Api:
    def __init__(self, folder: str) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self._eos = self._model.generation_config.eos_token_id
        self._tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
        self._turn = asyncio.Lock()

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """`/v1/completions`."""
        body = await request.json()
        ids = self._tokenizer.encode(body["prompt"], add_special_tokens=False).ids
        usage = {"prompt_tokens": len(ids), "completion_tokens": 0}
        async with self._turn:
            pieces = self._pieces(ids, body, usage)
            if not body.get("stream"):
                text = "".join([piece async for piece in pieces])
                return web.json_response({"choices": [{"index": 0, "text": text}], "usage": usage})
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            async for piece in pieces:
                choice = {"index": 0, "text": piece, "finish_reason": None}
                await response.write(
                    b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"
                )
        stopped = usage["completion_tokens"] < body["max_tokens"]
        last = {"index": 0, "text": "", "finish_reason": "stop" if stopped else "length"}
        data = json.dumps({"choices": [last], "usage": usage}).encode()
        await response.write(b"data: " + data + b"\n\ndata: [DONE]\n\n")
        return response

    async def _pieces(
        self, ids: list[int], body: dict[str, Any], usage: dict[str, int]
    ) -> AsyncIterator[str]:
        """Text as it comes, counting its tokens."""
        loop, arrived = asyncio.get_running_loop(), asyncio.Queue[int | None]()
        streamer = _Tokens(lambda token: loop.call_soon_threadsafe(arrived.put_nowait, token))
        running = asyncio.create_task(asyncio.to_thread(self._generate, ids, body, streamer))
        running.add_done_callback(lambda _: arrived.put_nowait(None))
        decode = DecodeStream(skip_special_tokens=False)
        while (token := await arrived.get()) is not None:
            usage["completion_tokens"] += 1
            if piece := decode.step(self._tokenizer, token):
                yield piece
        await running

    def _generate(self, ids: list[int], body: dict[str, Any], streamer: _Tokens) -> None:
        self._model.generation_config.eos_token_id = None if body.get("ignore_eos") else self._eos
        self._model.generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            max_new_tokens=body["max_tokens"],
            do_sample=False,
            streamer=streamer,
        )


def main() -> None:
    """Load the model and serve until killed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", help="a model of Hugging Face")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    app = web.Application(client_max_size=1 << 26)
    app.router.add_post("/v1/completions", _Api(options.folder).complete)
    web.run_app(app, host="127.0.0.1", port=options.port, print=None)


if __name__ == "__main__":
    main()
