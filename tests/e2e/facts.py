"""Run by a captured environment's python, on the host and in the image: prints facts about it as JSON."""

import hashlib
import importlib
import importlib.machinery
import importlib.metadata
import json
import locale
import os
import pathlib
import platform
import ssl
import sys
import sysconfig

REWRITTEN = {"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"}


def files() -> "dict[str, str]":
    """sha256 of each file of each distribution, without what installers write for themselves, and scripts apart."""
    entries = {}
    for distribution in importlib.metadata.distributions():
        for file in distribution.files or ():
            path = pathlib.Path(os.path.normpath(str(distribution.locate_file(file))))
            if "__pycache__" in path.parts or str(path).startswith(sys.prefix + "/bin/") or path.name in REWRITTEN:
                continue
            entries[str(path)] = hashlib.sha256(path.read_bytes()).hexdigest()
    return entries


def scripts() -> "list[str]":
    return sorted(entry_point.name for entry_point in importlib.metadata.entry_points(group="console_scripts"))


def extensions() -> "dict[str, str]":
    """Every extension module of the standard library and of the distributions: does it import?"""
    directory = pathlib.Path(sysconfig.get_config_var("DESTSHARED"))
    failed = {}
    for name in sorted(path.name.split(".")[0] for path in directory.glob("*.so")):
        if "test" in name:
            continue
        try:
            importlib.import_module(name)
        except ImportError as error:
            failed[name] = str(error)
    return failed


def main() -> None:
    context = ssl.create_default_context()
    facts = {
        "version": sys.version,
        "prefix": sys.prefix,
        "base_prefix": sys.base_prefix,
        "executable": sys.executable,
        "path": [path for path in sys.path if path and "zip" not in path][1:],
        "libc": platform.libc_ver(),
        "openssl": ssl.OPENSSL_VERSION,
        "locale": [locale.setlocale(locale.LC_ALL, ""), locale.getpreferredencoding(), sys.getfilesystemencoding()],
        "certificates": len(context.get_ca_certs()),
        "extensions that do not import": extensions(),
        "scripts": scripts(),
        "files": files(),
    }
    json.dump(facts, sys.stdout)


main()
