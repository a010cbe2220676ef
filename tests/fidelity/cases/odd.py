"""Odd environments, one trap each, and all that come back identical once more in a single environment.

Written from what users and their tools do, without looking at how capture works.
"""

from __future__ import annotations

import os
import shutil
import struct
import unicodedata
import zipfile
from collections.abc import Callable
from pathlib import Path

from tests.fidelity.case import case
from tests.fidelity.ground import Ground

TOGETHER: list[Callable[[Ground], None]] = []


def odd(title: str, *, named: str = "", alone: bool = False) -> Callable[[Callable[[Ground], None]], Callable[[Ground], None]]:
    """A change of the plain environment as a case of its own, only in `make soak`; `TOGETHER` has those that get along."""

    def add(change: Callable[[Ground], None]) -> Callable[[Ground], None]:
        def make(at: Ground) -> None:
            at.plain()
            change(at)

        make.__name__, make.__module__ = change.__name__, __name__
        case(title, named=named, soak=True)(make)
        if not named and not alone:
            TOGETHER.append(change)
        return change

    return add


# -- .pth files and sys.path -----------------------------------------------------------------------------------------


@odd("a .pth file with CRLF line ends, a BOM, spaces after the path, and no newline at its end")
def pth_crlf(at: Ground) -> None:
    at.write(at.root / "crlf" / "crlf_one.py", "VALUE = 1\n")
    at.write(at.root / "crlf2" / "crlf_two.py", "VALUE = 2\n")
    at.write(at.site / "crlf.pth", f"# here\r\n{at.root / 'crlf'}\r\n\r\n   \r\n{at.root / 'crlf2'}")
    at.write(at.root / "bom" / "bom_one.py", "VALUE = 1\n")
    at.write(at.site / "bom.pth", b"\xef\xbb\xbf" + f"{at.root / 'bom'}\n".encode())


@odd("a .pth file with a path relative to site-packages, inside and out of it")
def pth_relative(at: Ground) -> None:
    at.write(at.site / "vendored" / "vendored_one.py", "VALUE = 'below site-packages'\n")
    at.write(at.prefix / "extra" / "extra_one.py", "VALUE = 'beside lib'\n")
    at.write(at.site / "relative.pth", "vendored\n../../../extra\n./vendored/../vendored\n")


@odd("a .pth file whose line imports a module of the environment, which adds a directory outside")
def pth_imports(at: Ground) -> None:
    at.write(at.root / "by-module" / "by_module.py", "VALUE = 'found'\n")
    at.write(at.site / "starts_up.py", f"import sys\nsys.path.append({str(at.root / 'by-module')!r})\n")
    at.write(at.site / "zz_starts_up.pth", "import starts_up\n")


@odd("site.addsitedir in a .pth file: the directory has a .pth file of its own")
def pth_sitedir(at: Ground) -> None:
    at.write(at.root / "sitedir" / "in_sitedir.py", "VALUE = 1\n")
    at.write(at.root / "sitedir-further" / "further.py", "VALUE = 2\n")
    at.write(at.root / "sitedir" / "further.pth", f"{at.root / 'sitedir-further'}\n")
    at.write(at.site / "zz_sitedir.pth", f"import site; site.addsitedir({str(at.root / 'sitedir')!r})\n")


@odd("a .pth file that is a symlink, one that is a directory, a hidden one, and one not in UTF-8")
def pth_kinds(at: Ground) -> None:
    at.write(at.root / "by-link" / "by_link.py", "VALUE = 1\n")
    at.write(at.root / "real.pth", f"{at.root / 'by-link'}\n")
    (at.site / "linked.pth").symlink_to(at.root / "real.pth")
    at.write(at.site / "directory.pth" / "x.txt", "x")
    at.write(at.root / "hidden" / "hidden_one.py", "VALUE = 1\n")
    at.write(at.site / ".hidden.pth", f"{at.root / 'hidden'}\n")


@odd("a .pth file that puts a finder on sys.meta_path for one module outside", named="own_finder.py refers to")
def pth_finder(at: Ground) -> None:
    at.write(at.root / "mapped-away" / "mapped_one.py", "VALUE = 'through a finder'\n")
    at.write(at.root / "mapped-away" / "neighbour.txt", "text")
    finder = (
        "import importlib.util, sys\n"
        f"PLACES = {{'mapped_one': {str(at.root / 'mapped-away' / 'mapped_one.py')!r}}}\n"
        "class Finder:\n    @staticmethod\n    def find_spec(name, path=None, target=None):\n"
        "        return importlib.util.spec_from_file_location(name, PLACES[name]) if name in PLACES else None\n"
        "sys.meta_path.append(Finder)\n"
    )
    at.write(at.site / "own_finder.py", finder)
    at.write(at.site / "own_finder.pth", "import own_finder\n")
    at.write(at.site / "uses_mapped.py", "import mapped_one\nVALUE = mapped_one.VALUE\n")


@odd("PYTHONPATH with a directory twice, one with a slash at its end, one through a symlink, and a file", alone=True)
def path_repeats(at: Ground) -> None:
    at.write(at.root / "lib-a" / "mod_a.py", "VALUE = 1\n")
    (at.root / "lib-b").symlink_to(at.root / "lib-a")
    at.write(at.root / "single.py", "VALUE = 1\n")
    paths = [at.root / "lib-a", f"{at.root / 'lib-a'}/", at.root / "lib-b", at.root / "lib-a", at.root / "single.py"]
    at.variables["PYTHONPATH"] = ":".join(map(str, paths))


