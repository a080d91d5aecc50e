"""A typed client of a Phloem server over gRPC, for asyncio."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from phloem.server.client.results import Embedded, Generated, Health, ServerInfo, Stream
from phloem.server.client.retry import Retries
from phloem.server.closing import AsyncClosing
from phloem.server.openai_wire import bearer

try:
    import grpc

    from phloem.server.grpc import phloem_pb2 as pb
    from phloem.server.grpc.convert import embed_request_of, request_of, result_of
    from phloem.server.grpc.status import failure_of
except ImportError as error:
    raise ImportError(
        f"AsyncGrpcClient needs gRPC's libraries ({error}): pip install 'phloem-server[grpc]'"
    ) from error

_SERVICE: str = pb.DESCRIPTOR.services_by_name["Phloem"].full_name


class AsyncGrpcClient(AsyncClosing):
    """Asks a Phloem server over one connection; as `AsyncClient`, with the same results.

    It belongs to the event loop that it is made in.
    """

    def __init__(
        self,
        target: str,
        *,
        api_key: str | None = None,
        retries: Retries | None = None,
        credentials: grpc.ChannelCredentials | None = None,
    ) -> None:
        """Nothing is sent yet.

        Args:
            target: the server's address, as `127.0.0.1:30001`.
            api_key: sent with each call.
            retries: as of `AsyncClient`.
            credentials: for a server with TLS.

        Raises:
            ValueError: `api_key` cannot be sent.
        """
        self._metadata = tuple((name.lower(), value) for name, value in bearer(api_key).items())
        options = [("grpc.max_receive_message_length", -1)]
        self._channel: grpc.aio.Channel = (
            grpc.aio.insecure_channel(target, options=options)
            if credentials is None
            else grpc.aio.secure_channel(target, credentials, options=options)
        )
        self._retries = retries or Retries()

    async def aclose(self) -> None:
        """Close the connection; calls that run are cancelled."""
        await self._channel.close()

    async def generate(
        self,
        prompt: str | None = None,
        sampling_params: Mapping[str, Any] | None = None,
        *,
        input_ids: Sequence[int] | None = None,
        **options: Any,
    ) -> Generated:
        """Continue a prompt, given as text or as token ids; as `AsyncClient.generate`."""
        request = request_of(prompt, sampling_params, input_ids, options)
        return result_of(await self._ask("Generate", request, pb.GenerateResponse))

    def stream(
        self,
        prompt: str | None = None,
        sampling_params: Mapping[str, Any] | None = None,
        *,
        input_ids: Sequence[int] | None = None,
        **options: Any,
    ) -> Stream[Generated]:
        """The same as it comes; what an output ended with is in its last part."""
        return Stream(self._news(request_of(prompt, sampling_params, input_ids, options)))

    async def embed(
        self, inputs: str | Sequence[str] | Sequence[Sequence[int]], **options: Any
    ) -> Embedded:
        """A vector for each input; as `AsyncClient.embed`."""
        answer = await self._ask("Embed", embed_request_of(inputs, options), pb.EmbedResponse)
        return Embedded([list(each.values) for each in answer.vectors], answer.prompt_tokens)

    async def abort(self, request_id: str) -> int:
        """End a request by its id; how many sequences of it were running."""
        request = pb.AbortRequest(rid=request_id)
        return int((await self._ask("Abort", request, pb.AbortResponse)).aborted)

    async def health(self) -> Health:
        """Whether the server takes requests now, by the standard health service."""
        # Imported here: its module registers message types, which only this call needs.
        from grpc_health.v1 import health_pb2 as health

        check = self._channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=health.HealthCheckRequest.SerializeToString,
            response_deserializer=health.HealthCheckResponse.FromString,
        )
        try:
            status = (await check(health.HealthCheckRequest(service=_SERVICE))).status
        except grpc.aio.AioRpcError as error:
            return Health(False, str(failure_of(error)))
        name = health.HealthCheckResponse.ServingStatus.Name(status)
        ready = status == health.HealthCheckResponse.SERVING
        return Health(ready, "" if ready else f"the server says {name}")

    async def info(self) -> ServerInfo:
        """What it serves."""
        told = await self._ask("Info", pb.InfoRequest(), pb.InfoResponse)
        return ServerInfo(told.model, told.context_length)

    async def _ask(self, method: str, request: Any, answer: Any) -> Any:
        ask = self._channel.unary_unary(
            f"/{_SERVICE}/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )

        async def once() -> Any:
            try:
                return await ask(request, metadata=self._metadata)
            except grpc.aio.AioRpcError as error:
                raise failure_of(error) from error

        return await self._retries.run(once)

    async def _news(self, request: pb.GenerateRequest) -> AsyncGenerator[Generated, None]:
        ask = self._channel.unary_stream(
            f"/{_SERVICE}/GenerateStream",
            request_serializer=pb.GenerateRequest.SerializeToString,
            response_deserializer=pb.GenerateResponse.FromString,
        )

        async def begin() -> tuple[Any, Any]:
            call = ask(request, metadata=self._metadata)
            try:
                return call, await call.read()
            except grpc.aio.AioRpcError as error:
                raise failure_of(error) from error
            except BaseException:
                call.cancel()
                raise

        call, response = await self._retries.run(begin)
        try:
            while response is not grpc.aio.EOF:
                yield result_of(response)
                response = await call.read()
        except grpc.aio.AioRpcError as error:
            raise failure_of(error) from error
        finally:
            call.cancel()
