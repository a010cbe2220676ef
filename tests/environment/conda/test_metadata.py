"""Valid and invalid records of `conda-meta`, modeled on real records of conda, mamba and rattler."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from repro_env.environment.conda import metadata
from repro_env.environment.python.distributions import Scan, scan
from repro_env.schema.environment import Layout

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


def write(prefix: Path, name: str, record: Any) -> Path:
    path = prefix / "conda-meta" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(record if isinstance(record, bytes) else json.dumps(record).encode())
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
    def test_reads_a_record_of_conda(self, tmp_path: Path) -> None:
        write(tmp_path, "numpy-1.26.4-py311h64a7726_0.json", BY_CONDA)
        (record,) = metadata.read(tmp_path).records
        assert (record.name, record.version, record.build) == ("numpy", "1.26.4", "py311h64a7726_0")
        assert (record.filename, record.size) == (BY_CONDA["fn"], 8065890)
        assert (record.sha256, record.md5) == (BY_CONDA["sha256"], BY_CONDA["md5"])
        assert record.archive == BY_CONDA["package_tarball_full_path"]
        assert record.files == {"bin/f2py": "b" * 64, f"{SITE}/numpy/__init__.py": "c" * 64}

    def test_reads_an_older_record(self, tmp_path: Path) -> None:
        old = {key: BY_CONDA[key] for key in ("name", "version", "build", "md5", "url", "files")}
        write(tmp_path, "numpy.json", old)
        (record,) = metadata.read(tmp_path).records
        assert (record.sha256, record.size, record.filename) == ("", -1, BY_CONDA["fn"])

    def test_completes_a_file_name_without_a_suffix(self, tmp_path: Path) -> None:
        """In some records `fn` is only the package's name."""
        write(tmp_path, "numpy.json", BY_CONDA | {"fn": "numpy-1.26.4-py311h64a7726_0"})
        assert metadata.read(tmp_path).records[0].filename == BY_CONDA["fn"]

    @pytest.mark.parametrize(
        "record",
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
            BY_CONDA | {"build": 3},
        ],
    )
    def test_an_invalid_record_is_a_problem(self, tmp_path: Path, record: Any) -> None:
        write(tmp_path, "bad.json", record)
        write(tmp_path, "numpy.json", BY_CONDA)
        meta = metadata.read(tmp_path)
        assert [package.name for package in meta.records] == ["numpy"]
        assert len(meta.problems) == 1
        assert meta.problems[0].startswith("conda-meta/bad.json: ")

    def test_pipes_directories_and_dangling_links_are_problems(self, tmp_path: Path) -> None:
        os.mkfifo(write(tmp_path, "numpy.json", BY_CONDA).with_name("pipe.json"))
        (tmp_path / "conda-meta" / "directory.json").mkdir()
        (tmp_path / "conda-meta" / "gone.json").symlink_to("nowhere")
        assert len(metadata.read(tmp_path).problems) == 3

    def test_paths_outside_the_prefix_are_ignored(self, tmp_path: Path) -> None:
        data = {"paths": [{"_path": "../out"}, {"_path": 3}, "x", {"_path": "/etc/passwd"}]}
        write(tmp_path, "numpy.json", BY_CONDA | {"files": ["../../x", "/y", 3, "ok"], "paths_data": data})
        assert metadata.read(tmp_path).records[0].files == {"ok": ""}

    def test_two_records_of_the_same_package_are_not_used(self, tmp_path: Path) -> None:
        write(tmp_path, "numpy-1.json", BY_CONDA)
        write(tmp_path, "numpy-2.json", BY_CONDA | {"version": "2"})
        meta = metadata.read(tmp_path)
        assert meta.records == ()
        assert meta.problems == ("conda-meta/numpy-1.json: numpy has 2 records", "conda-meta/numpy-2.json: numpy has 2 records")

    def test_a_directory_without_conda_meta_has_no_records(self, tmp_path: Path) -> None:
        assert metadata.read(tmp_path).records == ()

    def test_the_shown_url_has_no_tokens(self, tmp_path: Path) -> None:
        url = "https://ann:pass@conda.example.com/t/tk-1234-5678/main/linux-64/numpy-1.26.4-py311h64a7726_0.conda"
        write(tmp_path, "numpy.json", BY_CONDA | {"url": url})
        (record,) = metadata.read(tmp_path).records
        assert record.shown_url == "https://conda.example.com/t/<redacted>/main/linux-64/numpy-1.26.4-py311h64a7726_0.conda"


