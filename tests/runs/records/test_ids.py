from __future__ import annotations

import uuid

from repro_env.runs.records import ids


def test_an_id_is_a_uuid_of_version_seven() -> None:
    text = ids.uuid7(1_700_000_000_123, bytes(range(200, 210)))
    parsed = uuid.UUID(text)
    assert (parsed.version, parsed.variant) == (7, uuid.RFC_4122)
    assert parsed.int >> 80 == 1_700_000_000_123
    assert str(parsed) == text


def test_ids_sort_by_time_for_any_random_part() -> None:
    early, late = ids.uuid7(5, b"\xff" * 10), ids.uuid7(6, bytes(10))
    assert early < late


def test_the_short_form_comes_from_the_random_part() -> None:
    assert ids.short(ids.uuid7(1, bytes(9) + b"\x7f")) == "0000007f"
    assert ids.short(ids.uuid7(1, b"\xff" * 10)) == ids.short(ids.uuid7(2, b"\xff" * 10)) == "ffffffff"


def test_an_exact_name_precedes_the_names_that_begin_with_it() -> None:
    def named(word: str, least: int = 1) -> list[str]:
        return ids.matching(word, ["ab", "abc", "x"], lambda name: (name,), least=least)

    assert named("ab") == ["ab"]
    assert named("a") == ["ab", "abc"]
    assert named("a", least=2) == named("") == named("y") == []
