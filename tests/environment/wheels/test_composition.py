"""The overlay is the difference between the live tree and the wheels: complete and without duplicates."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from repro_env.environment.python.distributions import Scan
from repro_env.environment.python.sites import Bytecode, Site
from repro_env.environment.wheels.composition import Composition, compose
from repro_env.guest.wheelrule import EntryPoint
from repro_env.io.files import sha256_of, walk
from repro_env.oci.entry import Entry
from repro_env.oci.wheel import Installed
from repro_env.schema.errors import CaptureError
from tests.environment.wheels.installations import installed
from tests.fakes import wheels

SITE = "lib/python3.11/site-packages"
INFO = f"{SITE}/demo-1.0.dist-info"


DEMO = installed({f"{SITE}/demo.py": "x", f"{SITE}/demo/data.txt": "y", f"{INFO}/METADATA": "m", f"{INFO}/RECORD": "r"})


def write(prefix: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        (prefix / path).parent.mkdir(parents=True, exist_ok=True)
        (prefix / path).write_text(text)
        (prefix / path).chmod(0o644)


def live(prefix: Path) -> None:
    write(prefix, {f"{SITE}/demo.py": "x", f"{SITE}/demo/data.txt": "y", f"{INFO}/METADATA": "m", f"{INFO}/RECORD": "other"})


def composed(prefix: Path, *stacks: dict[str, Installed]) -> Composition:
    found = tuple(walk(prefix, skip=Bytecode(prefix)))
    hashes = {file.path: sha256_of(prefix / file.path) for file in found if file.kind == "file"}
    layout = msgspec.structs.replace(wheels.layout(prefix), python="/v/bin/python")
    return compose(stacks, Site(0, layout, Scan((), ()), found, hashes), {})


def overlay(composition: Composition) -> dict[str, str]:
    """Path below the environment -> kind, without directories that only contain other paths."""
    paths = {entry.path for entry in composition.overlay}
    return {
        entry.path.removeprefix("opt/env/"): entry.kind
        for entry in composition.overlay
        if entry.kind != "dir" or not any(other.startswith(entry.path + "/") for other in paths)
    }


def test_an_untouched_environment_needs_no_overlay(tmp_path: Path) -> None:
    live(tmp_path)
    write(
        tmp_path,
        {
            f"{INFO}/INSTALLER": "pip",
            f"{INFO}/REQUESTED": "",
            f"{INFO}/direct_url.json": "{}",
            f"{SITE}/__pycache__/demo.pyc": "",
        },
    )
    composition = composed(tmp_path, {"demo": DEMO})
    assert (composition.overlay, composition.edited, composition.altered) == ((), (), {"demo": frozenset()})


def test_stray_files_links_and_empty_directories_are_in_the_overlay(tmp_path: Path) -> None:
    live(tmp_path)
    write(tmp_path, {f"{SITE}/sitecustomize.py": "", "pyvenv.cfg": "home = /usr/bin", f"{SITE}/only.pyc": "sourceless"})
    (tmp_path / "lib64").symlink_to("lib")
    (tmp_path / "etc/empty").mkdir(parents=True)
    assert overlay(composed(tmp_path, {"demo": DEMO})) == {
        f"{SITE}/sitecustomize.py": "file",
        f"{SITE}/only.pyc": "file",
        "pyvenv.cfg": "file",
        "lib64": "link",
        "etc/empty": "dir",
    }


def test_edited_and_deleted_files_are_listed_and_in_the_overlay(tmp_path: Path) -> None:
    live(tmp_path)
    (tmp_path / SITE / "demo.py").write_text("edited")
    (tmp_path / SITE / "demo/data.txt").unlink()
    composition = composed(tmp_path, {"demo": DEMO})
    assert overlay(composition) == {f"{SITE}/demo.py": "file", f"{SITE}/demo/data.txt": "gone"}
    assert composition.edited == (f"{SITE}/demo.py (demo: changed)", f"{SITE}/demo/data.txt (demo: missing)")
    assert composition.altered["demo"] == {f"{SITE}/demo.py", f"{SITE}/demo/data.txt"}


def test_a_deleted_directory_is_one_whiteout(tmp_path: Path) -> None:
    live(tmp_path)
    (tmp_path / SITE / "demo/data.txt").unlink()
    (tmp_path / SITE / "demo").rmdir()
    assert overlay(composed(tmp_path, {"demo": DEMO})) == {f"{SITE}/demo": "gone"}


def test_a_link_that_replaces_a_directory_hides_its_files(tmp_path: Path) -> None:
    live(tmp_path)
    (tmp_path / SITE / "demo/data.txt").unlink()
    (tmp_path / SITE / "demo").rmdir()
    (tmp_path / SITE / "demo").symlink_to("elsewhere")
    assert overlay(composed(tmp_path, {"demo": DEMO})) == {f"{SITE}/demo": "link"}


def test_a_changed_executable_bit_is_a_change(tmp_path: Path) -> None:
    live(tmp_path)
    (tmp_path / SITE / "demo.py").chmod(0o755)
    assert overlay(composed(tmp_path, {"demo": DEMO})) == {f"{SITE}/demo.py": "file"}


def test_other_mode_bits_are_ignored(tmp_path: Path) -> None:
    live(tmp_path)
    (tmp_path / SITE / "demo.py").chmod(0o664)
    assert overlay(composed(tmp_path, {"demo": DEMO})) == {}


def test_of_two_distributions_with_one_path_the_live_file_is_kept(tmp_path: Path) -> None:
    write(tmp_path, {f"{SITE}/same.py": "from joblib"})
    distributions = {
        "joblib": installed({f"{SITE}/same.py": "from joblib"}),
        "setuptools": installed({f"{SITE}/same.py": "from setuptools"}),
    }
    composition = composed(tmp_path, distributions)
    assert overlay(composition) == {f"{SITE}/same.py": "file"}
    assert composition.altered == {"joblib": frozenset(), "setuptools": frozenset({f"{SITE}/same.py"})}
    write(tmp_path, {f"{SITE}/same.py": "from setuptools"})
    assert overlay(composed(tmp_path, distributions)) == {}


def test_a_generated_script_is_equal_and_an_edited_one_is_not(tmp_path: Path) -> None:
    stub = "#!/v/bin/python\nimport sys\nfrom demo import main\nif __name__ == '__main__':\n    sys.exit(main())\n"
    distributions = {"demo": installed({}, points={"bin/demo": EntryPoint("demo", "demo", "main")})}
    write(tmp_path, {"bin/demo": stub})
    (tmp_path / "bin/demo").chmod(0o755)
    assert overlay(composed(tmp_path, distributions)) == {}
    (tmp_path / "bin/demo").write_text(stub + "print('edited')\n")
    assert overlay(composed(tmp_path, distributions)) == {"bin/demo": "file"}


def test_a_dist_info_without_a_layer_is_completely_in_the_overlay(tmp_path: Path) -> None:
    live(tmp_path)
    write(tmp_path, {f"{SITE}/old-1.0.dist-info/METADATA": "m", f"{SITE}/old-1.0.dist-info/INSTALLER": "debian"})
    assert set(overlay(composed(tmp_path, {"demo": DEMO}))) == {
        f"{SITE}/old-1.0.dist-info/METADATA",
        f"{SITE}/old-1.0.dist-info/INSTALLER",
    }


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    import os

    live(tmp_path)
    os.mkfifo(tmp_path / SITE / "pipe")
    with pytest.raises(CaptureError, match="no image can contain it") as caught:
        composed(tmp_path, {"demo": DEMO})
    assert caught.value.where == f"{tmp_path}/{SITE}/pipe"


def test_files_that_pip_writes_over_a_conda_package_are_in_the_overlay(tmp_path: Path) -> None:
    """pip installed another version over it: INSTALLER and RECORD are no longer those of the conda package."""
    live(tmp_path)
    write(tmp_path, {f"{INFO}/INSTALLER": "pip\n"})
    package = installed({f"{SITE}/demo.py": "x", f"{INFO}/INSTALLER": "conda", f"{INFO}/RECORD": "by conda"})
    names = {f"{SITE}/demo.py": "x", f"{SITE}/demo/data.txt": "y", f"{INFO}/METADATA": "m", f"{INFO}/RECORD": "r"}
    wheel = installed({**names, f"{INFO}/INSTALLER": "repro-env"})
    composition = composed(tmp_path, {"conda/demo": package}, {"demo": wheel})
    assert composition.altered["conda/demo"] == {f"{INFO}/INSTALLER", f"{INFO}/RECORD"}
    assert (overlay(composition), composition.edited) == ({}, ())


def test_a_conda_packages_symlinks_and_directories_are_compared(tmp_path: Path) -> None:
    entries = [
        Entry("lib/a", "link", target="b"),
        Entry("lib/c", "link", target="d"),
        Entry("share/empty", "dir"),
        Entry("share/x", "dir"),
    ]
    package = Installed("opt/env", tuple(entries), {}, {}, {}, {})
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "a").symlink_to("b")
    (tmp_path / "lib" / "c").symlink_to("elsewhere")
    (tmp_path / "share" / "empty").mkdir(parents=True)
    composition = composed(tmp_path, {"conda/demo": package})
    assert composition.edited == ("lib/c (demo: changed)", "share/x (demo: missing)")
    assert overlay(composition) == {"lib/c": "link", "share/x": "gone"}
