"""An environment that somebody changed after it was installed."""

from __future__ import annotations

import os
import shutil
import socket

from tests.fidelity.case import case
from tests.fidelity.ground import Ground


@case("control: nothing was changed", soak=True)
def control(at: Ground) -> None:
    at.plain()


@case("a file edited by hand")
def edited(at: Ground) -> None:
    at.plain()
    at.write(at.site / "alpha.py", (at.site / "alpha.py").read_text().replace("alpha 1.0", "alpha edited"))


@case("a stray module and a sitecustomize.py", soak=True)
def stray(at: Ground) -> None:
    at.plain()
    at.write(at.site / "stray.py", "VALUE = 'nobody installed this'\n")
    at.write(at.site / "sitecustomize.py", "import sys\nsys.CUSTOMIZED = True\n")


@case("data written after install (a downloaded model)", soak=True)
def data_after_install(at: Ground) -> None:
    at.plain()
    at.write(at.site / "beta" / "cache" / "model.bin", bytes(range(256)) * 100)
    at.write(at.prefix / "share" / "models" / "weights.bin", b"\0" * 5000)


@case("a file of a distribution deleted", soak=True)
def deleted(at: Ground) -> None:
    at.plain()
    (at.site / "beta" / "sub" / "deep.py").unlink()
    (at.site / "beta" / "data" / "words.txt").unlink()


@case("a file turned into a symlink, and a directory into one", soak=True)
def turned_into_links(at: Ground) -> None:
    at.plain()
    (at.site / "alpha.py").rename(at.site / "alpha_real.py")
    (at.site / "alpha.py").symlink_to("alpha_real.py")
    (at.site / "beta" / "sub").rename(at.site / "beta" / "real_sub")
    (at.site / "beta" / "sub").symlink_to("real_sub")


@case("a symlink that leads out of the environment", soak=True)
def link_out(at: Ground) -> None:
    at.plain()
    at.write(at.root / "elsewhere" / "model.bin", b"weights")
    (at.site / "beta" / "model.bin").symlink_to(at.root / "elsewhere" / "model.bin")


@case("a symlink that leads nowhere, and one that leads to itself", soak=True)
def dangling(at: Ground) -> None:
    at.plain()
    (at.site / "gone.txt").symlink_to("/nowhere/at/all")
    (at.site / "itself").symlink_to("itself")
    (at.site / "up").symlink_to("..")


@case("executable bits changed, set-user-id bits", soak=True)
def modes(at: Ground) -> None:
    at.plain()
    (at.site / "alpha.py").chmod(0o755)
    at.write(at.prefix / "bin" / "tool", "#!/bin/sh\necho tool\n").chmod(0o4755)
    (at.prefix / "bin" / "alpha").chmod(0o644)


@case("files that only the owner may read", soak=True)
def owner_only(at: Ground) -> None:
    at.plain()
    at.write(at.site / "private.py", "VALUE = 'mine'\n").chmod(0o600)
    (at.site / "beta" / "data").chmod(0o700)


@case("empty files and empty directories", soak=True)
def empty(at: Ground) -> None:
    at.plain()
    at.write(at.site / "beta" / "py.typed")
    (at.site / "beta" / "plugins" / "none").mkdir(parents=True)
    (at.prefix / "var").mkdir()


@case("names that differ in case only", soak=True)
def case_twins(at: Ground) -> None:
    at.plain()
    at.write(at.site / "Alpha.py", "VALUE = 'capital'\n")
    at.write(at.site / "beta" / "DATA" / "words.txt", "ONE TWO\n")


@case("hard-linked files, a sparse file", soak=True)
def hard_links(at: Ground) -> None:
    at.plain()
    os.link(at.site / "alpha.py", at.site / "alpha_twin.py")
    with (at.site / "sparse.bin").open("wb") as file:
        file.truncate(30_000_000)


@case("files from 1970 and from 2040", soak=True)
def times(at: Ground) -> None:
    at.plain()
    os.utime(at.site / "alpha.py", (0, 0))
    os.utime(at.site / "beta" / "__init__.py", (2_208_988_800, 2_208_988_800))


@case("non-ASCII names, and very long ones", soak=True)
def names(at: Ground) -> None:
    at.plain()
    at.write(at.site / "größe.py", "VALUE = 'größe'\n")
    at.write(at.site / "beta" / "data" / "данные 数据.txt", "text\n")
    at.write(at.site / "beta" / ("n" * 240 + ".txt"), "long\n")
    at.write(at.site / "beta" / "/".join(["deep" * 20] * 12) / "end.txt", "deep\n")
    at.write(at.site / "beta" / "a name with 'quotes' and \"more\" & $HOME.txt", "odd\n")


@case("names that are not UTF-8", named="UTF-8", soak=True)
def undecodable(at: Ground) -> None:
    at.plain()
    at.write(os.fsdecode(os.fsencode(at.site / "beta" / "data") + b"/caf\xe9.txt"), "latin\n")


@case("a socket in the environment", named="not a file, directory or symlink", soak=True)
def a_socket(at: Ground) -> None:
    at.plain()
    with socket.socket(socket.AF_UNIX) as listener:
        here = os.getcwd()  # noqa: PTH109 - a socket's path may be no longer than 107 bytes
        os.chdir(at.prefix)
        try:
            listener.bind("control.sock")
        finally:
            os.chdir(here)


@case("a named pipe in site-packages", named="not a file, directory or symlink", soak=True)
def a_pipe(at: Ground) -> None:
    at.plain()
    os.mkfifo(at.site / "pipe")


@case("a console script edited by hand", soak=True)
def edited_script(at: Ground) -> None:
    at.plain()
    script = at.prefix / "bin" / "alpha"
    script.write_text(script.read_text().replace("import sys\n", "import sys\nprint('edited')\n"))


