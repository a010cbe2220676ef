"""What package indexes say about a version of a distribution: whether it was yanked, and its known vulnerabilities.

The JSON API of PyPI (its documentation describes it under "Get a release") at `/pypi/NAME/VERSION/json`, next to the `/simple` of a configured index. Other
indexes may not have it.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from repro_env.io.indexhttp import Session
from repro_env.schema import redact
from repro_env.schema.errors import NetworkError
from repro_env.schema.sources import Package


class _Vulnerability(msgspec.Struct):
    id: Annotated[str, Meta(max_length=200)]
    withdrawn: str | None = None


class _Info(msgspec.Struct):
    yanked: bool = False
    yanked_reason: str | None = None


class _Release(msgspec.Struct):
    info: _Info
    vulnerabilities: list[_Vulnerability]


def ask(session: Session, name: str, version: str) -> Package | None:
    """Return what the first index that answers says about a distribution; None if no index has such answers.

    Raises `NetworkError` if an index cannot be reached or its answer cannot be read.
    """
    for index in session.configuration.indexes:
        root = index.rstrip("/").removesuffix("/simple")
        page = session.get_page(f"{root}/pypi/{name}/{version}/json")
        if page.status != 200:
            continue
        try:
            release = msgspec.json.decode(page.body, type=_Release)
        except msgspec.MsgspecError as error:
            hint = "contact the operator of that index"
            raise NetworkError(f"the answer cannot be read: {error}", where=redact.url(page.url), hint=hint) from None
        return Package(
            name=name,
            version=version,
            vulnerabilities=tuple(redact.line(found.id) for found in release.vulnerabilities if found.withdrawn is None),
            yanked=redact.line(release.info.yanked_reason or "") if release.info.yanked else None,
        )
    return None
