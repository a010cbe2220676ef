"""What `conda-meta` tells: as conda, mamba and rattler write it, and as nobody should. All constructed, after real records."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from repro_env.capture import conda
from repro_env.capture.distributions import Scan, scan
from repro_env.model.environment import Layout

SITE = "lib/python3.11/site-packages"
BY_CONDA = {
    "arch": "x86_64",
    "build": "py311h64a7726_0",
    "build_number": 0,
    "channel": "https://conda.example.com/main/linux-64",
    "constrains": [],
    "depends": ["python >=3.11,<3.12.0a0"],
    "extracted_package_dir": "/home/ann/miniconda3/pkgs/numpy-1.26.4-py311h64a7726_0",
    "files": ["bin/f2py", f"{SITE}/numpy/__init__.py"],
    "fn": "numpy-1.26.4-py311h64a7726_0.conda",
    "license": "BSD-3-Clause",
    "link": {"source": "/home/ann/miniconda3/pkgs/numpy-1.26.4-py311h64a7726_0", "type": 1},
    "md5": "a502d7aad449a1206efb366d6a12c52d",
    "name": "numpy",
    "package_tarball_full_path": "/home/ann/miniconda3/pkgs/numpy-1.26.4-py311h64a7726_0.conda",
    "paths_data": {
        "paths": [
            {
                "_path": "bin/f2py",
                "file_mode": "text",
                "path_type": "hardlink",
                "prefix_placeholder": "/home/conda/placehold",
                "sha256": "a" * 64,
                "sha256_in_prefix": "b" * 64,
                "size_in_bytes": 470,
            },
            {"_path": f"{SITE}/numpy/__init__.py", "path_type": "hardlink", "sha256": "c" * 64, "size_in_bytes": 9},
        ],
        "paths_version": 1,
    },
    "requested_spec": "numpy",
    "sha256": "3f4365e11b28e244c95ba8579942b0802761ba7bb31c026f50d1a9ea9c728149",
    "size": 8065890,
    "subdir": "linux-64",
    "timestamp": 1707225421156,
    "url": "https://conda.example.com/main/linux-64/numpy-1.26.4-py311h64a7726_0.conda",
    "version": "1.26.4",
}


def write(prefix: Path, name: str, said: Any) -> Path:
    path = prefix / "conda-meta" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(said if isinstance(said, bytes) else json.dumps(said).encode())
    return path


def layout(prefix: Path) -> Layout:
    return Layout(prefix=str(prefix), in_place=True, purelib=SITE, platlib=SITE, scripts="bin", headers="include/python3.11")


def dist(prefix: Path, name: str, version: str, record: str | None, installer: str = "conda") -> None:
    info = prefix / SITE / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "INSTALLER").write_text(installer)
    if record is not None:
        (info / "RECORD").write_text(record)


class TestRecords:
    def test_as_conda_writes_it(self, tmp_path: Path) -> None:
        write(tmp_path, "numpy-1.26.4-py311h64a7726_0.json", BY_CONDA)
        (one,) = conda.read(tmp_path).records
        assert (one.name, one.version, one.build, one.subdir) == ("numpy", "1.26.4", "py311h64a7726_0", "linux-64")
        assert (one.filename, one.size, one.requested) == (BY_CONDA["fn"], 8065890, True)
        assert (one.sha256, one.md5, one.archive) == (BY_CONDA["sha256"], BY_CONDA["md5"], BY_CONDA["package_tarball_full_path"])
        assert one.files == {"bin/f2py": "b" * 64, f"{SITE}/numpy/__init__.py": "c" * 64}

    def test_an_older_record(self, tmp_path: Path) -> None:
        old = {key: BY_CONDA[key] for key in ("name", "version", "build", "md5", "url", "files")}
        write(tmp_path, "numpy.json", old)
        (one,) = conda.read(tmp_path).records
        assert (one.sha256, one.size, one.subdir, one.filename) == ("", -1, "linux-64", BY_CONDA["fn"])

    def test_a_file_name_without_its_ending(self, tmp_path: Path) -> None:
        """Constructed: some records have `fn` as the package's name alone."""
        write(tmp_path, "numpy.json", BY_CONDA | {"fn": "numpy-1.26.4-py311h64a7726_0"})
        assert conda.read(tmp_path).records[0].filename == BY_CONDA["fn"]

    @pytest.mark.parametrize(
        "said",
        [
            b"",
            b"\xff",
            b"[]",
            b"[" * 100_000,
            {},
            BY_CONDA | {"name": "../../x"},
            BY_CONDA | {"name": "a b"},
            BY_CONDA | {"version": "1\n2"},
            BY_CONDA | {"fn": "../x.conda"},
            BY_CONDA | {"subdir": "../.."},
            BY_CONDA | {"build": 3},
        ],
    )
    def test_what_is_no_record_is_named(self, tmp_path: Path, said: Any) -> None:
        write(tmp_path, "bad.json", said)
        write(tmp_path, "numpy.json", BY_CONDA)
        found = conda.read(tmp_path)
        assert [one.name for one in found.records] == ["numpy"]
        assert len(found.problems) == 1
        assert found.problems[0].startswith("conda-meta/bad.json: ")

    def test_odd_files(self, tmp_path: Path) -> None:
        os.mkfifo(write(tmp_path, "numpy.json", BY_CONDA).with_name("pipe.json"))
        (tmp_path / "conda-meta" / "folder.json").mkdir()
        (tmp_path / "conda-meta" / "gone.json").symlink_to("nowhere")
        assert len(conda.read(tmp_path).problems) == 3

    def test_paths_that_leave_are_nobodys(self, tmp_path: Path) -> None:
        data = {"paths": [{"_path": "../out"}, {"_path": 3}, "x", {"_path": "/etc/passwd"}]}
        write(tmp_path, "numpy.json", BY_CONDA | {"files": ["../../x", "/y", 3, "ok"], "paths_data": data})
        assert conda.read(tmp_path).records[0].files == {"ok": ""}

    def test_two_records_of_one_package_are_none(self, tmp_path: Path) -> None:
        write(tmp_path, "numpy-1.json", BY_CONDA)
        write(tmp_path, "numpy-2.json", BY_CONDA | {"version": "2"})
        found = conda.read(tmp_path)
        assert found.records == ()
        assert found.problems == ("conda-meta/numpy-1.json: numpy has 2 records", "conda-meta/numpy-2.json: numpy has 2 records")

    def test_no_environment(self, tmp_path: Path) -> None:
        assert conda.read(tmp_path).records == ()

    def test_tokens_are_not_shown(self, tmp_path: Path) -> None:
        url = "https://ann:pass@conda.example.com/t/tk-1234-5678/main/linux-64/numpy-1.26.4-py311h64a7726_0.conda"
        write(tmp_path, "numpy.json", BY_CONDA | {"url": url})
        (one,) = conda.read(tmp_path).records
        assert one.shown_url == "https://conda.example.com/t/<redacted>/main/linux-64/numpy-1.26.4-py311h64a7726_0.conda"


