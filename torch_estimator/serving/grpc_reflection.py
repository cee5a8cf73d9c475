"""gRPC's server reflection, by which grpcurl and Postman learn what the server answers.

Older clients ask for it under the name of its draft, ``v1alpha``, with the same messages. The published package
grpcio-reflection has the draft only.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from torch_estimator.json_text import shortened
from torch_estimator.serving.messages import read_messages, read_pool
from torch_estimator.web.access import Tokens
from torch_estimator.web.errors import RequestError

_SERVICES = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")

_MESSAGES = read_messages("reflection")

# Methods of a pool that find what a request names.
_FINDERS = {
    "file_by_filename": ("FindFileByName",),
    "file_containing_symbol": ("FindFileContainingSymbol", "FindMethodByName"),
    "all_extension_numbers_of_type": ("FindMessageTypeByName",),
}

# A stream that stayed open would hold the end of the server back until its deadline.
_SILENT_SECS = 5.0


class GrpcReflection:
    """Answers ``ServerReflectionInfo`` about the services in ``protos/NAME.pb`` of some names, and about itself."""

    def __init__(self, tokens: Tokens, names: tuple[str, ...]) -> None:
        self._tokens = tokens
        self._pools = {name: read_pool(name) for name in (*names, "reflection")}

    def handlers(self) -> list[Any]:
        """Return what a server of gRPC is to add."""
        write = _MESSAGES["ServerReflectionResponse"].SerializeToString
        method = grpc.stream_stream_rpc_method_handler(self._info, response_serializer=write)
        return [grpc.method_handlers_generic_handler(name, {"ServerReflectionInfo": method}) for name in _SERVICES]

    async def _info(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[Any]:
        metadata = dict(context.invocation_metadata() or ())
        try:
            self._tokens.check(str(metadata.get("authorization", "")).encode())
        except RequestError as error:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, error.message)
        while True:
            try:
                async with asyncio.timeout(_SILENT_SECS):
                    request = _MESSAGES["ServerReflectionRequest"].FromString(await anext(requests))
            except (StopAsyncIteration, TimeoutError):
                return
            except DecodeError:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "The request is no ServerReflectionRequest.")
            yield self._answer(request)

    def _answer(self, request: Any) -> Any:
        asked = request.WhichOneof("message_request")
        value = getattr(request, asked or "host")
        answer = _MESSAGES["ServerReflectionResponse"](valid_host=request.host, original_request=request)
        if asked == "list_services":
            for name, (pool, _) in self._pools.items():
                for service in pool.FindFileByName(f"{name}.proto").services_by_name.values():
                    answer.list_services_response.service.add(name=service.full_name)
            return answer
        for pool, files in self._pools.values():
            if asked in _FINDERS and _finds(pool, _FINDERS[asked], value):
                if asked == "all_extension_numbers_of_type":
                    # No message has extensions.
                    answer.all_extension_numbers_response.base_type_name = value
                else:
                    answer.file_descriptor_response.file_descriptor_proto.extend(files)
                return answer
        answer.error_response.error_code = grpc.StatusCode.NOT_FOUND.value[0]
        what = f"{asked} {shortened(value)}" if asked in _FINDERS else asked or "an empty request"
        answer.error_response.error_message = f"The server has no answer to {what}."
        return answer


def _finds(pool: Any, finders: tuple[str, ...], name: str) -> bool:
    for finder in finders:
        with contextlib.suppress(KeyError):
            getattr(pool, finder)(name)
            return True
    return False
