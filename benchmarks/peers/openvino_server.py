"""A small server with the part of the OpenAI API that benchmarks use, over OpenVINO GenAI.

Run in the environment of the `openvino` peer: `python openvino_server.py MODEL.gguf --tokenizer
tokenizer.json --port N`. Greedy text completions and chats of one message, streamed or not, by
continuous batching with prefix caching. Owns the pipeline's thread; sampling, stop strings and
errors of requests are not its business.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
import openvino
import openvino_genai as genai
from aiohttp import web
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

_STEP_TOKENS = 2048
_BODY_BYTES = 1 << 26
Put = Callable[[list[int] | None], None]
"""Takes token ids as they come, None after the last; called from the pipeline's thread."""


@dataclass(frozen=True, slots=True)
class _Request:
    ids: list[int]
    config: genai.GenerationConfig
    put: Put


class _Engine:
    """The pipeline, stepped by a thread of its own for as long as there are requests."""

    def __init__(self, options: argparse.Namespace) -> None:
        scheduling = genai.SchedulerConfig()
        scheduling.cache_size = options.cache_gb
        scheduling.max_num_seqs = options.at_once
        scheduling.max_num_batched_tokens = _STEP_TOKENS
        scheduling.dynamic_split_fuse = True
        scheduling.enable_prefix_caching = True
        properties = {"INFERENCE_NUM_THREADS": options.threads}
        self._pipeline = genai.ContinuousBatchingPipeline(
            options.model, scheduling, "CPU", properties
        )
        self._changed = threading.Condition()
        self._waiting: list[_Request] = []
        threading.Thread(target=self._run, daemon=True).start()

    def chat(self, messages: list[dict[str, Any]]) -> str:
        """A chat as a prompt."""
        prompt: str = self._pipeline.get_tokenizer().apply_chat_template(messages, True)
        return prompt

    def submit(self, request: _Request) -> None:
        """Run a request; returns at once."""
        with self._changed:
            self._waiting.append(request)
            self._changed.notify()

    def _run(self) -> None:
        numbers = count()
        live: dict[int, tuple[genai.GenerationHandle, Put]] = {}
        while True:
            with self._changed:
                while not self._waiting and not live:
                    self._changed.wait()
                new, self._waiting = self._waiting, []
            for request in new:
                number = next(numbers)
                prompt = openvino.Tensor(np.array([request.ids], dtype=np.int64))
                handle = self._pipeline.add_request(number, prompt, request.config)
                live[number] = handle, request.put
            self._pipeline.step()
            for number, (handle, put) in tuple(live.items()):
                while handle.can_read():
                    for output in handle.read().values():
                        put(list(output.generated_ids))
                if handle.get_status() != genai.GenerationStatus.RUNNING:
                    put(None)
                    del live[number]


class _Api:
    def __init__(self, engine: _Engine, tokenizer: Tokenizer, eos: int) -> None:
        self._engine, self._tokenizer, self._eos = engine, tokenizer, eos

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """`/v1/completions` and `/v1/chat/completions`."""
        body = await request.json()
        chat = "messages" in body
        prompt = self._engine.chat(body["messages"]) if chat else body["prompt"]
        ids = self._tokenizer.encode(prompt, add_special_tokens=False).ids
        loop, arrived = asyncio.get_running_loop(), asyncio.Queue[list[int] | None]()

        def put(new: list[int] | None) -> None:
            loop.call_soon_threadsafe(arrived.put_nowait, new)

        self._engine.submit(_Request(ids, self._config(body), put))
        usage = {"prompt_tokens": len(ids), "completion_tokens": 0}
        pieces = self._pieces(arrived, usage)
        if body.get("stream"):
            return await self._stream(request, pieces, usage, body["max_tokens"], chat)
        text = "".join([piece async for piece in pieces])
        whole = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        reason = _finish_reason(usage, body["max_tokens"])
        choice = {"index": 0, "finish_reason": reason, **whole}
        return web.json_response({"choices": [choice], "usage": usage})

    async def _stream(
        self,
        request: web.Request,
        pieces: AsyncIterator[str],
        usage: dict[str, int],
        max_tokens: int,
        chat: bool,
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)

        async def event(piece: str, reason: str | None, **more: Any) -> None:
            text = {"delta": {"content": piece}} if chat else {"text": piece}
            choice = {"index": 0, "finish_reason": reason, **text}
            data = json.dumps({"choices": [choice], **more})
            await response.write(b"data: " + data.encode() + b"\n\n")

        async for piece in pieces:
            await event(piece, None)
        await event("", _finish_reason(usage, max_tokens), usage=usage)
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _pieces(
        self, arrived: asyncio.Queue[list[int] | None], usage: dict[str, int]
    ) -> AsyncIterator[str]:
        """Text as it comes, counting its tokens; the end of text is none."""
        decode = DecodeStream(skip_special_tokens=False)
        while (new := await arrived.get()) is not None:
            usage["completion_tokens"] += len(new)
            steps = (decode.step(self._tokenizer, i) for i in new)
            if piece := "".join(step for step in steps if step):
                yield piece

    def _config(self, body: dict[str, Any]) -> genai.GenerationConfig:
        config = genai.GenerationConfig()
        config.max_new_tokens = body["max_tokens"]
        config.do_sample = False
        config.apply_chat_template = False
        config.eos_token_id = self._eos
        if body.get("ignore_eos"):
            config.ignore_eos = True
        else:
            config.stop_token_ids = {self._eos}
        if asked := body.get("response_format"):
            structure = genai.StructuredOutputConfig()
            structure.json_schema = json.dumps(asked["json_schema"]["schema"])
            config.structured_output_config = structure
        return config


def _finish_reason(usage: dict[str, int], max_tokens: int) -> str:
    return "length" if usage["completion_tokens"] >= max_tokens else "stop"


def main() -> None:
    """Load the model and serve until killed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", help="a GGUF file, or a folder in OpenVINO's format")
    parser.add_argument("--tokenizer", required=True, help="its tokenizer.json")
    parser.add_argument("--eos", default="<|im_end|>", help="the token that ends a text")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--cache-gb", type=int, default=2)
    parser.add_argument("--at-once", type=int, default=16)
    options = parser.parse_args()
    tokenizer = Tokenizer.from_file(options.tokenizer)
    eos = tokenizer.token_to_id(options.eos)
    if eos is None:
        parser.error(f"{options.eos!r} is no token of {options.tokenizer}: give --eos")
    api = _Api(_Engine(options), tokenizer, eos)
    app = web.Application(client_max_size=_BODY_BYTES)
    app.router.add_post("/v1/completions", api.complete)
    app.router.add_post("/v1/chat/completions", api.complete)
    web.run_app(app, host="127.0.0.1", port=options.port, print=None)


if __name__ == "__main__":
    main()
