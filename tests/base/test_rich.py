from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repro_env.base.rich import Asked, Resolver, parse
from repro_env.model.errors import LockError

INSTALLED = {"bash": ["bash"], "libc.so.6()(64bit)": ["glibc"], "cc": ["gcc", "clang"], "c++": ["clang"], "pkg(x)": ["x"]}


def met(text: str) -> list[str] | None:
    return Resolver(lambda name: list(INSTALLED.get(name, []))).meet(parse(text))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("bash", ["bash"]),
        ("libc.so.6()(64bit)", ["glibc"]),
        ("zsh", None),
        ("(bash)", ["bash"]),
        ("(zsh or bash)", ["bash"]),
        ("(zsh or fish or bash >= 5:1.2~rc1)", ["bash"]),
        ("(bash and pkg(x) = 2)", ["bash", "x"]),
        ("(bash and zsh)", None),
        ("(cc if bash)", ["gcc"]),
        ("(cc if zsh)", []),
        ("(cc if zsh else pkg(x))", ["x"]),
        ("(cc unless bash)", []),
        ("(cc unless zsh)", ["gcc"]),
        ("(cc unless bash else pkg(x))", ["x"]),
        ("(cc with c++)", ["clang"]),
        ("(cc without c++)", ["gcc"]),
        ("(c++ without cc)", None),
        ("((cc with c++) and (zsh or bash))", ["clang", "bash"]),
        ("((bash or zsh) if (libc.so.6()(64bit) and zsh))", []),
        ("(libc.so.6()(64bit) if bash)", ["glibc"]),
    ],
)
def test_a_requirement_is_met_by(text: str, expected: list[str] | None) -> None:
    assert met(text) == expected


def test_an_expression_is_read_as_it_is_nested() -> None:
    found = parse("((a >= 1 or b(x)) and c)")
    assert found == Asked("and", (Asked("or", ("a", "b(x)")), "c"))


@pytest.mark.parametrize(
    "text",
    [
        "(",
        "()",
        "(a",
        "(a or)",
        "(or a)",
        "(a b)",
        "(a or b and c)",
        "(a else b)",
        "(a if b else c else d)",
        "(a))",
        "(a or b) c",
    ],
)
def test_what_is_no_expression_is_refused_by_name(text: str) -> None:
    with pytest.raises(LockError) as caught:
        parse(text)
    assert caught.value.where == text


@given(st.text(alphabet="ab() <>=orandif", max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        met(text)
    except LockError:
        assert text.startswith("(")