class TestOwner:
    """Whether conda or pip installed a distribution."""

    def scan(self, prefix: Path, files: list[dict[str, str]]) -> Scan:
        write(prefix, "numpy.json", BY_CONDA | {"files": [], "paths_data": {"paths": files}})
        return metadata.exclude_conda(scan(layout(prefix)), metadata.read(prefix))

    def test_a_distribution_of_a_conda_package_is_excluded(self, tmp_path: Path) -> None:
        import hashlib

        dist(tmp_path, "numpy", "1.26.4", "numpy/__init__.py,,\n")
        digest = hashlib.sha256(b"numpy/__init__.py,,\n").hexdigest()
        record = f"{SITE}/numpy-1.26.4.dist-info/RECORD"
        assert self.scan(tmp_path, [{"_path": record, "sha256": digest}]).distributions == ()
        assert self.scan(tmp_path, [{"_path": record}]).distributions == ()

    def test_a_conda_distribution_without_record_is_excluded(self, tmp_path: Path) -> None:
        dist(tmp_path, "numpy", "1.26.4", None)
        assert self.scan(tmp_path, [{"_path": f"{SITE}/numpy-1.26.4.dist-info/METADATA"}]).distributions == ()

    def test_a_distribution_of_pip_is_kept(self, tmp_path: Path) -> None:
        dist(tmp_path, "extra", "1.0", "extra.py,,\n", "pip")
        (extra,) = self.scan(tmp_path, []).distributions
        assert extra.facts.name == "extra"

    def test_a_distribution_that_pip_installed_over_a_conda_package_is_kept(self, tmp_path: Path) -> None:
        dist(tmp_path, "numpy", "1.26.4", "by pip,,\n", "pip")
        files = [{"_path": f"{SITE}/numpy-1.26.4.dist-info/RECORD", "sha256": "a" * 64}]
        (numpy,) = self.scan(tmp_path, files).distributions
        assert numpy.facts.name == "numpy"


class TestVariables:
    def test_variables_with_a_path_below_the_prefix_are_captured(self, tmp_path: Path) -> None:
        scripts = tmp_path / "etc" / "conda" / "activate.d"
        scripts.mkdir(parents=True)
        (scripts / "gdal.sh").write_text(
            'export GDAL_DATA="$CONDA_PREFIX/share/gdal"\nOTHER=1\nexport ELSEWHERE=/usr\n  export PATH=x\n'
        )
        (scripts / "ssl.sh").write_text("SSL_CERT_FILE=$CONDA_PREFIX/ssl/cacert.pem\n")
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
        values = {variable.name: variable.value for variable in metadata.variables(tmp_path, environ)}
        assert values == {
            "CONDA_DEFAULT_ENV": "ml",
            "CONDA_PREFIX": str(tmp_path),
            "GDAL_DATA": f"{tmp_path}/share/gdal",
            "MY_HOME": str(tmp_path),
            "SSL_CERT_FILE": f"{tmp_path}/ssl/cacert.pem",
        }

    def test_an_environment_that_is_not_active_is_named_by_its_prefix(self, tmp_path: Path) -> None:
        environ = {"CONDA_DEFAULT_ENV": "other", "CONDA_PREFIX": "/other"}
        values = {variable.name: variable.value for variable in metadata.variables(tmp_path, environ)}
        assert values == {"CONDA_DEFAULT_ENV": str(tmp_path), "CONDA_PREFIX": str(tmp_path)}


class TestReplacedFiles:
    def test_files_that_may_contain_tokens_are_replaced(self, tmp_path: Path) -> None:
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
        files = metadata.replaced_files(tmp_path, frozenset({"conda-meta/other.json"}))
        assert set(files) == {f"conda-meta/{name}" for name in ("history", "state", "numpy.json", "broken.json")}
        assert files["conda-meta/history"] == b""
        assert files["conda-meta/broken.json"] == b"{}\n"
        assert json.loads(files["conda-meta/numpy.json"])["version"] == BY_CONDA["version"]
        text = b"".join(files.values())
        assert not [word for word in (b"tk-1", b"planted", b"a:b@", b"/home/ann", b"http") if word in text]


class TestBase:
    def test_other_environments_and_the_package_cache_of_a_base_are_unrelated(self, tmp_path: Path) -> None:
        (tmp_path / "pkgs").mkdir()
        (tmp_path / "pkgs" / "urls.txt").touch()
        (tmp_path / "envs" / "ml" / "conda-meta").mkdir(parents=True)
        assert metadata.unrelated_directories(tmp_path) == ("envs", "pkgs")

    def test_directories_with_these_names_belong_to_any_other_environment(self, tmp_path: Path) -> None:
        (tmp_path / "pkgs").mkdir()
        (tmp_path / "envs" / "mine").mkdir(parents=True)
        assert metadata.unrelated_directories(tmp_path) == ()
