"""Programs that the script starts: Pythons without the variables of repro-env, and programs that no seed reaches.

A Python whose variables the script chose itself (`env={...}`) gets the hooks and the hash seed, and removes both from its
`os.environ`. A report {"system_randomness": "unseeded ...", "count": 1, "file", "line"} names a program whose random numbers do not depend
on the seed: another language, Python with `-S`, a Python without the hooks, and the hash seed of Python with `-E` or `-I`. Commands
of shells are only searched for names of programs.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

seeds: Any = __import__("_repro_env_seeds")
callers: Any = seeds.part("callers")
reports: Any = seeds.part("reports")

_SHELLS = frozenset("sh bash dash zsh ksh ash busybox".split())
_LANGUAGES = frozenset("bun deno guile java julia lua luajit node octave perl php pypy R Rscript ruby shuf".split())
_BEFORE = frozenset(
    "! command do else env exec if nice nohup numactl setsid stdbuf sudo taskset then time timeout until while xargs".split()
)
"""Words before the name of a program in a command."""
_MARKED = "00"
"""Leading zeros of a hash seed that the script did not set."""
_RANDOM = ("$RANDOM", "${RANDOM", "((RANDOM", "(( RANDOM", "/dev/random", "/dev/urandom")
_LONGEST = 1 << 16
"""The bytes that are read of a shell script."""
_DEPTH = 4
"""The most scripts that start each other, of those that are read."""


def begin() -> None:
    """Remove what the parent added to the variables, and report a random hash seed that the parent could not see."""
    if not sys.flags.ignore_environment and "REPRO_ENV_SEED" not in os.environ:
        if os.environ.get("PYTHONHASHSEED", "").startswith(_MARKED):
            del os.environ["PYTHONHASHSEED"]
        first, _, others = os.environ.get("PYTHONPATH", "").partition(":")
        if first == seeds._DIRECTORY:
            os.environ["PYTHONPATH"] = others
            if not others:
                del os.environ["PYTHONPATH"]
    is_noted = sys.flags.ignore_environment and _is_own(f"/proc/{os.getppid()}/exe")
    if sys.flags.hash_randomization and not seeds._HASH_SEED.isdigit() and not is_noted:
        _note("the hash order of a Python without PYTHONHASHSEED", (callers.absolute(sys.argv[0]), 0))


def hook_subprocess(subprocess: Any) -> None:
    """Watch subprocess, and multiprocessing, which starts processes in the same way."""
    module: Any = __import__("_posixsubprocess")
    plain = module.fork_exec

    def fork_exec(args: Any, programs: Any, close_fds: Any, fds: Any, cwd: Any, env: Any, *others: Any) -> Any:
        with seeds.Attempt("start of a program"):
            paths = [os.path.join(os.fsencode(cwd or b""), os.fsencode(path)) for path in programs]
            program = next(filter(os.path.exists, paths), paths[0])
            given = os.environb if env is None else dict(pair.split(b"=", 1) for pair in env if b"=" in pair)
            more = _start([program, *args[1:]], given)
            if more:
                env = [b"%s=%s" % pair for pair in {**given, **more}.items()]
        return plain(args, programs, close_fds, fds, cwd, env, *others)

    module.fork_exec = fork_exec
    if hasattr(subprocess, "_fork_exec"):
        subprocess._fork_exec = fork_exec


def prepare(name: str, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments for a function of os that starts a program."""
    if name == "system":
        _start(["sh", "-c", *args, *kwargs.values()], os.environb)
        return args, kwargs
    program = next(filter(os.path.exists, _search(args[0])), args[0]) if name == "posix_spawnp" else args[0]
    env = kwargs.get("env", args[2] if len(args) > 2 else None)
    env = os.environb if env is None else env  # from Python 3.13 on, subprocess passes None
    given = {os.fsencode(key): os.fsencode(env[key]) for key in env}
    more = _start([program, *args[1][1:]], given)
    if more and len(args) > 2:
        args = (*args[:2], {**given, **more}, *args[3:])
    return args, kwargs