class TestOwner:
    """Whose is a `.dist-info`: the conda package's, or what pip put there?"""

    def scanned(self, prefix: Path, files: list[dict[str, str]]) -> Scan:
        write(prefix, "numpy.json", BY_CONDA | {"files": [], "paths_data": {"paths": files}})
        return conda.without(scan(layout(prefix)), conda.read(prefix))

    def test_a_conda_package_in_python(self, tmp_path: Path) -> None:
        import hashlib

        dist(tmp_path, "numpy", "1.26.4", "numpy/__init__.py,,\n")
        digest = hashlib.sha256(b"numpy/__init__.py,,\n").hexdigest()
        record = f"{SITE}/numpy-1.26.4.dist-info/RECORD"
        assert self.scanned(tmp_path, [{"_path": record, "sha256": digest}]).distributions == ()
        assert self.scanned(tmp_path, [{"_path": record}]).distributions == ()

    def test_one_without_a_record_of_its_own(self, tmp_path: Path) -> None:
        dist(tmp_path, "numpy", "1.26.4", None)
        assert self.scanned(tmp_path, [{"_path": f"{SITE}/numpy-1.26.4.dist-info/METADATA"}]).distributions == ()

    def test_pip_beside_it(self, tmp_path: Path) -> None:
        dist(tmp_path, "extra", "1.0", "extra.py,,\n", "pip")
        (one,) = self.scanned(tmp_path, []).distributions
        assert one.facts.name == "extra"

    def test_pip_over_it_with_the_same_version(self, tmp_path: Path) -> None:
        dist(tmp_path, "numpy", "1.26.4", "by pip,,\n", "pip")
        files = [{"_path": f"{SITE}/numpy-1.26.4.dist-info/RECORD", "sha256": "a" * 64}]
        (one,) = self.scanned(tmp_path, files).distributions
        assert one.facts.installer == "pip"


