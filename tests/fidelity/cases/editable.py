"""Editable installs: what is imported lies outside the environment."""

from __future__ import annotations

from tests.fidelity.case import case
from tests.fidelity.ground import Ground


@case("editable, no git")
def plain_directory(at: Ground) -> None:
    at.plain()
    at.pip("-e", at.sources("thing"))


@case("editable from a git tree with changes", soak=True)
def dirty(at: Ground) -> None:
    at.plain()
    root = at.sources("thing")
    at.repository(root)
    at.pip("-e", root)
    at.write(root / "thing" / "__init__.py", "from thing.fresh import VALUE\n")
    at.write(root / "thing" / "fresh.py", "VALUE = 'neither committed nor added'\n")


@case("editable, src layout, reading ../configs", soak=True)
def reads_beside(at: Ground) -> None:
    at.plain()
    root = at.sources(
        "thing", src=True, value="__import__('pathlib').Path(__file__).parents[2].joinpath('configs', 'run.toml').read_text()"
    )
    at.write(root / "configs" / "run.toml", "rate = 0.1\n")
    at.pip("-e", root)


@case("editable with a git-ignored extension module built in place", soak=True)
def ignored_extension(at: Ground) -> None:
    at.plain()
    root = at.sources("thing", src=True, value="__import__('thing.fast').fast.VALUE")
    at.extension(root / "src" / "thing" / "fast.abi3.so")
    at.write(root / ".gitignore", "*.so\n*.egg-info\n")
    at.repository(root)
    at.pip("-e", root)


@case("editable that reads a git-ignored data file", soak=True)
def ignored_data(at: Ground) -> None:
    at.plain()
    root = at.sources("thing", src=True)
    at.write(root / "src" / "thing" / "weights.bin", b"\1" * 100)
    at.write(root / ".gitignore", "*.bin\n*.egg-info\n")
    at.repository(root)
    at.pip("-e", root)


@case("editable through a finder module (a package at another path than its name)", soak=True)
def finder(at: Ground) -> None:
    at.plain()
    root = at.sources("thing")
    (root / "thing").rename(root / "code")
    table = (root / "pyproject.toml").read_text()
    at.write(
        root / "pyproject.toml",
        table.replace('packages = ["thing"]\n', 'packages = ["thing"]\npackage-dir = {"thing" = "code"}\n'),
    )
    at.pip("-e", root)


@case("editable in PEP 660's strict mode: a tree of links in build/", soak=True)
def strict(at: Ground) -> None:
    at.plain()
    at.pip("-e", at.sources("thing"), "--config-settings", "editable_mode=strict")


@case("setup.py develop: .egg-link and easy-install.pth", soak=True)
def develop(at: Ground) -> None:
    at.plain()
    at.pip("setuptools==68.2.2")
    root = at.sources("legacy", backend=False)
    at.write(root / "setup.py", "import setuptools\nsetuptools.setup()\n")
    at.run(at.python, "setup.py", "-q", "develop", "--no-deps", cwd=root)


@case("editable inside the project's own directory", soak=True)
def in_the_project(at: Ground) -> None:
    at.plain()
    root = at.sources("thing", "project/libs/thing", src=True)
    at.pip("-e", root)


@case("the project itself, editable", soak=True)
def the_project(at: Ground) -> None:
    at.plain()
    root = at.sources("thing", "project")
    at.pip("-e", root)


@case("two editables, one inside the other's directory", soak=True)
def nested(at: Ground) -> None:
    at.plain()
    at.pip("-e", at.sources("outer", "mono"))
    at.pip("-e", at.sources("inner", "mono/plugins/inner", src=True))


@case("editable made by uv", soak=True)
def by_uv(at: Ground) -> None:
    at.plain()
    at.uv("pip", "install", "-q", "--python", at.python, "-e", at.sources("thing", src=True))


@case("editable through a symlinked directory", soak=True)
def through_a_link(at: Ground) -> None:
    at.plain()
    root = at.sources("thing", "real/thing", src=True)
    (at.root / "linked").symlink_to(root.parent)
    at.pip("-e", at.root / "linked" / "thing")


@case("editable whose version file is generated and git-ignored", soak=True)
def generated(at: Ground) -> None:
    at.plain()
    root = at.sources("thing", src=True, value="__import__('thing._version')._version.VERSION")
    at.write(root / "src" / "thing" / "_version.py", "VERSION = '1.0.dev3+gabc'\n")
    at.write(root / ".gitignore", "_version.py\n*.egg-info\n")
    at.repository(root)
    at.pip("-e", root)


@case("editable in a linked git worktree", soak=True)
def worktree(at: Ground) -> None:
    at.plain()
    root = at.sources("thing", "main-tree", src=True)
    at.repository(root)
    at.run("git", "worktree", "add", "-q", "-b", "other", at.root / "other-tree", cwd=root)
    at.pip("-e", at.root / "other-tree")


@case("editable by meson-python, which builds again at import", named="rebuilds the project", soak=True)
def meson(at: Ground) -> None:
    """The layout that meson-python makes; ninja is a program that only this machine has."""
    at.plain()
    ninja = at.write(at.root / "tools" / "ninja", "#!/bin/sh\n")
    ninja.chmod(0o755)
    at.write(at.root / "mesonic" / "mesonic.py", "VALUE = 'built'\n")
    loader = (
        "import subprocess, sys\nfrom importlib.machinery import SourceFileLoader\nfrom importlib.util import spec_from_file_location\n"
        "class MesonpyMetaFinder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name != 'mesonic':\n            return None\n"
        f"        subprocess.run([{str(ninja)!r}], check=True)\n"
        f"        return spec_from_file_location(name, {str(at.root / 'mesonic' / 'mesonic.py')!r})\n"
        "sys.meta_path.insert(0, MesonpyMetaFinder())\n"
    )
    at.write(at.site / "_mesonic_editable_loader.py", loader)
    at.write(at.site / "mesonic-editable.pth", "import _mesonic_editable_loader\n")
    at.write(at.site / "uses_mesonic.py", "import mesonic\nVALUE = mesonic.VALUE\n")
