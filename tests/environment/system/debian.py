"""A small Debian machine below a directory."""

from __future__ import annotations

from pathlib import Path

from repro_env.environment.system.dpkg import Database


class Machine:
    """A dpkg database in a directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "var/lib/dpkg/info").mkdir(parents=True)
        (root / "var/lib/dpkg/status").write_text("")

    def install(self, name: str, *files: str, arch: str = "amd64", exact: bool = False, **fields: str) -> None:
        lines = {"Package": name, "Status": "install ok installed", "Architecture": arch, "Version": "1-1"}
        lines.update({field.replace("_", "-"): value for field, value in fields.items()})
        with (self.root / "var/lib/dpkg/status").open("a") as status:
            status.write("".join(f"{field}: {value}\n" for field, value in lines.items()) + "\n")
        stem = self.root / "var/lib/dpkg/info" / (f"{name}:{arch}" if exact else name)
        Path(f"{stem}.list").write_text("/.\n" + "".join(f"{file}\n" for file in files))

    def database(self) -> Database:
        return Database(self.root)