@odd("PYTHONPATH with a directory inside a zip archive, and data read from it", alone=True)
def path_zip(at: Ground) -> None:
    archive = at.root / "libs.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr(
            "lib/inzip/__init__.py", "import importlib.resources as r\nVALUE = r.files(__name__).joinpath('a.txt').read_text()\n"
        )
        file.writestr("lib/inzip/a.txt", "text")
    at.variables["PYTHONPATH"] = f"{archive}/lib"
    at.write(at.site / "uses_inzip.py", "import inzip\nVALUE = inzip.VALUE, inzip.__file__\n")


@odd("sitecustomize.py on PYTHONPATH hides the one in site-packages, and adds a directory", alone=True)
def sitecustomize_hidden(at: Ground) -> None:
    at.write(at.root / "first" / "sitecustomize.py", f"import sys\nsys.path.append({str(at.root / 'added')!r})\n")
    at.write(at.root / "added" / "added_one.py", "VALUE = 1\n")
    at.write(at.site / "sitecustomize.py", "import sys\nsys.WRONG = True\n")
    at.write(at.site / "which_customize.py", "import sys\nVALUE = hasattr(sys, 'WRONG')\n")
    at.variables["PYTHONPATH"] = str(at.root / "first")


@odd("PYTHONOPTIMIZE, PYTHONWARNINGS and PYTHONUTF8 set", alone=True)
def python_variables(at: Ground) -> None:
    at.variables |= {"PYTHONOPTIMIZE": "2", "PYTHONWARNINGS": "error::UserWarning", "PYTHONUTF8": "1"}
    at.write(at.site / "optimized.py", "import sys\nVALUE = __debug__, sys.warnoptions\n")


@odd("PYTHONPYCACHEPREFIX set, PYTHONSAFEPATH set", alone=True)
def python_cache_prefix(at: Ground) -> None:
    at.variables |= {"PYTHONPYCACHEPREFIX": str(at.root / "pyc"), "PYTHONSAFEPATH": "1"}


# -- packages ---------------------------------------------------------------------------------------------------------


@odd("a namespace package with portions in site-packages, on a .pth and behind a symlink")
def namespace_three(at: Ground) -> None:
    at.write(at.site / "spread" / "one.py", "VALUE = 1\n")
    at.write(at.root / "ns-two" / "spread" / "two.py", "VALUE = 2\n")
    at.write(at.root / "ns-real" / "three.py", "VALUE = 3\n")
    (at.root / "ns-three").mkdir()
    (at.root / "ns-three" / "spread").symlink_to(at.root / "ns-real")
    at.write(at.site / "spread.pth", f"{at.root / 'ns-two'}\n{at.root / 'ns-three'}\n")
    at.write(at.site / "uses_spread.py", "import spread.one, spread.two, spread.three\nVALUE = list(spread.__path__)\n")


@odd("a package whose __path__ is extended by pkgutil over another directory, and with a .pkg file")
def pkgutil_extended(at: Ground) -> None:
    init = "__path__ = __import__('pkgutil').extend_path(__path__, __name__)\n"
    at.write(
        at.site / "widened" / "__init__.py",
        init + "from widened import one, two, three\nVALUE = one.VALUE, two.VALUE, three.VALUE\n",
    )
    at.write(at.site / "widened" / "one.py", "VALUE = 1\n")
    at.write(at.root / "wide" / "widened" / "__init__.py", init)
    at.write(at.root / "wide" / "widened" / "two.py", "VALUE = 2\n")
    at.write(at.site / "widened.pkg", "../widened-more\n".replace("../", str(at.site) + "/"))
    at.write(at.site / "widened-more" / "three.py", "VALUE = 3\n")
    at.write(at.site / "widened.pth", f"{at.root / 'wide'}\n")


@odd(
    "a package that appends a directory outside to its __path__, and does without when it is not there",
    named="appends/__init__.py refers to",
)
def path_appended(at: Ground) -> None:
    at.write(at.root / "plugins" / "plug.py", "VALUE = 'plugged'\n")
    code = f"__path__.append({str(at.root / 'plugins')!r})\ntry:\n    from appends.plug import VALUE\nexcept ImportError:\n    VALUE = None\n"
    at.write(at.site / "appends" / "__init__.py", code)


@odd("module, package, namespace directory and extension module of one name side by side")
def one_name(at: Ground) -> None:
    at.extension(at.site / "many_kinds.abi3.so", 7)
    at.write(at.site / "many_kinds.py", "VALUE = 'module'\n")
    at.write(at.site / "two_kinds.py", "VALUE = 'module'\n")
    at.write(at.site / "two_kinds" / "__init__.py", "VALUE = 'package'\n")
    at.write(at.site / "three_kinds.py", "VALUE = 'module'\n")
    at.write(at.site / "three_kinds" / "inner.py", "VALUE = 'namespace'\n")


