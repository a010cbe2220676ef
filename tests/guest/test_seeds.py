"""Seeds in real interpreters. Some tests need NumPy or PyTorch, and are skipped without it."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.guest.scripts import PYTHONS, SEEDS, Script, python_with
from tests.parts import BASE_PYTHON, need


@pytest.fixture(params=PYTHONS)
def script(request: pytest.FixtureRequest, tmp_path: Path) -> Script:
    return Script(tmp_path, request.param)


def test_random_is_a_function_of_the_master_seed(script: Script) -> None:
    code = "import random; print(random.random(), random.Random().random())"
    assert script.run(code) == script.run(code) != script.run(code, seed=2)
    assert script.unseeded == {("random.Random() without a seed", 1), ("random, never seeded, imported", 1)}
    assert {note["file"] for note in script.generators} == {str(script.directory / "script.py")}


def test_a_seed_of_the_script_is_kept_and_noted(script: Script) -> None:
    code = "import random; random.seed(5)\nprint(random.random(), random.Random('x').random())"
    plain = subprocess.run([script.python, "-c", code], capture_output=True, text=True, check=True).stdout
    assert script.run(code) == script.run(code, seed=2) == plain
    assert script.generators == []
    assert script.seeded == {("random.seed", "5", 1), ("random.Random", "'x'", 2)}


def test_a_seed_for_a_purpose_is_noted_with_it(script: Script) -> None:
    code = """
    import sys; sys.path.append(ROOT)
    import repro_env
    for _ in range(2):
        print({purpose: repro_env.seed(purpose) for purpose in ("split", "train")})
    for number in range(40):
        repro_env.seed(str(number))
    """
    values = ast.literal_eval(script.run(code.replace("ROOT", repr(str(SEEDS.parents[2])))).splitlines()[0])
    noted = [(note["purpose"], note["value"]) for note in script.reports if note.get("what") == "repro_env.seed"]
    assert noted[:2] == [(purpose, str(value)) for purpose, value in values.items()]
    assert [purpose for purpose, _ in noted[2:]] == [str(number) for number in range(16)]


def test_an_unused_generator_is_not_noted(script: Script) -> None:
    script.run("import random, tempfile; tempfile.mkdtemp(dir='.')")
    assert script.generators == []


def test_seeding_without_a_value_is_noted_with_its_line(script: Script) -> None:
    code = "import random\nrandom.seed(5)\nrandom.seed()\nprint(random.random())"
    assert script.run(code) == script.run(code) != script.run(code, seed=2)
    assert script.unseeded == {("random.seed() without a seed", 3)}


def test_random_bytes_of_the_operating_system_stay_random(script: Script) -> None:
    code = """
    import os, random, secrets, tempfile, uuid
    print(os.urandom(8).hex(), secrets.token_hex(8), uuid.uuid4(), random.SystemRandom().random(), tempfile.mktemp())
    """
    first, second = script.run(code).split(), script.run(code).split()
    assert len(first) == len(second)
    assert not set(first) & set(second)
    assert script.generators == []


def test_random_bytes_are_counted_by_line_in_all_processes(script: Script) -> None:
    code = """
    import os, multiprocessing, random, secrets, sys, tempfile, uuid
    def child():
        for _ in range(3):
            secrets.token_hex()
    if __name__ == "__main__":
        for _ in range(5):
            os.urandom(3)
        uuid.uuid4(), uuid.uuid4(); uuid.uuid1()
        random.SystemRandom().random()
        os.close(tempfile.mkstemp(dir=".")[0])
        for method in ("fork", "spawn"):
            process = multiprocessing.get_context(method).Process(target=child)
            process.start()
            process.join()
        with multiprocessing.get_context("fork").Pool(1) as pool:
            pool.apply(child)
        try:
            os.getrandom(4)
        except AttributeError:
            pass
        assert os.urandom.__module__ == "os" and os.urandom(4) != os.urandom(4), os.urandom
    """
    script.run(code)
    got = script.entropy
    got.pop(("os.getrandom", 19), None)
    pool = got.pop(("secrets.token_hex", 5)) - 6
    assert pool in (2, 3)  # the pool kills its workers, but at least half of the calls is noted
    assert got == {
        ("os.urandom", 8): 5,
        ("uuid.uuid4", 9): 2,
        ("uuid.uuid1", 9): 1,
        ("random.SystemRandom", 10): 1,
        ("os.urandom", 22): 2,
    }


def test_a_forked_child_does_not_repeat_the_counts_of_its_parent(script: Script) -> None:
    code = """
    import os, sys
    for _ in range(3):
        os.urandom(1)
    if not os.fork():
        sys.exit()
    os.wait()
    """
    script.run(code)
    assert script.entropy == {("os.urandom", 4): 3}


def test_repro_env_can_be_imported_if_the_environment_does_not_have_it(tmp_path: Path) -> None:
    script = Script(tmp_path, BASE_PYTHON)
    code = "import repro_env, sys; print(repro_env.seed('split'), repro_env.__file__, sys.path)"
    env = {"PYTHONPATH": str(SEEDS), "REPRO_ENV_SEED": "7", "REPRO_ENV_RUN": "01a2"}
    command = [script.python, "-c", f"{code}; print(repro_env.tags())"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.endswith("\n{'repro_env_run': '01a2'}\n")
    seed, file, path = done.stdout.split(" ", 2)
    assert file == f"{SEEDS.parents[1]}/__init__.py"
    assert str(SEEDS.parents[2]) not in path
    installed = {"REPRO_ENV_SEED": "7", "PYTHONPATH": str(SEEDS.parents[2])}
    plain = subprocess.run([script.python, "-c", code], cwd=tmp_path, env=installed, capture_output=True, text=True, check=True)
    assert plain.stdout.split()[:2] == [seed, file]
    (script.directory / "repro_env.py").write_text("def seed(name):\n    return 'own'")
    assert script.run(code).startswith(f"own {script.directory}/repro_env.py ")


def test_a_subclass_of_random_is_seeded(script: Script) -> None:
    code = """
    import random
    class Own(random.Random):
        def seed(self, a=None, version=2):
            super().seed(a, version)
    print(Own().random(), Own(3).random())
    """
    assert script.run(code) == script.run(code) != script.run(code, seed=2)
    assert script.unseeded == {("random.Random() without a seed", 5)}
    assert script.seeded == {("random.Random", "3", 5)}


def test_each_rank_has_its_own_streams(script: Script) -> None:
    code = "import random; print(random.random())"
    alone = script.run(code)
    assert len({alone, *(script.run(code, extra={"RANK": rank}) for rank in ("0", "1", "2"))}) == 3
    assert script.run(code, extra={"RANK": "0", "LOCAL_RANK": "0"}) == alone
    assert script.run(code, extra={"RANK": "1", "REPRO_ENV_RANKS": "same"}) == alone
    lightning = {script.run(code, extra={"NODE_RANK": node, "LOCAL_RANK": local}) for node in "01" for local in "01"}
    assert len(lightning) == 4
    assert alone in lightning


def test_without_a_master_seed_no_hook_is_installed(script: Script) -> None:
    code = "import random, sys; print(random.Random.seed.__code__.co_filename == random.__file__, '_repro_env_seeds' in str(sys.meta_path))"
    assert script.run(code, extra={"REPRO_ENV_SEED": ""}) == "True False\n"


def test_the_path_and_the_sitecustomize_of_the_environment_are_unchanged(script: Script) -> None:
    (script.directory / "site").mkdir()
    (script.directory / "site" / "sitecustomize.py").write_text("import sys; sys.own = __name__, __file__")
    code = "import sys, sitecustomize; print(sys.own, sitecustomize.__file__, sys.path[1:])"
    both = f"{SEEDS}:{script.directory / 'site'}"
    with_hooks = script.run(code, extra={"PYTHONPATH": both})
    assert with_hooks == script.run(code, extra={"PYTHONPATH": str(script.directory / "site")})
    assert f"('sitecustomize', '{script.directory}/site/sitecustomize.py')" in with_hooks


def test_an_error_in_the_sitecustomize_of_the_environment_is_reported_and_the_seeds_stay(script: Script) -> None:
    (script.directory / "site").mkdir()
    (script.directory / "site" / "sitecustomize.py").write_text("raise ValueError('own')")
    (script.directory / "script.py").write_text("import random; print(random.random())")
    env = {"PYTHONPATH": f"{SEEDS}:{script.directory / 'site'}", "REPRO_ENV_SEED": "1"}
    done = [
        subprocess.run([script.python, "script.py"], cwd=script.directory, env=env, capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    assert "Error in sitecustomize" in done[0].stderr
    assert "ValueError: own" in done[0].stderr
    assert done[0].stdout == done[1].stdout


def test_a_script_runs_if_the_notes_cannot_be_written(script: Script) -> None:
    code = "import random; print(random.Random().random())"
    assert script.run(code, extra={"REPRO_ENV_REPORTS": "/nonexistent/x"}) == script.run(code)


def test_the_size_of_the_notes_is_limited_with_room_for_effective_settings(script: Script) -> None:
    full = script.directory / "full"
    full.write_bytes(b" " * (3 << 20) + b"\n")
    code = """
    import random, sys
    reports = sys.modules["_repro_env_seeds"].part("reports")
    for line in range(200):
        reports.report({"library": "x", "what": "x" * 30, "file": "x", "line": line})
    reports.report({"settings": {"x": "y"}, "rank": ""})
    """
    script.run(code, extra={"REPRO_ENV_REPORTS": str(full)})
    reports = [json.loads(line) for line in full.read_text().splitlines() if line.strip()]
    assert reports.pop() == {"settings": {"x": "y"}, "rank": ""}
    assert {json.dumps(note) for note in reports} == {
        '{"problem": "the reports exceed 3145728 bytes, so later reports are omitted"}'
    }
    assert full.stat().st_size < (3 << 20) + 5000


def test_an_error_in_a_hook_is_noted_and_the_script_continues(script: Script) -> None:
    (script.directory / "random.py").write_text("value = 3  # the script's own module of that name")
    assert script.run("import random; print(random.value)") == "3\n"
    assert [note["problem"] for note in script.generators if "problem" in note]


def test_parts_are_loaded_after_changes_to_paths_modules_finders_and_working_directory(script: Script) -> None:
    code = """
    import os, random, sys
    def lose():
        sys.path[:] = [path for path in sys.path if "/lib" in path]
        for name in [name for name in sys.modules if name.startswith("_repro_env_")]:
            del sys.modules[name]
    LOSE
    import multiprocessing.pool, uuid
    LOSE
    sys.meta_path[:] = [finder for finder in sys.meta_path if "Watch" not in str(finder)]
    print(random.random(), random.Random().random(), len(os.urandom(2)), uuid.uuid1().version, flush=True)
    if not os.fork():
        print(random.random(), flush=True)
        os._exit(0)
    os.wait()
    """
    printed = script.run(code.replace("LOSE", ""))
    unseeded, entropy = script.unseeded, script.entropy
    assert script.run(code.replace("LOSE", "lose(); os.chdir('/')")) == printed
    assert (script.unseeded, script.entropy) == (unseeded, entropy)
    assert len(printed.split()) == 5
    assert entropy


def test_a_part_that_cannot_be_loaded_is_noted_and_the_script_continues(script: Script) -> None:
    tools = script.directory / "tools" / "guest"
    shutil.copytree(SEEDS, tools / "seeds", ignore=shutil.ignore_patterns("__pycache__", "_repro_env_random.py"))
    shutil.copy(SEEDS.parent / "numericlibraries.py", tools)
    (tools / "seeds" / "_repro_env_processes.py").write_text("1 / 0")
    code = """
    import os, random, uuid
    child = os.fork()
    if child:
        os.wait()
        print(random.random() < 1, uuid.uuid4().version)
    """
    assert script.run(code, extra={"PYTHONPATH": str(tools / "seeds")}) == "True 4\n"
    problems = {str(note["problem"]).split(" [")[0] for note in script.generators}
    assert problems == {"random: FileNotFoundError:", "fork: ZeroDivisionError: division by zero"}
    assert script.entropy == {("uuid.uuid4", 6): 1}
    shutil.rmtree(tools)
    assert script.run(code, extra={"PYTHONPATH": str(tools / "seeds")}) == "True 4\n"


def test_modules_can_be_imported_by_several_threads_at_once(script: Script) -> None:
    code = """
    import importlib, os, threading
    names = ("random", "uuid", "multiprocessing.pool", "secrets", "random", "tempfile")
    barrier = threading.Barrier(len(names))
    def go(name):
        barrier.wait()
        importlib.import_module(name)
        os.urandom(1)
    threads = [threading.Thread(target=go, args=(name,)) for name in names]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    import random
    print(random.random(), random.Random().random())
    """
    plain = script.run("import random; print(random.random(), random.Random().random())")
    assert {script.run(code) for _ in range(3)} == {plain}
    assert script.entropy == {("os.urandom", 8): 6}


def test_a_reloaded_module_is_seeded_again(script: Script) -> None:
    code = """
    import importlib, os, random, sys
    old = random
    drawn = [random.random()]
    importlib.reload(random)
    drawn += [random.random(), random.Random().random()]
    del sys.modules["random"]
    import random
    drawn += [random.random(), old.random(), random.Random().random(), old.Random().random()]
    assert len(set(drawn)) == 7
    print(drawn, flush=True)
    if not os.fork():
        print(random.random(), old.random(), flush=True)
        os._exit(0)
    os.wait()
    """
    assert script.run(code) == script.run(code) != script.run(code, seed=2)
    assert [note for note in script.generators if "problem" in note] == []


def test_a_relative_file_name_is_resolved_in_the_initial_directory(script: Script) -> None:
    code = """
    import os
    code = compile("import random; random.Random()", "named/so.py", "exec")
    os.chdir("/")
    exec(code)
    """
    script.run(code)
    assert [note["file"] for note in script.generators] == [str(script.directory / "named" / "so.py")]


def test_sitecustomize_has_the_syntax_of_python_2() -> None:
    """A script may start Python 2, which imports it too: no annotations and no f-strings."""
    tree = ast.parse((SEEDS / "sitecustomize.py").read_text())
    for node in ast.walk(tree):
        assert not isinstance(node, (ast.AnnAssign, ast.JoinedStr, ast.AsyncFunctionDef, ast.NamedExpr))
        assert getattr(node, "annotation", None) is None
        assert getattr(node, "returns", None) is None
        assert not getattr(getattr(node, "args", None), "kwonlyargs", None)


def test_children_have_different_streams_which_are_the_same_for_every_start_method(script: Script) -> None:
    code = """
    import multiprocessing, random, sys
    def draw(queue):
        queue.put((random.random(), random.Random().random()))
    if __name__ == "__main__":
        context = multiprocessing.get_context(sys.argv[1] if len(sys.argv) > 1 else METHOD)
        queue = context.Queue()
        for _ in range(2):
            child = context.Process(target=draw, args=(queue,))
            child.start()
            print(queue.get())
            child.join()
        print(random.random())
    """
    printed = [script.run(code.replace("METHOD", repr(method))) for method in ("fork", "spawn", "forkserver", "fork")]
    assert len(set(printed)) == 1
    assert len(set(printed[0].splitlines())) == 3


def test_the_streams_of_a_task_do_not_depend_on_the_worker(tmp_path: Path) -> None:
    script = Script(tmp_path)
    code = """
    import multiprocessing, os, random, sys, time
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing.pool import ThreadPool
    def draw(_):
        time.sleep(0.002 * (os.getpid() % 3))
        return random.random(), random.Random().random()
    def first(_):
        return random.random()
    def seed():
        random.seed(5)
    if __name__ == "__main__":
        context = multiprocessing.get_context(METHOD)
        drawn = []
        with context.Pool(WORKERS) as pool:
            drawn += pool.map(draw, range(4), chunksize=1)
            drawn += pool.imap(draw, range(2))
            drawn.append(pool.apply(draw, (0,)))
        for _ in range(2):
            with ProcessPoolExecutor(WORKERS, mp_context=context) as executor:
                drawn += executor.map(draw, range(3))
        assert len(set(drawn)) == 13
        with context.Pool(1, initializer=seed) as pool:  # the seed of the script stays
            own = pool.map(first, range(2), chunksize=1)
        plain = random.Random(5)
        assert own == [plain.random(), plain.random()], own
        before = random.getstate()
        with ThreadPool(2) as threads:
            threads.map(abs, range(4), chunksize=1)
        assert random.getstate() == before
        print(drawn, random.random())
    """
    printed = {
        script.run(code.replace("METHOD", repr(method)).replace("WORKERS", workers))
        for method, workers in (("fork", "1"), ("fork", "3"), ("spawn", "2"), ("forkserver", "2"))
    }
    assert len(printed) == 1
    assert ("random.Random() without a seed", 7) in script.unseeded
    assert ("random, never seeded, imported", 2) in {(note["what"], note["line"]) for note in script.generators}


def test_each_forked_child_has_its_own_streams(script: Script) -> None:
    code = """
    import os, random
    random.seed(1)
    for _ in range(2):
        child = os.fork()
        if not child:
            print(random.random(), flush=True)
            os._exit(0)
        os.waitpid(child, 0)
    print(random.random())
    """
    first = script.run(code)
    assert first == script.run(code)
    assert len(set(first.splitlines())) == 3


def test_the_hooks_import_few_modules_at_startup() -> None:
    """Imports make the startup slow."""
    env = {"PYTHONPATH": str(SEEDS), "REPRO_ENV_SEED": "1", "PYTHONHASHSEED": "1"}
    code = "import sys; print(sorted(sys.modules))"
    with_hooks = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout
    without = subprocess.run([sys.executable, "-c", code], env={}, capture_output=True, text=True, check=True).stdout
    new = set(with_hooks.split("'")[1::2]) - set(without.split("'")[1::2])
    assert new <= {"sitecustomize", "_repro_env_seeds", "__future__", "atexit"}


# --- NumPy


@pytest.fixture
def numpy(tmp_path: Path) -> Script:
    return Script(tmp_path, python_with("numpy"))


def test_numpy_is_a_function_of_the_master_seed(numpy: Script) -> None:
    code = """
    import numpy as np
    print(np.random.rand())
    print(np.random.default_rng().random())
    print(np.random.RandomState().rand())
    print(np.random.SeedSequence().entropy)
    """
    assert numpy.run(code) == numpy.run(code) != numpy.run(code, seed=2)
    what = "generator without a seed"
    imported = {("global generator, never seeded, imported", line) for line in (2, 3)}  # NumPy imports the generator on first use
    assert {(what, 4), (what, 5), (what, 6)} == numpy.unseeded - imported
    assert len(numpy.unseeded & imported) == 1


def test_seeds_of_numpy_are_kept_and_noted(numpy: Script) -> None:
    code = """
    import copy, pickle, numpy as np
    np.random.seed(5)
    state = np.random.RandomState(5)
    more = np.random.RandomState(
        seed=6)
    print(np.random.rand(), np.random.default_rng(5).random(), state.rand(), more.rand(), np.random.PCG64([1, 2]).random_raw())
    child = np.random.SeedSequence(7).spawn(1)[0]
    print(np.random.default_rng(child).random())
    print(copy.deepcopy(state).rand(), pickle.loads(pickle.dumps(state)).rand(), state.rand())
    state.seed(8)
    print(state.rand(), state, isinstance(state, np.random.RandomState), type(pickle.loads(pickle.dumps(state))._bit_generator))
    np.random.set_state(np.random.get_state())
    print(np.random.rand(), np.random.RandomState(np.random.MT19937(3)).rand())
    """
    plain = subprocess.run([numpy.python, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True).stdout
    assert numpy.run(code) == plain
    assert numpy.generators == []
    seeds = {
        ("numpy.random.seed", "5", 3),
        ("numpy.random.RandomState", "5", 4),
        ("numpy.random.RandomState", "8", 11),
        ("numpy.random.SeedSequence", "5", 7),
        ("numpy.random.SeedSequence", "[1, 2]", 7),
        ("numpy.random.SeedSequence", "7", 8),
        ("numpy.random.SeedSequence", "3", 14),
    }
    assert numpy.seeded - seeds <= {
        ("numpy.random.RandomState", "6", 5),
        ("numpy.random.RandomState", "6", 6),
    }  # the line depends on the version of Python
    assert len(numpy.seeded - seeds) == 1


def test_a_reloaded_numpy_keeps_its_hooks(numpy: Script) -> None:
    code = """
    import importlib, numpy as np
    np.random.seed(3)
    RELOAD
    print(np.random.rand(), np.random.default_rng().random(), np.random.RandomState(4).rand())
    """
    again = "\n    ".join(f"importlib.reload(np.random.{name})" for name in ("mtrand", "bit_generator"))
    assert numpy.run(code.replace("RELOAD", again)) == numpy.run(code.replace("RELOAD", ""))
    assert numpy.unseeded == {("generator without a seed", 5)}


def test_an_unseeded_randomstate_is_noted_and_its_copy_is_not(numpy: Script) -> None:
    code = """
    import copy, numpy as np
    first = np.random.RandomState()
    copy.deepcopy(first)
    np.random.seed()
    """
    numpy.run(code)
    assert numpy.unseeded == {("generator without a seed", 3), ("generator without a seed", 5)}


def test_numpy_is_reseeded_in_children_only_if_the_script_has_not_seeded_it(numpy: Script) -> None:
    code = """
    import multiprocessing, numpy as np
    SEED
    def draw(queue):
        queue.put(np.random.rand())
    if __name__ == "__main__":
        context = multiprocessing.get_context(METHOD)
        queue = context.Queue()
        drawn = [np.random.rand()]
        for _ in range(2):
            child = context.Process(target=draw, args=(queue,))
            child.start()
            drawn.append(queue.get())
            child.join()
        print(drawn)
    """

    def drawn(method: str, seed: str) -> list[float]:
        return list(json.loads(numpy.run(code.replace("METHOD", repr(method)).replace("SEED", seed))))

    unseeded = drawn("fork", "")
    assert unseeded == drawn("spawn", "")
    assert len(set(unseeded)) == 3
    own = drawn("fork", "np.random.seed(3)")
    assert own[1] == own[2] == drawn("spawn", "np.random.seed(3); np.random.rand()")[1]


def test_the_streams_of_joblib_calls_do_not_depend_on_batches(tmp_path: Path) -> None:
    script = Script(tmp_path, python_with("joblib"))
    code = """
    import random, time, numpy as np
    from joblib import Parallel, delayed
    def draw(item):
        time.sleep(PAUSE * (item < 2))  # joblib measures, and makes its batches larger
        return random.random(), np.random.rand(), np.random.default_rng().random()
    def outer(item):
        return draw(5), Parallel(n_jobs=2, backend="threading", batch_size=1)(delayed(len)(["a"]) for _ in range(2))
    if __name__ == "__main__":
        drawn = []
        for number in range(2):
            drawn += Parallel(n_jobs=WORKERS, backend=BACKEND, batch_size=SIZE)(delayed(draw)(item) for item in range(40))
        drawn += [item for item, _ in Parallel(n_jobs=WORKERS, backend=BACKEND)(delayed(outer)(item) for item in range(2))]
        assert len(set(drawn)) == 82
        print(drawn, random.random(), np.random.rand())
    """

    def drawn(backend: str, workers: int, size: object, pause: float) -> str:
        words = {"BACKEND": backend, "WORKERS": workers, "SIZE": size, "PAUSE": pause}
        text = code
        for word, value in words.items():
            text = text.replace(word, repr(value))
        return script.run(text)

    assert drawn("loky", 2, "auto", 0.1) == drawn("loky", 3, 7, 0) == drawn("multiprocessing", 2, "auto", 0)


def test_joblib_behaves_as_without_hooks(tmp_path: Path) -> None:
    """Callable objects, lambdas, exceptions, a single process, threads and seeded generators."""
    script = Script(tmp_path, python_with("joblib"))
    code = """
    import random
    from joblib import Parallel, delayed
    class Own:
        def __init__(self, add):
            self.add = add
        def __call__(self, item, *, more=0):
            return item + self.add + more
    def fail(item):
        raise KeyError(item)
    if __name__ == "__main__":
        assert Parallel(n_jobs=2)(delayed(Own(3))(item, more=1) for item in range(9)) == [item + 4 for item in range(9)]
        assert Parallel(n_jobs=2)(delayed(lambda item: item * 2)(item) for item in range(9)) == [item * 2 for item in range(9)]
        try:
            Parallel(n_jobs=2)(delayed(fail)(item) for item in range(3))
        except KeyError as error:
            print("KeyError", error)
        assert list(Parallel(n_jobs=2, return_as="generator")(delayed(abs)(-item) for item in range(3))) == [0, 1, 2]
        before = random.getstate()
        for options in ({"n_jobs": 1}, {"n_jobs": 2, "prefer": "threads"}):
            assert Parallel(**options)(delayed(abs)(-item) for item in range(9)) == list(range(9))
        assert random.getstate() == before
        assert Parallel(n_jobs=2)([]) == []
    """
    assert script.run(code).startswith("KeyError")


# --- PyTorch


@pytest.fixture
def torch(tmp_path: Path) -> Script:
    return Script(tmp_path, python_with("torch"))


@pytest.mark.slow
def test_torch_is_a_function_of_the_master_seed_unless_the_script_seeds_it(torch: Script) -> None:
    code = "import torch; print(torch.rand(2).tolist(), torch.initial_seed())"
    torch.run(code)
    assert torch.unseeded == {("default generator, never seeded, imported", 1)}
    code = """
    import torch
    print(torch.rand(2).tolist())
    queued = torch.cuda._lazy_seed_tracker.get_calls()  # what CUDA is seeded with once it is in use
    print("seeded", [call for call in queued if call])
    print(torch.seed(), torch.initial_seed(), torch.rand(2).tolist())
    torch.cuda.seed_all()
    torch.manual_seed(3)
    torch.cuda.manual_seed(seed=4)
    torch.cuda.manual_seed_all(5)
    print(torch.rand(2).tolist())
    for value in range(6):
        torch.random.manual_seed(value)
    assert torch.random.manual_seed is torch.manual_seed and torch.manual_seed.__name__ == "manual_seed"
    """
    first = torch.run(code).splitlines()
    assert torch.unseeded == {
        ("torch.seed() without a seed", 6),
        ("torch.cuda.seed_all() without a seed", 7),
    }  # seed() resets the state, so earlier draws are not noted
    assert torch.seeded == {
        ("torch.manual_seed", "3", 8),
        ("torch.cuda.manual_seed", "4", 9),
        ("torch.cuda.manual_seed_all", "5", 10),
        *(("torch.manual_seed", value, 13) for value in "0123"),
    }
    second = torch.run(code, seed=2).splitlines()
    assert "manual_seed_all" in first[1]
    assert first[0] != second[0]
    assert first[2] != second[2]
    assert first[2].split()[0] == first[2].split()[1]
    assert first[3] == second[3]


@pytest.mark.slow
def test_loader_workers_have_the_same_streams_with_fork_and_spawn_and_others_in_each_epoch(torch: Script) -> None:
    code = """
    import random, numpy as np, torch
    class Set(torch.utils.data.Dataset):
        def __len__(self):
            return 4
        def __getitem__(self, index):
            return random.random(), np.random.rand(), torch.rand(1).item(), np.random.default_rng().random(), own
    def start(worker):
        global own
        own = random.Random().random()
        np.random.seed((torch.initial_seed() + worker) % 2**32)
    if __name__ == "__main__":
        loader = torch.utils.data.DataLoader(Set(), num_workers=2, multiprocessing_context=METHOD, worker_init_fn=start)
        for epoch in range(EPOCHS):
            for batch in loader:
                print([value.item() for value in batch])
    """
    fork = torch.run(code.replace("METHOD", "'fork'").replace("EPOCHS", "2"))
    assert len(set(fork.splitlines())) == 8
    assert {what for what, _, line in torch.seeded if line == 11} == {"numpy.random.seed"}
    assert {line for _, _, line in torch.seeded} == {11}  # the seeds that torch gives to its workers are not noted
    spawn = torch.run(code.replace("METHOD", "'spawn'").replace("EPOCHS", "1"))
    assert spawn.splitlines() == fork.splitlines()[:4]


@pytest.mark.soak
def test_ranks_of_torchrun_have_their_own_streams_or_the_same_ones(torch: Script) -> None:
    code = """
    import random, numpy as np, torch
    torch.distributed.init_process_group("gloo")
    drawn = [None, None]
    torch.distributed.all_gather_object(drawn, (random.random(), np.random.rand(), torch.rand(1).item()))
    if torch.distributed.get_rank() == 0:
        print(drawn)
    torch.distributed.destroy_process_group()
    """
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    quiet = {"TORCH_CPP_LOG_LEVEL": "ERROR", "OMP_NUM_THREADS": "1"}
    printed = torch.run(code, args=launcher, extra=quiet)
    assert printed == torch.run(code, args=launcher, extra=quiet)
    first, second = eval(printed)
    assert not set(first) & set(second)
    assert eval(torch.run(code, args=launcher, extra={**quiet, "REPRO_ENV_RANKS": "same"})) == [first, first]


@pytest.mark.soak
def test_seeds_of_trainers_are_noted_with_the_line_of_the_script(tmp_path: Path) -> None:
    python = os.environ.get("REPRO_ENV_TEST_TRAINERS", "")
    need(
        python, "no environment with Lightning and transformers: `make trainers`, and name its Python in REPRO_ENV_TEST_TRAINERS"
    )
    script = Script(tmp_path, python)
    code = """
    import lightning, torch
    from transformers import set_seed
    from accelerate.utils import set_seed as set_all
    class Set(torch.utils.data.Dataset):
        def __len__(self):
            return 4
        def __getitem__(self, index):
            return torch.rand(1)
    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
        def training_step(self, batch, index):
            return self.layer(batch).sum()
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)
    lightning.seed_everything(7, workers=True, verbose=False)
    set_seed(8)
    set_all(9)
    quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    lightning.Trainer(max_epochs=2, accelerator="cpu", **quiet).fit(Model(), torch.utils.data.DataLoader(Set(), num_workers=2))
    """
    script.run(code, quiet=False)
    assert {(what, value, line) for what, value, line in script.seeded if what != "torch.cuda.manual_seed_all"} == {
        (what, str(line - 11), line)
        for line in (18, 19, 20)
        for what in ("random.seed", "numpy.random.seed", "torch.manual_seed")
    }
    assert not [note for note in script.reports if "problem" in note]


def test_a_resumed_run_has_streams_of_its_own(tmp_path: Path) -> None:
    code = """
        import numpy, torch
        from torch.utils.data import DataLoader
        class Draws:
            def __len__(self): return 2
            def __getitem__(self, index): return torch.rand(1).item()
        loader = DataLoader(Draws(), num_workers=1, multiprocessing_context="fork")
        print([numpy.random.rand(), numpy.random.default_rng().random(), torch.rand(1).item(), [batch.item() for batch in loader]])
    """
    script = Script(tmp_path, python_with("torch"))
    first, again, resumed, repeated, third = (
        ast.literal_eval(script.run(code, extra={} if number is None else {"REPRO_ENV_RESUMES": number}))
        for number in (None, "", "1", "1", "2")
    )
    assert first == again
    assert resumed == repeated
    assert all(len({str(value) for value in values}) == 3 for values in zip(first, resumed, third, strict=True))