def _start(words: Sequence[Any], env: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Report what no seed reaches, and return variables for the program."""
    command = [os.fsdecode(word) for word in words]
    hooks, path = os.fsencode(seeds._DIRECTORY), env.get(b"PYTHONPATH", b"")
    more: dict[bytes, bytes] = {}
    if b"REPRO_ENV_SEED" not in env and _is_own(command[0]) and not _options(command) & set("EIS"):
        if hooks not in path.split(b":"):
            more[b"PYTHONPATH"] = path = hooks + (b":" + path if path else b"")
        value = seeds.variable("PYTHONHASHSEED")
        if b"PYTHONHASHSEED" not in env and value.isdigit():
            more[b"PYTHONHASHSEED"] = os.fsencode(_MARKED + value)
    for what, place in unreached(command, has_hooks=hooks in path.split(b":"), has_site=_has_site()):
        _note(what, place or callers.user_line())
    return more


def _note(what: str, place: tuple[str, int]) -> None:
    reports.once({"system_randomness": f"unseeded: {what}", "count": 1, "file": place[0], "line": place[1]})


def unreached(
    words: Sequence[str], *, has_hooks: bool, has_site: bool, depth: int = 0
) -> Iterator[tuple[str, tuple[str, int] | None]]:
    """What a command starts that no seed reaches, with the line of the shell script.

    `has_hooks`: whether PYTHONPATH has the hooks; `has_site`: whether they are found without variables.
    """
    while words and (_name(words[0]) in _BEFORE or words[0][:1] in "-0123456789" or "=" in words[0]):
        has_hooks = has_hooks and words[0] not in ("-i", "--ignore-environment")
        words = words[1:]
    name = _name(words[0]) if words else ""
    if name in _LANGUAGES:
        yield name, None
    elif name == "python":
        options, is_own = _options(words), _is_own(words[0])
        flags = "".join(sorted(options & set("EIS")))
        if "S" in flags or (flags and not (is_own and has_site)):
            yield f"python -{flags}", None
        elif flags:
            yield f"the hash order of python -{flags}", None
        elif not has_hooks and not (is_own and has_site):
            yield f"{words[0]} without the hooks", None
    elif name in _SHELLS:
        yield from _in_shell(words, has_hooks, has_site, depth)
    elif name and depth < _DEPTH:
        path = next(filter(os.path.isfile, _search(words[0])), "")
        start = _read(path, 256).partition("\n")[0] if path else ""
        if start.startswith("#!"):
            command = [*start[2:].split(), path, *words[1:]]
            yield from unreached(command, has_hooks=has_hooks, has_site=has_site, depth=depth + 1)


def _in_shell(words: Sequence[str], has_hooks: bool, has_site: bool, depth: int) -> Iterator[tuple[str, tuple[str, int] | None]]:
    file, text, others = "", "", iter(words[1:])
    for word in others:
        if word.startswith("-") and "c" in word and not word.startswith("--"):
            text = next(others, "")
            break
        if not word.startswith("-"):
            file, text = os.path.abspath(word), _read(word, _LONGEST)
            break
    for number, line in enumerate(text.splitlines() if depth < _DEPTH else (), 1):
        if line.lstrip().startswith("#"):
            continue
        place = (file, number) if file else None
        if any(name in line for name in _RANDOM) and "RANDOM=" not in text:
            yield "random numbers of the shell", place
        for separator in ";|&()`{}":
            line = line.replace(separator, "\n")
        for part in line.split("\n"):
            command = [word.strip("'\"") for word in part.split()]
            for what, inner in unreached(command, has_hooks=has_hooks, has_site=has_site, depth=depth + 1):
                yield what, inner or place


def _name(word: str) -> str:
    """The name of a program without its directory and version."""
    return word.rpartition("/")[2].rstrip("0123456789.")


def _options(words: Sequence[str]) -> set[str]:
    """The letters of the interpreter's options in a command of Python."""
    letters: set[str] = set()
    others = iter(words[1:])
    for word in others:
        if not word.startswith("-") or word.startswith("--") or len(word) == 1:
            break
        for letter in word[1:]:
            if letter in "cmWX":
                break
            letters.add(letter)
        else:
            continue
        if letter in "cm":
            break
        if word[-1] in "WX":
            next(others, "")
    return letters


def _search(word: Any) -> list[str]:
    word = os.fsdecode(word)
    return [word] if "/" in word else [os.path.join(path, word) for path in os.get_exec_path()]


def _is_own(word: str) -> bool:
    """Whether a program is this interpreter, or that of another environment with the same interpreter."""
    path = next(filter(os.path.exists, _search(word)), "")
    return bool(path and sys.executable) and os.path.realpath(path) == os.path.realpath(sys.executable)


def _has_site() -> bool:
    """Whether `site` finds the hooks without variables (`guest/site`)."""
    return any(path.endswith(".zip") and os.path.exists(path + "/sitecustomize.py") for path in sys.path)


def _read(path: str, size: int) -> str:
    try:
        with open(path, "rb") as file:
            return file.read(size).decode("utf-8", "replace")
    except OSError:
        return ""