@odd("extension modules for other Pythons, one that is empty, and one that is no library")
def foreign_extensions(at: Ground) -> None:
    at.extension(at.site / "foreign" / "fast.cpython-38-x86_64-linux-gnu.so")
    at.write(at.site / "foreign" / "fast.pypy39-pp73-x86_64-linux-gnu.so", b"")
    at.write(at.site / "foreign" / "fast.so", b"not a library")
    at.write(
        at.site / "foreign" / "__init__.py",
        "try:\n    from foreign import fast\nexcept ImportError as error:\n    VALUE = type(error).__name__\n",
    )


@odd("modules as bytecode only, beside the package, and as a whole package")
def sourceless(at: Ground) -> None:
    for name in ("bare", "bare_package/__init__", "bare_package/inner"):
        source = at.write(at.site / f"{name}.py", f"VALUE = 'sourceless {name}'\n")
        at.run(at.python, "-c", f"import py_compile; py_compile.compile({str(source)!r}, {str(source)!r} + 'c', doraise=True)")
        source.unlink()


@odd("a data file, a directory and a module without source in __pycache__")
def in_pycache(at: Ground) -> None:
    cache = at.site / "beta" / "__pycache__"
    at.write(cache / "tuned.json", '{"block": 64}\n')
    at.write(cache / "kernels" / "k.bin", b"\1\2")
    at.write(
        at.site / "reads_cache.py",
        "import os, beta\ncache = os.path.join(os.path.dirname(beta.__file__), '__pycache__')\n"
        "VALUE = [os.path.exists(os.path.join(cache, name)) for name in ('tuned.json', 'kernels/k.bin', 'extra.bin')]\n",
    )
    source = at.write(at.site / "hidden_source.py", "VALUE = 'from __pycache__ only'\n")
    there = at.site / "__pycache__" / "hidden_source.custom.pyc"
    at.run(at.python, "-c", f"import py_compile; py_compile.compile({str(source)!r}, {str(there)!r}, doraise=True)")
    source.unlink()
    load = (
        "import importlib.machinery as m, importlib.util as u, os\n"
        "path = os.path.join(os.path.dirname(__file__), '__pycache__', 'hidden_source.custom.pyc')\n"
        "if os.path.exists(path):\n    loader = m.SourcelessFileLoader('hidden_source', path)\n    module = u.module_from_spec(u.spec_from_loader('hidden_source', loader))\n"
        "    loader.exec_module(module)\n    VALUE = module.VALUE\nelse:\n    VALUE = None\n"
    )
    at.write(at.site / "loads_hidden.py", load)


@odd("a package called __pycache__ that is imported")
def pycache_package(at: Ground) -> None:
    at.write(at.site / "beta" / "sub" / "__pycache__" / "secret_code.py", "VALUE = 'imported from __pycache__'\n")
    at.write(
        at.site / "imports_cache.py",
        "try:\n    from beta.sub.__pycache__.secret_code import VALUE\nexcept ImportError:\n    VALUE = None\n",
    )


@odd("unchecked bytecode of other text than its source", named="stale_unchecked")
def stale_unchecked(at: Ground) -> None:
    at.write(at.site / "stale_unchecked.py", "VALUE = 'source'\n")
    tag = at.run(at.python, "-c", "import sys; print(sys.implementation.cache_tag)").strip()
    magic = bytes.fromhex(at.run(at.python, "-c", "import importlib.util as u; print(u.MAGIC_NUMBER.hex())").strip())
    body = at.run(
        at.python, "-c", "import marshal; print(marshal.dumps(compile('VALUE = \"cached\"', 'x', 'exec')).hex())"
    ).strip()
    at.write(at.site / "__pycache__" / f"stale_unchecked.{tag}.pyc", magic + struct.pack("<III", 1, 0, 0) + bytes.fromhex(body))


# -- metadata ---------------------------------------------------------------------------------------------------------


@odd("RECORD with CRLF line ends, absolute paths, a path twice, and no hashes")
def record_forms(at: Ground) -> None:
    record = at.site / "alpha-1.0.dist-info" / "RECORD"
    rows = record.read_text().splitlines()
    at.write(record, "\r\n".join([*rows, rows[0], f"{at.site / 'alpha.py'},,"]) + "\r\n")
    record = at.site / "beta-1.0.dist-info" / "RECORD"
    at.write(record, "".join(f"{row.split(',')[0]},,\n" for row in record.read_text().splitlines()))


@odd("metadata alone: entry points only, py.typed only, an empty .dist-info, one without METADATA")
def metadata_only(at: Ground) -> None:
    head = "Metadata-Version: 2.1\nName: {0}\nVersion: 1.0\n"
    at.write(at.site / "pointer-1.0.dist-info" / "METADATA", head.format("pointer"))
    at.write(at.site / "pointer-1.0.dist-info" / "entry_points.txt", "[my.plugins]\nfirst = alpha:main\n")
    at.write(at.site / "typed-1.0.dist-info" / "METADATA", head.format("typed"))
    at.write(at.site / "typed" / "py.typed")
    at.write(at.site / "alpha-stubs" / "__init__.pyi", "VALUE: str\n")
    (at.site / "nothing-1.0.dist-info").mkdir()
    at.write(at.site / "headless-1.0.dist-info" / "top_level.txt", "headless\n")
    at.write(
        at.site / "sees_points.py",
        "import importlib.metadata as m\nVALUE = [str(one) for one in m.entry_points(group='my.plugins')]\n",
    )


