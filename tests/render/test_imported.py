"""Of a name that several places have, the one that Python imports."""

from __future__ import annotations

from pathlib import Path

import msgspec

from repro_env.model.environment import Layout
from repro_env.model.spec import Spec
from repro_env.render import pylock, requirements
from repro_env.render.imported import imported


def twice(spec: Spec, *order: str) -> Spec:
    """The spec with its first distribution in another place too; `order`: prefixes as `sys.path` has them."""
    (one, *rest) = spec.identity.distributions
    home = Layout(prefix="/home/ann/.local", in_place=True, purelib="lib/p", platlib="lib/p", scripts="bin", headers="include")
    second = msgspec.structs.replace(one, place=1)
    identity = msgspec.structs.replace(spec.identity, others=(home,), distributions=(one, second, *rest))
    sites = {"venv": f"{spec.identity.layout.prefix}/{spec.identity.layout.purelib}", "home": "/home/ann/.local/lib/p"}
    startup = msgspec.structs.replace(spec.observed.startup, sys_path=("/x", *(sites[name] for name in order)))
    return msgspec.structs.replace(spec, identity=identity, observed=msgspec.structs.replace(spec.observed, startup=startup))


def test_the_first_on_the_path_is_imported(spec: Spec) -> None:
    for order, place in ((("venv", "home"), 0), (("home", "venv"), 1)):
        shown, hidden = imported(twice(spec, *order))
        assert [one.name for one in shown] == sorted({one.name for one in spec.identity.distributions})
        assert [one.place for one in shown] == [place, *[0] * (len(shown) - 1)]
        assert [one.place for one in hidden] == [1 - place]


def test_lock_files_name_it_once_and_tell_of_the_other(spec: Spec, tmp_path: Path) -> None:
    found = twice(spec, "venv", "home")
    name = found.identity.distributions[0].name
    text = requirements.render(found).decode()
    assert text.count(f"\n{name}==") == 1
    assert f"hidden: {name} 3 in /home/ann/.local" in text
    assert pylock.render(found).decode().count(f'name = "{name}"') == 1