class TestVariables:
    def test_those_below_the_prefix(self, tmp_path: Path) -> None:
        scripts = tmp_path / "etc" / "conda" / "activate.d"
        scripts.mkdir(parents=True)
        (scripts / "gdal.sh").write_text(
            'export GDAL_DATA="$CONDA_PREFIX/share/gdal"\nOTHER=1\nexport ELSEWHERE=/usr\n  export PATH=x\n'
        )
        (scripts / "ssl.csh").write_text("setenv SSL_CERT_FILE $CONDA_PREFIX/ssl/cacert.pem\n")
        write(tmp_path, "state", {"env_vars": {"MY_HOME": "x", "API_KEY": "secret"}, "version": 1})
        environ = {
            "CONDA_PREFIX": str(tmp_path),
            "CONDA_DEFAULT_ENV": "ml",
            "GDAL_DATA": f"{tmp_path}/share/gdal",
            "SSL_CERT_FILE": f"{tmp_path}/ssl/cacert.pem",
            "MY_HOME": f"{tmp_path}",
            "OTHER": "1",
            "ELSEWHERE": "/usr",
            "API_KEY": "secret",
            "PATH": f"{tmp_path}/bin",
        }
        found = {one.name: one.value for one in conda.variables(tmp_path, environ)}
        assert found == {
            "CONDA_DEFAULT_ENV": "ml",
            "CONDA_PREFIX": str(tmp_path),
            "GDAL_DATA": f"{tmp_path}/share/gdal",
            "MY_HOME": str(tmp_path),
            "SSL_CERT_FILE": f"{tmp_path}/ssl/cacert.pem",
        }

    def test_not_activated(self, tmp_path: Path) -> None:
        found = {
            one.name: one.value for one in conda.variables(tmp_path, {"CONDA_DEFAULT_ENV": "other", "CONDA_PREFIX": "/other"})
        }
        assert found == {"CONDA_DEFAULT_ENV": str(tmp_path), "CONDA_PREFIX": str(tmp_path)}


class TestMade:
    def test_what_may_hold_tokens_is_not_held_as_it_is(self, tmp_path: Path) -> None:
        write(tmp_path, "history", b"# cmd: conda install https://conda.example.com/t/tk-1/main\n")
        write(tmp_path, "state", {"env_vars": {"API_KEY": "planted"}, "version": 1})
        write(
            tmp_path,
            "numpy.json",
            BY_CONDA | {"url": "https://conda.example.com/t/tk-1/x.conda", "constrains": ["https://a:b@c.test/x"]},
        )
        write(tmp_path, "other.json", BY_CONDA | {"name": "other"})
        write(tmp_path, "broken.json", b"https://conda.example.com/t/tk-1/main")
        write(tmp_path, "pinned", b"python 3.11.*\n")
        found = conda.made(tmp_path, frozenset({"conda-meta/other.json"}))
        assert set(found) == {f"conda-meta/{name}" for name in ("history", "state", "numpy.json", "broken.json")}
        assert found["conda-meta/history"] == b""
        assert found["conda-meta/broken.json"] == b"{}\n"
        assert json.loads(found["conda-meta/numpy.json"])["depends"] == BY_CONDA["depends"]
        text = b"".join(found.values())
        assert not [word for word in (b"tk-1", b"planted", b"a:b@", b"/home/ann", b"http") if word in text]


class TestBase:
    def test_a_base_environment_has_others_in_it(self, tmp_path: Path) -> None:
        (tmp_path / "pkgs").mkdir()
        (tmp_path / "pkgs" / "urls.txt").touch()
        (tmp_path / "envs" / "ml" / "conda-meta").mkdir(parents=True)
        assert conda.beside(tmp_path) == ("envs", "pkgs")

    def test_folders_of_these_names_in_any_other(self, tmp_path: Path) -> None:
        (tmp_path / "pkgs").mkdir()
        (tmp_path / "envs" / "mine").mkdir(parents=True)
        assert conda.beside(tmp_path) == ()