@odd("remains of pip (~lpha), a .dist-info that is a file, and one that is a symlink out")
def metadata_remains(at: Ground) -> None:
    shutil.copytree(at.site / "alpha-1.0.dist-info", at.site / "~lpha-1.0.dist-info")
    at.write(at.site / "~eta" / "__init__.py", "")
    at.write(at.site / "single-1.0.dist-info", "Metadata-Version: 2.1\nName: single\nVersion: 1.0\n")
    at.write(at.root / "kept-info" / "METADATA", "Metadata-Version: 2.1\nName: linked-info\nVersion: 1.0\n")
    (at.site / "linked_info-1.0.dist-info").symlink_to(at.root / "kept-info")


@odd("metadata with another name and version than its directory, and CRLF line ends")
def metadata_odd(at: Ground) -> None:
    at.write(
        at.site / "Odd.Name-2.dist-info" / "METADATA",
        "Metadata-Version: 2.1\r\nName: other_name\r\nVersion: 1.0+x\r\n\r\ntext\r\n",
    )
    at.write(at.site / "dup-1.dist-info" / "METADATA", "Metadata-Version: 2.1\nName: dup\nName: dup2\nVersion: 1\nVersion: 2\n")
    at.write(
        at.site / "odd_version-x.dist-info" / "METADATA", "Metadata-Version: 2.1\nName: odd-version\nVersion: not a version\n"
    )


@odd("an old install: .egg-info directory with installed-files.txt, and an .egg-link alone")
def old_install(at: Ground) -> None:
    at.write(at.site / "ancient.py", "VALUE = 'ancient'\n")
    info = at.site / "ancient-0.1-py2.7.egg-info"
    at.write(info / "PKG-INFO", "Metadata-Version: 1.0\nName: ancient\nVersion: 0.1\n")
    at.write(info / "installed-files.txt", "../ancient.py\nPKG-INFO\n../not_there.py\n")
    at.write(at.root / "linked-egg" / "in_linked_egg.py", "VALUE = 1\n")
    at.write(at.site / "lonely.egg-link", f"{at.root / 'linked-egg'}\n.\n")


@odd("an unpacked egg outside on a .pth, with scripts and a native library", alone=True)
def egg_outside(at: Ground) -> None:
    egg = at.root / "eggs" / "outer-1.0-py3.11-linux-x86_64.egg"
    at.write(
        egg / "outer" / "__init__.py",
        "import ctypes, os\nVALUE = ctypes.CDLL(os.path.join(os.path.dirname(__file__), 'libo.so')).answer()\n",
    )
    at.compiled(egg / "outer" / "libo.so")
    at.write(egg / "EGG-INFO" / "PKG-INFO", "Metadata-Version: 1.0\nName: outer\nVersion: 1.0\n")
    at.write(egg / "EGG-INFO" / "native_libs.txt", "outer/libo.so\n")
    at.write(at.site / "easy-install.pth", f"import sys; sys.__plen = len(sys.path)\n{egg}\n")


# -- files ------------------------------------------------------------------------------------------------------------


@odd("names in both Unicode normal forms, with newlines, tabs, backslashes, a leading dash, a trailing dot and space")
def odd_names(at: Ground) -> None:
    for form in ("NFC", "NFD"):
        at.write(at.site / "beta" / "data" / (unicodedata.normalize(form, "é") + ".txt"), form)
    for name in (
        "new\nline.txt",
        "tab\t.txt",
        "back\\slash.txt",
        "-rf",
        "dot.",
        "space ",
        " ",
        "*",
        "%2e%2e",
        "a=b,c",
        "CON",
        "\x7f",
    ):
        at.write(at.site / "beta" / "data" / "odd" / name, repr(name))
    at.write(
        at.site / "lists_names.py",
        "import os, beta\nVALUE = sorted(os.listdir(os.path.join(os.path.dirname(beta.__file__), 'data', 'odd')))\n",
    )


@odd("names with C1 and bidi characters, and an emoji")
def control_names(at: Ground) -> None:
    for name in ("\u202etxt.exe", "\x9b31m", "😀.txt", "\ufeffbom.txt", "\u2028.txt"):
        at.write(at.site / "beta" / "data" / "c1" / name, "x")


@odd("files nobody may read, directories that are sticky or read-only, a set-group-id program")
def odd_modes(at: Ground) -> None:
    at.write(at.site / "no_mode.txt", "x").chmod(0)
    at.write(at.site / "only_x.py", "VALUE = 1\n").chmod(0o111)
    at.write(at.site / "sticky" / "x.txt", "x")
    (at.site / "sticky").chmod(0o1777)
    at.write(at.site / "locked" / "x.txt", "x")
    (at.site / "locked").chmod(0o555)
    at.write(at.prefix / "bin" / "setgid", "#!/bin/sh\necho setgid\n").chmod(0o2755)


@odd("a device node in site-packages", named="not a file, directory or symlink")
def device(at: Ground) -> None:
    os.mknod(at.site / "null", 0o666 | 0o020000, os.makedev(1, 3))


