"""Objects put and got by aiobotocore's own client: what others write, and what others see."""

from __future__ import annotations

from functools import cache
from typing import Any, Self

from aiobotocore.config import AioConfig
from aiobotocore.session import get_session

from tests.s3.fixture import REGION, Bucket


@cache
def _session() -> Any:
    """One for all: it keeps the descriptions of the services, which take long to load."""
    return get_session()


class Objects:
    """The objects of a bucket."""

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket

    async def __aenter__(self) -> Self:
        self._context = _session().create_client(
            "s3",
            endpoint_url=self.bucket.url,
            region_name=REGION,
            aws_access_key_id=self.bucket.account[0],
            aws_secret_access_key=self.bucket.account[1],
            config=AioConfig(signature_version="s3v4", s3={"addressing_style": "path"}),
        )
        self._client: Any = await self._context.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._context.__aexit__(*error)

    async def put(self, key: str, data: bytes) -> None:
        """Write an object."""
        await self._client.put_object(Bucket=self.bucket.name, Key=key, Body=data)

    async def get(self, key: str) -> bytes:
        """An object's bytes."""
        answer = await self._client.get_object(Bucket=self.bucket.name, Key=key)
        async with answer["Body"] as body:
            data: bytes = await body.read()
        return data

    async def delete(self, key: str) -> None:
        """Remove an object."""
        await self._client.delete_object(Bucket=self.bucket.name, Key=key)

    async def keys(self, prefix: str = "") -> list[str]:
        """The keys that begin so."""
        found = []
        pages = self._client.get_paginator("list_objects_v2")
        async for page in pages.paginate(Bucket=self.bucket.name, Prefix=prefix):
            found += [entry["Key"] for entry in page.get("Contents", [])]
        return found
