from __future__ import annotations

import msgspec

from repro_env.oci.manifest import EMPTY, blob_of
from repro_env.runs.catalog import part
from repro_env.runs.catalog.part import SharedFile
from repro_env.schema.rundirectory import output_of, path_of

ID = "01a21fdb-0aff-7896-a90e-d6d23fb3f027"


def file(path: str, size: int, number: int = 0) -> SharedFile:
    return SharedFile(path=path, sha256=f"sha256:{number:064x}", size=size)


def test_a_tag_has_the_run_and_the_digest_of_the_manifest_and_fits_into_a_registry() -> None:
    tag = part.tag_of(ID, b"manifest")
    assert len(tag) <= 128
    assert part.parse_tag(tag) == part.Tag(tag, ID, blob_of(b"manifest", "").digest)
    assert [part.parse_tag(name) for name in ("latest", f"run-{ID}", f"{tag}0", tag.upper(), f"x{tag}")] == [None] * 5


def test_small_files_are_in_the_tar_unless_runs_share_them() -> None:
    small, large = file("files/a", part.SMALL - 1), file("files/b", part.SMALL)
    spec, code = file("spec/spec.json", 10), file("source.tar", 10)
    assert part.split([small, large, spec, code]) == ([code, spec, large], [small])


def test_the_smallest_of_too_many_large_files_are_in_the_tar() -> None:
    files = [file(f"files/{number:04}", part.SMALL + number, number) for number in range(1000)]
    separate, packed = part.split([*files, file("spec/spec.json", 1)])
    assert len(separate) == 900
    assert separate[0].path == "spec/spec.json"
    assert packed == files[:101]


def test_a_part_without_files_has_the_empty_blob() -> None:
    manifest = msgspec.json.decode(part.manifest_of(blob_of(b"{}", part.TYPE), None, []))
    assert [layer["mediaType"] for layer in manifest["layers"]] == [EMPTY]


def test_equal_files_are_one_blob() -> None:
    files = [file("files/a", part.SMALL, 7), file("files/b", part.SMALL, 7)]
    manifest = msgspec.json.decode(part.manifest_of(blob_of(b"{}", part.TYPE), None, files))
    assert len(manifest["layers"]) == 1


def test_the_path_of_an_output_can_be_computed_both_ways() -> None:
    for output in ("a", "outside/a", "files/a", "/a", "/outside/a"):
        assert output_of(path_of(output)) == output
    assert [output_of(path) for path in ("start.json", "trace/0", "files", "spec/spec.json")] == [None] * 4