@odd("symlinks in circles: two directories into each other, one into its parent, a chain of 30")
def link_circles(at: Ground) -> None:
    at.write(at.site / "ring" / "a" / "x.py", "VALUE = 1\n")
    at.write(at.site / "ring" / "__init__.py", "from ring.a import x\nVALUE = x.VALUE\n")
    (at.site / "ring" / "a" / "to_b").symlink_to("../b")
    (at.site / "ring" / "b").mkdir()
    (at.site / "ring" / "b" / "to_a").symlink_to("../a")
    (at.site / "ring" / "self").symlink_to(".")
    at.write(at.site / "ring" / "chain0", "end")
    for number in range(30):
        (at.site / "ring" / f"chain{number + 1}").symlink_to(f"chain{number}")


@odd("a symlinked package outside, absolute and relative, and a symlinked module of the project")
def linked_packages(at: Ground) -> None:
    at.write(
        at.root / "outside-abs" / "__init__.py",
        "import os\nVALUE = open(os.path.join(os.path.dirname(__file__), 'd.txt')).read()\n",
    )
    at.write(at.root / "outside-abs" / "d.txt", "absolute")
    (at.site / "linked_abs").symlink_to(at.root / "outside-abs")
    at.write(at.root / "outside-rel" / "__init__.py", "from linked_rel import more\nVALUE = more.VALUE\n")
    at.write(at.root / "outside-rel" / "more.py", "VALUE = 'relative'\n")
    (at.site / "linked_rel").symlink_to(os.path.relpath(at.root / "outside-rel", at.site))
    at.write("helpers/of_project.py", "VALUE = 'of the project'\n")
    (at.site / "of_project.py").symlink_to(at.project / "helpers" / "of_project.py")


@odd("a symlinked directory of data outside, whose content links further out")
def linked_data(at: Ground) -> None:
    at.write(at.root / "far" / "deep.bin", b"\7" * 100)
    at.write(at.root / "near" / "x.bin", b"\6" * 100)
    (at.root / "near" / "deep.bin").symlink_to(at.root / "far" / "deep.bin")
    (at.site / "beta" / "models").symlink_to(at.root / "near")
    at.write(
        at.site / "reads_models.py",
        "import os, beta\nfolder = os.path.join(os.path.dirname(beta.__file__), 'models')\n"
        "VALUE = [os.path.exists(os.path.join(directory, name)) for name in ('x.bin', 'deep.bin')]\n",
    )


@odd("a symlink to a file of the system: /etc/hostname, /usr/share")
def linked_system(at: Ground) -> None:
    (at.site / "beta" / "mime").symlink_to("/etc/services")
    (at.prefix / "share").mkdir(exist_ok=True)
    (at.prefix / "share" / "system").symlink_to("/usr/share/perl5/Debconf")
    code = "import os, sys, beta\nVALUE = os.path.exists(os.path.join(os.path.dirname(beta.__file__), 'mime')), os.path.exists(sys.prefix + '/share/system')\n"
    at.write(at.site / "sees_system.py", code)


@odd("files of 1901, of 1980 and of the year 2500")
def odd_times(at: Ground) -> None:
    for number, when in enumerate((-2_000_000_000, 315_532_799, 16_725_225_600)):
        os.utime(at.write(at.site / f"time{number}.py", "VALUE = 1\n"), (when, when))


# -- bin/, share/ and other directories of the prefix ---------------------------------------------------------------------


@odd("scripts with odd first lines: env, env -S, spaces, CRLF, a relative path, bash, perl, none")
def shebangs(at: Ground) -> None:
    def script(name: str, text: str) -> None:
        at.write(at.prefix / "bin" / name, text).chmod(0o755)

    script("by-env", "#!/usr/bin/env python3\nimport sys\nprint('env', sys.version_info[0])\n")
    script("by-env-s", f"#!/usr/bin/env -S {at.python} -u -X utf8\nimport sys\nprint(sys.flags.utf8_mode)\n")
    script("spaced", f"#!   {at.python}   -E\nimport sys\nprint(sys.flags.ignore_environment)\n")
    script("crlf", f"#!{at.python}\r\nprint('crlf')\r\n")
    script("relative", "#!.venv/bin/python\nprint('relative')\n")
    script("without", "print('none')\n")
    script("binary", bytes([0, 1, 2]).decode())


@odd("a script for bash and one for perl", named="by-perl starts")
def interpreters(at: Ground) -> None:
    at.write(at.prefix / "bin" / "by-bash", "#!/bin/bash\necho ${BASH_VERSION:+bash}\n").chmod(0o755)
    at.write(at.prefix / "bin" / "by-perl", '#!/usr/bin/perl\nprint "perl\\n";\n').chmod(0o755)


@odd("programs in bin/ that are symlinks: into site-packages, out of the prefix, to the system's")
def linked_programs(at: Ground) -> None:
    at.write(at.site / "beta" / "tool.sh", "#!/bin/sh\necho tool of beta\n").chmod(0o755)
    (at.prefix / "bin" / "beta-tool").symlink_to(at.site / "beta" / "tool.sh")
    at.write(at.root / "opt-tool" / "run.sh", "#!/bin/sh\necho tool outside\n").chmod(0o755)
    (at.prefix / "bin" / "outside-tool").symlink_to(at.root / "opt-tool" / "run.sh")
    (at.prefix / "bin" / "system-tool").symlink_to("/usr/bin/sort")
    code = (
        "import subprocess, sys\ndef start(name):\n    try:\n"
        "        return subprocess.run([sys.prefix + '/bin/' + name, '--version'], capture_output=True, text=True).stdout.split()[:4]\n"
        "    except OSError as error:\n        return type(error).__name__\n"
        "VALUE = [start(name) for name in ('beta-tool', 'outside-tool', 'system-tool')]\n"
    )
    at.write(at.site / "starts_programs.py", code)