@case("the interpreter line of a script edited by hand", soak=True)
def edited_shebang(at: Ground) -> None:
    at.plain()
    script = at.prefix / "bin" / "alpha"
    first, _, rest = script.read_text().partition("\n")
    script.write_text(f"{first} -O\n{rest}")
    at.write(at.site / "alpha.py", (at.site / "alpha.py").read_text().replace("alpha 1.0'", "alpha %s' % __debug__"))


@case("a script and a compiled program dropped into bin/", soak=True)
def dropped(at: Ground) -> None:
    at.plain()
    at.write(at.prefix / "bin" / "mine", f"#!{at.python}\nimport alpha\nprint(alpha.VALUE)\n").chmod(0o755)
    at.write(at.prefix / "bin" / "mine-sh", "#!/bin/sh\necho mine\n").chmod(0o755)
    at.compiled(at.prefix / "bin" / "tool", '#include <stdio.h>\nint main(void) { puts("a tool"); return 3; }\n', "-O1")


@case("activate edited, dotfiles and backup files", soak=True)
def dotfiles(at: Ground) -> None:
    at.plain()
    with (at.prefix / "bin" / "activate").open("a") as file:
        file.write("export MY_SETTING=1\n")
    at.write(at.prefix / ".gitignore", "*\n")
    at.write(at.prefix / ".hidden" / "x", "x")
    at.write(at.site / "alpha.py~", "old\n")
    at.write(at.site / "alpha.py.orig", "older\n")
    at.write(at.site / ".alpha.py.swp", "swap\n")


@case("modules that are bytecode only", soak=True)
def sourceless(at: Ground) -> None:
    at.plain()
    at.write(at.site / "closed.py", "VALUE = 'no source'\n")
    at.write(at.site / "shut" / "__init__.py", "VALUE = 'no source here either'\n")
    at.run(at.python, "-m", "compileall", "-qb", at.site / "closed.py", at.site / "shut")
    (at.site / "closed.py").unlink()
    (at.site / "shut" / "__init__.py").unlink()


@case("bytecode of another version, and bytecode that is older than its source", soak=True)
def stale_bytecode(at: Ground) -> None:
    at.plain()
    at.write(at.site / "__pycache__" / "alpha.cpython-38.pyc", b"nothing")
    at.write(at.site / "alpha.py", "VALUE = 'newer'\ndef main(): print(VALUE)\n")


@case("unchecked bytecode that says something else than its source", named="without checking the source", soak=True)
def lying_bytecode(at: Ground) -> None:
    """Python runs the bytecode and never looks at the source: the environment does what no source says."""
    at.plain()
    at.write(at.site / "liar.py", "VALUE = 'from bytecode'\n")
    at.run(at.python, "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", at.site / "liar.py")
    at.write(at.site / "liar.py", "VALUE = 'from the source'\n")


@case("what pip leaves of an interrupted uninstall (~lpha)", soak=True)
def leftovers(at: Ground) -> None:
    at.plain()
    shutil.copytree(at.site / "beta", at.site / "~eta")
    (info,) = at.site.glob("beta-*.dist-info")
    shutil.copytree(info, at.site / ("~" + info.name[1:]))


@case("two versions' .dist-info of one distribution", soak=True)
def two_dist_infos(at: Ground) -> None:
    at.plain()
    at.pip("gamma==1.0")
    shutil.copytree(at.site / "gamma-1.0.dist-info", at.root / "kept")
    at.pip("gamma==2.0")
    shutil.copytree(at.root / "kept", at.site / "gamma-1.0.dist-info")


@case("an install that was killed half-way: files without their .dist-info, a .dist-info without its files", soak=True)
def half_installed(at: Ground) -> None:
    at.plain()
    at.pip("gamma==1.0", "plugged")
    shutil.rmtree(at.site / "gamma-1.0.dist-info")
    (at.site / "plugged.py").unlink()
    (at.site / "plugged-1.0.dist-info" / "RECORD").unlink()


@case("thousands of small files", soak=True)
def many_files(at: Ground) -> None:
    at.plain()
    for number in range(8000):
        at.write(at.site / "beta" / "many" / f"{number % 50}" / f"{number}.txt", str(number))


@case("Jupyter kernels, man pages, translations below the prefix", soak=True)
def below_the_prefix(at: Ground) -> None:
    at.plain()
    at.write(at.prefix / "share" / "jupyter" / "kernels" / "mine" / "kernel.json", f'{{"argv": ["{at.python}"]}}\n')
    at.write(at.prefix / "share" / "man" / "man1" / "alpha.1", ".TH ALPHA 1\n")
    at.write(at.prefix / "share" / "locale" / "de" / "LC_MESSAGES" / "alpha.mo", b"\xde\x12\x04\x95" + b"\0" * 24)
    at.write(
        at.site / "translated.py",
        "import gettext, os, sys\nVALUE = gettext.find('alpha', os.path.join(sys.prefix, 'share', 'locale'), ['de'])\n",
    )


@case("an extension module replaced by one built here", soak=True)
def replaced_extension(at: Ground) -> None:
    at.plain()
    at.pip(at.wheel("native", files={"native_one.abi3.so": b"not for this machine"}))
    at.extension(at.site / "native_one.abi3.so", 7)


@case("umask 002", soak=True)
def umask_002(at: Ground) -> None:
    at.umask = 0o002
    at.plain()
    at.write(at.site / "mine.py", "VALUE = 1\n")


@case("umask 077", soak=True)
def umask_077(at: Ground) -> None:
    at.umask = 0o077
    at.plain()
    at.write(at.site / "mine.py", "VALUE = 1\n")
