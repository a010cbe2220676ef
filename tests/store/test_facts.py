"""Facts in the store, also those that another version wrote."""

from __future__ import annotations

from pathlib import Path

from repro_env.schema import codec
from repro_env.schema.artifact import Wheel
from repro_env.store.store import Store


def test_facts_are_read_back_and_other_formats_count_as_missing(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store")
    value = Wheel(name="demo", version="1", filename="demo-1-py3-none-any.whl", sha256="sha256:" + "0" * 64, size=1)
    assert store.facts.recall("demo", "key", Wheel) is None
    store.facts.put("demo", "key", codec.canonical(value))
    assert store.facts.recall("demo", "key", Wheel) == value
    for other in (b'{"name":"demo"}', b"[]", b"", codec.canonical(value)[:-1] + b',"new":1}'):
        store.facts.put("demo", "key", other)
        assert store.facts.recall("demo", "key", Wheel) is None