@odd("directories of the prefix that no installer makes: src/, var/, opt/, hidden ones, a directory beside python in bin/")
def prefix_directories(at: Ground) -> None:
    for place in (
        "src/x.c",
        "var/lib/state.db",
        "opt/x/y",
        ".config/tool.toml",
        "bin/sub/tool",
        "libexec/helper",
        "lib/pkgconfig/a.pc",
        "include/x.h",
    ):
        at.write(at.prefix / place, place)
    at.write(
        at.site / "sees_directories.py",
        "import os, sys\nVALUE = [os.path.exists(os.path.join(sys.prefix, p)) for p in ('src/x.c', 'var/lib/state.db', 'bin/sub/tool')]\n",
    )


@odd("a venv inside site-packages")
def nested_site(at: Ground) -> None:
    at.run(at.base, "-m", "venv", "--without-pip", at.site / "beta" / "runtime")
    at.write(
        at.site / "starts_nested.py",
        "import os, beta\nVALUE = os.path.exists(os.path.join(os.path.dirname(beta.__file__), 'runtime', 'pyvenv.cfg'))\n",
    )


# -- the venv ---------------------------------------------------------------------------------------------------------


@odd("pyvenv.cfg with keys in capitals, no spaces, CRLF, unknown keys, a line without =", alone=True)
def config_odd(at: Ground) -> None:
    config = at.prefix / "pyvenv.cfg"
    text = config.read_text().replace("home = ", "HOME=").replace("include-system", "Include-System")
    at.write(config, text.replace("\n", "\r\n") + "flavour = mine\r\nno equals sign\r\n")


@odd("pyvenv.cfg whose home is a symlink to the interpreter's directory", alone=True)
def config_home_link(at: Ground) -> None:
    config = at.prefix / "pyvenv.cfg"
    home = next(line.partition("=")[2].strip() for line in config.read_text().splitlines() if line.startswith("home"))
    (at.root / "python-home").symlink_to(Path(home).parent)
    at.write(config, config.read_text().replace(f"home = {home}", f"home = {at.root / 'python-home' / 'bin'}"))


@odd("lib64 is missing", alone=True)
def no_lib64(at: Ground) -> None:
    (at.prefix / "lib64").unlink(missing_ok=True)


@odd("lib64 is a directory with packages of its own", alone=True)
def own_lib64(at: Ground) -> None:
    (at.prefix / "lib64").unlink(missing_ok=True)
    at.write(at.prefix / "lib64" / at.site.parent.name / "site-packages" / "in_lib64.py", "VALUE = 1\n")
    at.write(at.site / "sixty_four.pth", f"{at.prefix / 'lib64' / at.site.parent.name / 'site-packages'}\n")


@odd("site-packages is a symlink to a directory elsewhere", alone=True)
def linked_site(at: Ground) -> None:
    site = at.site
    site.rename(at.root / "real-site")
    site.symlink_to(at.root / "real-site")


@odd("lib is a symlink to a directory elsewhere", alone=True)
def linked_lib(at: Ground) -> None:
    (at.prefix / "lib").rename(at.root / "real-lib")
    (at.prefix / "lib").symlink_to(at.root / "real-lib")


@odd("the environment's directory is a symlink, and its real name is on a .pth", alone=True)
def linked_prefix(at: Ground) -> None:
    at.write(at.prefix / "more" / "more_one.py", "VALUE = __file__\n")
    at.prefix.rename(at.root / "real-env")
    at.prefix.symlink_to(at.root / "real-env")
    at.write(at.site / "more.pth", f"{at.root / 'real-env' / 'more'}\n")


@odd("bin/python is a shell script that sets a variable and starts the real one", named="", alone=True)
def wrapped(at: Ground) -> None:
    real = at.prefix / "bin" / "python-real"
    at.python.rename(real) if not at.python.is_symlink() else real.symlink_to(at.python.readlink())
    at.python.unlink(missing_ok=True)
    at.write(at.python, f'#!/bin/sh\nMY_MODE=fast exec "{real}" "$@"\n').chmod(0o755)
    at.write(at.site / "sees_mode.py", "import os\nVALUE = os.environ.get('MY_MODE')\n")


@odd("bin/python through a chain of symlinks outside", alone=True)
def chained_python(at: Ground) -> None:
    target = str(at.python.readlink()) if at.python.is_symlink() else str(at.python)
    (at.root / "py-a").symlink_to(target if target.startswith("/") else at.base)
    (at.root / "py-b").symlink_to(at.root / "py-a")
    at.python.unlink()
    at.python.symlink_to(at.root / "py-b")


# -- libraries --------------------------------------------------------------------------------------------------------


