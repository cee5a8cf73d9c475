"""Requests to an application in the test's own process."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx


class InProcess(httpx.BaseTransport):
    """Sends requests to an application in this process."""

    def __init__(self, app: Any, root_path: str = "") -> None:
        self._transport = httpx.ASGITransport(app=app, root_path=root_path)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        async def answer() -> httpx.Response:
            response = await self._transport.handle_async_request(request)
            return httpx.Response(response.status_code, headers=response.headers, content=await response.aread())

        return asyncio.run(answer())
