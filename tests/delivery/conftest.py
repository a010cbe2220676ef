"""A spec with a wheel of each origin, and the index of these wheels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import msgspec
import pytest

from repro_env.schema.spec import Spec
from tests.fakes import specs, wheels
from tests.fakes.index import Index


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    with Index(tmp_path / "wheels") as one:
        yield one


@pytest.fixture
def spec(index: Index, tmp_path: Path) -> Spec:
    """A spec with one wheel from an index, one from a URL, and one bundled."""
    made = {
        name: wheels.make(index.directory, name, version)
        for name, version in (("zeta", "1.0"), ("mid", "2.0+cpu"), ("alpha-pkg", "3"))
    }
    urls = {name: [f"{index.proxy}/files/{quote(path.name)}"] for name, path in made.items() if name != "alpha-pkg"}
    found = specs.make(tmp_path / "repro", made, urls=urls, carry=["alpha-pkg"])
    hints = []
    for hint in found.hints.wheels:
        more = {"origin": "direct"} if "mid" in "".join(hint.urls) else {"index": index.url} if hint.urls else {}
        hints.append(msgspec.structs.replace(hint, **more))
    return msgspec.structs.replace(found, hints=msgspec.structs.replace(found.hints, wheels=tuple(hints)))