@odd("a chain of symlinks of a library in the package, found through $ORIGIN, and an auditwheel directory")
def library_chain(at: Ground) -> None:
    libs = at.site / "origin.libs"
    at.compiled(
        libs / "libreal-1a2b.so.1.2.3", "int answer(void) { return 42; }\n", "-shared", "-fPIC", "-Wl,-soname,libreal.so.1"
    )
    (libs / "libreal.so.1").symlink_to("libreal-1a2b.so.1.2.3")
    (libs / "libreal.so").symlink_to("libreal.so.1")
    at.compiled(
        at.site / "origin" / "libtop.so",
        "int answer(void); int twice(void) { return 2 * answer(); }\n",
        *("-shared", "-fPIC", f"-L{libs}", "-Wl,-rpath,$ORIGIN/../origin.libs", "-Wl,--no-as-needed", "-lreal"),
    )
    at.write(
        at.site / "origin" / "__init__.py",
        "import ctypes, os\nVALUE = ctypes.CDLL(os.path.join(os.path.dirname(__file__), 'libtop.so')).twice()\n",
    )


@odd("a library of the package finds another through $ORIGIN, five directories up and out of the environment")
def library_above(at: Ground) -> None:
    native = at.root / "native-up"
    at.compiled(native / "libup.so", "int up(void) { return 3; }\n", "-shared", "-fPIC")
    there = os.path.relpath(native, at.site / "climbs")
    at.compiled(
        at.site / "climbs" / "libclimb.so",
        "int up(void); int twice(void) { return 2 * up(); }\n",
        *("-shared", "-fPIC", f"-L{native}", f"-Wl,-rpath,$ORIGIN/{there}", "-Wl,--no-as-needed", "-lup"),
    )
    at.write(
        at.site / "climbs" / "__init__.py",
        "import ctypes, os\nVALUE = ctypes.CDLL(os.path.join(os.path.dirname(__file__), 'libclimb.so')).twice()\n",
    )


OPENS = "import ctypes\ntry:\n    VALUE = ctypes.CDLL({0!r}).{1}()\nexcept OSError:\n    VALUE = 'not there'\n"


@odd("a library opened by an absolute path in the code")
def opened_path(at: Ground) -> None:
    library = at.compiled(at.root / "native-path" / "libbypath.so")
    at.write(at.site / "opens_path.py", OPENS.format(str(library), "answer"))


@odd("a library of the system opened by its name")
def opened_name(at: Ground) -> None:
    at.write(
        at.site / "opens_name.py",
        f"import ctypes\ntry:\n    VALUE = bool(ctypes.CDLL({unused_library(at)!r}))\nexcept OSError:\n    VALUE = 'not there'\n",
    )


def unused_library(at: Ground) -> str:
    """The name of a library of the system that Python itself does not need."""
    code = "import ctypes\nfor n in ('libgmp.so.10', 'libelf.so.1', 'libnettle.so.8', 'liblua5.4.so.0', 'libpcre2-8.so.0', 'libdb-5.3.so'):\n    try:\n        ctypes.CDLL(n)\n        print(n)\n        break\n    except OSError:\n        pass\n"
    return at.run(at.python, "-c", code).strip()


@odd("a library opened by its name through $LD_LIBRARY_PATH, from the project's code", alone=True)
def opened_ld_path(at: Ground) -> None:
    library = at.compiled(at.root / "native-ld" / "libbyname.so")
    at.variables["LD_LIBRARY_PATH"] = str(library.parent)
    at.write("by_name.py", OPENS.format("libbyname.so", "answer"))
    at.write(at.site / "asks_project.py", "import by_name\nVALUE = by_name.VALUE\n")


@odd("a library found by ctypes.util.find_library")
def find_library(at: Ground) -> None:
    at.write(
        at.site / "finds.py",
        f"from ctypes.util import find_library\nVALUE = find_library({unused_library(at)[3:].split('.so')[0]!r}), find_library('c'), find_library('nothing-of-that-name')\n",
    )


@odd("a library whose path the code computes from a variable", named="known only when the code runs", alone=True)
def opened_computed(at: Ground) -> None:
    at.compiled(at.root / "native-hpc" / "lib" / "libhpc.so")
    at.variables["HPC_ROOT"] = str(at.root / "native-hpc")
    at.write(
        at.site / "opens_computed.py",
        "import ctypes, os\ntry:\n    VALUE = ctypes.CDLL(os.environ.get('HPC_ROOT', '') + '/lib/libhpc.so').answer()\nexcept OSError:\n    VALUE = 'not there'\n",
    )


@odd("LD_PRELOAD", named="is preloaded here", alone=True)
def preloaded(at: Ground) -> None:
    library = at.compiled(at.root / "native-pre" / "libpre.so", "int preloaded_answer(void) { return 5; }\n", "-shared", "-fPIC")
    at.variables["LD_PRELOAD"] = str(library)
    at.write(
        at.site / "sees_preload.py",
        "import ctypes\nVALUE = getattr(ctypes.CDLL(None), 'preloaded_answer', lambda: 'not there')()\n",
    )


# -- the interpreter --------------------------------------------------------------------------------------------------


@odd("the interpreter's library: a module edited, one added, one deleted, one as bytecode only", alone=True)
def library_edited(at: Ground) -> None:
    shutil.rmtree(at.root)
    at.project.mkdir(parents=True)
    at.home.mkdir()
    at.fresh.clear()
    at.python_of_its_own()
    at.venv()
    at.pip("alpha")
    (library,) = Path(at.base).parent.parent.glob("lib/python3*")
    at.write(library / "colorsys.py", "VALUE = 'edited'\n")
    at.write(library / "added_to_library.py", "VALUE = 'added'\n")
    (library / "chunk.py").unlink(missing_ok=True)
    (library / "this.py").unlink()
    source = str(library / "sndhdr.py" if (library / "sndhdr.py").exists() else library / "stringprep.py")
    at.run(at.python, "-c", f"import py_compile; py_compile.compile({source!r}, {source!r} + 'c', doraise=True)")
    Path(source).unlink()
    at.write(
        at.site / "sees_library.py",
        "import importlib.util as u, colorsys, added_to_library\n"
        "VALUE = colorsys.VALUE, added_to_library.VALUE, [bool(u.find_spec(n)) for n in ('this', 'chunk', 'sndhdr', 'stringprep')]\n",
    )


# -- the project ------------------------------------------------------------------------------------------------------


def tracked(at: Ground) -> None:
    at.write("train.py", "VALUE = 'train'\n")
    at.write("settings.py", "VALUE = 'committed'\n")
    at.write(".gitignore", ".venv\n")
    at.repository(at.project)


@odd("a tracked file changed behind git's back: --assume-unchanged and --skip-worktree", alone=True)
def assumed_unchanged(at: Ground) -> None:
    tracked(at)
    at.run("git", "update-index", "--assume-unchanged", "settings.py")
    at.write("settings.py", "VALUE = 'changed behind git'\n")
    at.run("git", "update-index", "--skip-worktree", "train.py")
    at.write("train.py", "VALUE = 'skipped by git'\n")


@odd("a tracked file changed with its time and size kept", alone=True)
def racy(at: Ground) -> None:
    tracked(at)
    path = at.project / "settings.py"
    here = path.stat()
    at.write(path, "VALUE = 'commXXted'\n")
    os.utime(path, ns=(here.st_atime_ns, here.st_mtime_ns))


@odd("a repository inside the project that is no submodule, with changes", alone=True)
def nested_repository(at: Ground) -> None:
    tracked(at)
    at.write("vendor/inner_one/__init__.py", "VALUE = 'inner'\n")
    at.repository(at.project / "vendor")
    at.write("vendor/inner_one/new.py", "VALUE = 'new'\n")
    at.write(
        "uses_vendor.py",
        "import sys, os\nsys.path.insert(0, os.path.join(os.path.dirname(__file__), 'vendor'))\nimport inner_one.new\nVALUE = inner_one.new.VALUE\n",
    )


@odd("attributes of git: line ends, $Id$, export-ignore, a diff driver", alone=True)
def attributes(at: Ground) -> None:
    at.write(".gitattributes", "*.py text eol=crlf\nid.txt ident\ndocs export-ignore\n*.bin binary\n")
    at.write("id.txt", "$Id$\n")
    at.write("docs/x.py", "VALUE = 1\n")
    at.write("a.bin", b"\0\r\n\1")
    tracked(at)
    for path in ("train.py", "id.txt"):
        (at.project / path).unlink()
    at.run("git", "checkout", "-q", "--", ".")
    at.write("settings.py", "VALUE = 'changed'\n")


@odd("the project has empty directories, symlinks in and out, a file with mode changed, odd names", alone=True)
def project_odd(at: Ground) -> None:
    tracked(at)
    (at.project / "out" / "empty").mkdir(parents=True)
    (at.project / "link_in.py").symlink_to("settings.py")
    (at.project / "train.py").chmod(0o755)
    at.write("-dash.py", "VALUE = 1\n")
    at.write("name with\nnewline.txt", "x")
    at.write("größe.txt", "x")


@odd("the project links out of itself to a directory of code", alone=True)
def project_link_out(at: Ground) -> None:
    tracked(at)
    at.write(at.root / "common-code" / "__init__.py", "VALUE = 'common'\n")
    (at.project / "common_code").symlink_to(at.root / "common-code")


@odd("modules that .git/info/exclude hides from git", named="local_settings", alone=True)
def excluded_module(at: Ground) -> None:
    tracked(at)
    at.write(".git/info/exclude", "local_settings.py\n")
    at.write("local_settings.py", "VALUE = 'local'\n")


@odd("a project without git: build/, dist/, a hidden module", alone=True)
def project_plain(at: Ground) -> None:
    for name in (
        "build/built.py",
        "dist/disted.py",
        ".hidden/h.py",
        "env_like/bin/activate",
        "wandb/x.py",
        "lib/x.py",
        "tmp/x.py",
    ):
        at.write(name, "VALUE = 1\n")


@odd("a sparse checkout with a submodule that has changes", alone=True)
def submodule(at: Ground) -> None:
    inner = at.root / "inner-repo"
    at.write(inner / "sub_one.py", "VALUE = 'committed'\n")
    at.repository(inner)
    tracked(at)
    at.run("git", "-c", "protocol.file.allow=always", "submodule", "-q", "add", str(inner), "subby")
    at.run("git", "commit", "-qm", "sub")
    at.write("subby/sub_one.py", "VALUE = 'changed'\n")
    at.write("subby/untracked.py", "VALUE = 'untracked'\n")


# -- all at once ------------------------------------------------------------------------------------------------------


@case("all odd things that get along, in one environment")
def together(at: Ground) -> None:
    at.plain()
    for change in TOGETHER:
        change(at)
