"""Progress bars: their times, speeds and numbers of drawings do not count, and everything else does."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import termios

import pytest

from repro_env.compare.outputs import progress
from repro_env.compare.outputs.comparison import Change, File
from repro_env.compare.outputs.evidence import Evidence
from repro_env.compare.outputs.ignore import parse
from repro_env.compare.outputs.judge import Judge
from tests.parts import need

TRAINERS = os.environ.get("REPRO_ENV_TEST_TRAINERS", "")
RUN = Evidence(started=1_000_000.0, ended=1_000_090.0)
"""A run of 90 seconds."""


def bar(step: int, times: str, more: str = "", *, name: str = "Epoch 0", total: int = 10) -> str:
    return f"\r{name}: {step * 100 // total:3d}%|{'█' * step:10}| {step}/{total} [{times}{more}]"


def judge(then: str, now: str, *ignored: str, name: str = "console.log") -> File:
    judge = Judge(RUN, RUN, [parse(text) for text in ignored])
    file = File(path=name, now=name, kind="console" if name == "console.log" else "result")
    return judge.of_bytes(file, then.encode(), now.encode())


THEN = (
    "start\n"
    + bar(0, "00:00<?, ?it/s")
    + bar(5, "00:01<00:01, 4.5it/s", ", loss=0.5")
    + bar(10, "00:02<00:00, 4.5it/s", ", loss=0.2")
)
NOW = (
    "start\n"
    + bar(0, "00:00<?, ?it/s")
    + bar(7, "00:02<00:01, 3.1it/s", ", loss=0.3")
    + bar(10, "00:03<00:00, 3.0it/s", ", loss=0.2")
)


def test_times_speeds_and_the_number_of_drawings_do_not_count() -> None:
    found = judge(THEN + "\nend\n", NOW + "\nend\n")
    assert found.level == "equal except for"
    (ignored,) = found.ignored
    assert (ignored.place, ignored.reason) == ("Epoch 0, (progress bar)", "times and speeds of a progress bar")


def test_in_a_result_they_count_until_the_user_accepts_them() -> None:
    found = judge(THEN, NOW, name="train.log")
    assert (found.level, found.why) == ("different", "(progress bar) differs")
    (accept,) = found.accept
    assert accept.text == "train.log:(progress bar)"
    assert judge(THEN, NOW, accept.text, name="train.log").level == "equal except for"
    other = NOW.replace("loss=0.2", "loss=0.3")
    assert judge(THEN, other, accept.text, name="train.log").level == "different"
    assert judge(THEN, other, "train.log:loss={}", name="train.log").level == "different", "its times count too"
    assert judge(THEN, other, accept.text, "train.log:loss={}", name="train.log").level == "equal except for"


@pytest.mark.parametrize(
    ("then", "now"),
    [
        (THEN, NOW.replace("loss=0.2", "loss=0.3")),
        (THEN, NOW.replace("10/10", "9/10")),
        (THEN, NOW.replace("Epoch 0", "Epoch 1")),
        (THEN, NOW[: NOW.rindex("\r")]),
        (THEN, NOW.replace("start", "begin")),
        (THEN, NOW + "\nextra"),
        (THEN, THEN.replace("loss=0.5", "loss=0.6").replace("4.5it/s", "4.4it/s")),
        (THEN, NOW + bar(0, "00:00<?, ?it/s", name="Epoch 1")),
        (THEN, NOW.replace("00:03<", "02:03<")),  # longer than the run
        (THEN, "start"),
        (THEN.replace("loss=0.2", "v_num=3, loss=0.2"), THEN.replace("loss=0.2", "v_num=4, loss=0.2")),
        ("loss at 0:30 in step 1/2", "loss at 0:31 in step 1/2"),  # no bar
        ("score [0:30, 5]", "score [0:31, 5]"),
    ],
)
def test_every_other_difference_counts(then: str, now: str) -> None:
    assert judge(then, now).level == "different"
    assert judge(now, then).level == "different"


def test_the_last_state_counts_unless_the_bar_was_erased() -> None:
    def inner(last: int) -> str:
        drawn = bar(0, "00:00<?, ?it/s", name="inner") + bar(last, "00:01<00:01, 4.5it/s", name="inner")
        return drawn + "\r" + " " * 60 + "\r" + bar(10, "00:02<00:00, 4.5it/s", name="outer")

    assert judge(inner(7), inner(9)).level == "equal except for"
    kept = [inner(last).replace("\r" + " " * 60, "\n") for last in (7, 9)]
    assert judge(*kept).level == "different"


def test_text_directly_after_a_bar_is_a_line_that_counts() -> None:
    assert judge(THEN + "`Trainer.fit` stopped", NOW + "`Trainer.fit` stopped").level == "equal except for"
    assert judge(THEN + "`Trainer.fit` stopped", NOW + "`Trainer.fit` went on").level == "different"


def test_a_bar_that_is_wider_than_the_terminal_goes_on_in_the_next_line() -> None:
    def drawn(times: str, loss: str, width: int) -> str:
        last = "\r\x1b[2K\x1b[1A\x1b[2K"
        return f"Epoch 0 ━━━━ 1/2 {times} loss:\n{' ' * width}0.9{' ' * 20}{last}Epoch 0 ━━━━ 2/2 {times} loss:\n{' ' * width}{loss}{' ' * 20}\x1b[0mend\n"

    assert judge(drawn("0:00:01 98.0it/s", "0.5", 40), drawn("0:00:02 8.0it/s", "0.5", 39)).level == "equal except for"
    assert judge(drawn("0:00:01 98.0it/s", "0.5", 40), drawn("0:00:02 8.0it/s", "0.6", 39)).level == "different"
    assert (
        judge(drawn("0:00:01 98.0it/s", "0.5", 40), drawn("0:00:01 98.0it/s", "0.5", 40).replace("end", "no")).level
        == "different"
    )


@pytest.mark.parametrize(
    ("text", "name", "step", "more"),
    [
        ("Epoch 0:  50%|█████     | 5/10 [00:01<00:01,  4.50it/s, v_num=0, loss=0.5]", "Epoch 0", "5/10", "loss=0.5"),
        ("100%|##########| 1.2M/1.2M [01:00:01<00:00, 3.4MB/s]", "", "1.2M/1.2M", ""),
        ("5it [00:01,  4.50s/it]", "", "5it", ""),
        ("⠋ train \x1b[91m━━━━╸\x1b[0m━━━  50% 0:00:01 5/10", "train", "50%", "5/10"),
        ("Epoch 0/1 ━━━━━━━━ 10/10 0:00:01 • 0:00:00 34.52it/s v_num: 0.000 loss: 0.5", "Epoch 0/1", "10/10", "loss: 0.5"),
        (
            "\x1b[1m 5/10\x1b[0m \x1b[32m━━━━\x1b[0m\x1b[37m━━━━\x1b[0m \x1b[1m0s\x1b[0m 12ms/step - loss: 0.5",
            "",
            "5/10",
            "- loss: 0.5",
        ),
        ("5/10 [=====>....] - ETA: 3s - loss: 0.5", "", "5/10", "- ETA: - loss: 0.5"),
    ],
)
def test_bars_of_libraries_are_recognized(text: str, name: str, step: str, more: str) -> None:
    found = progress.parse(text)
    assert found is not None
    assert (found.name, found.step, found.more) == (name, step, more)


@pytest.mark.parametrize("text", ["", "loss 0.5", "┡━━━━━━╇━━━━┩", "━━━━━━━━", "[00:01] step 5/10", "1" * 100_000, "[1, 2, 3]"])
def test_other_text_is_no_bar(text: str) -> None:
    assert progress.parse(text) is None


SCRIPT = """
import sys, time
from tqdm import tqdm, trange
from rich.progress import track
slow = float(sys.argv[1])
loss = 1.0
for epoch in range(2):
    bar = tqdm(range(12), desc=f"Epoch {epoch}")
    for step in bar:
        loss *= 0.9; time.sleep(0.02 * slow); bar.set_postfix(loss=f"{loss:.4f}")
    print("epoch", epoch, "loss", loss, flush=True)
for outer in trange(2, desc="outer"):
    for inner in trange(9, desc="inner", leave=False):
        time.sleep(0.03 * slow)
for step in track(range(12), description="rich"):
    time.sleep(0.02 * slow)
print(sys.argv[2])
"""


def printed(*words: str, terminal: bool) -> str:
    if not terminal:
        done = subprocess.run([TRAINERS, "-c", SCRIPT, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=True)
        return done.stdout.decode()
    outer, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    process = subprocess.Popen([TRAINERS, "-c", SCRIPT, *words], stdin=inner, stdout=inner, stderr=inner, env={"TERM": "xterm"})
    os.close(inner)
    shown = b""
    with os.fdopen(outer, "rb", buffering=0) as file:
        try:
            while data := file.read(1 << 16):
                shown += data
        except OSError:  # the process has ended
            assert process.wait(60) == 0
    return shown.decode().replace("\r\n", "\n")


@pytest.mark.parametrize("terminal", [False, True])
def test_real_bars_at_two_speeds_agree_and_another_last_line_does_not(terminal: bool) -> None:
    need(TRAINERS, "no environment with tqdm and rich: `make trainers`, and name it in REPRO_ENV_TEST_TRAINERS")
    then, now, other = (printed(*words, terminal=terminal) for words in (("0.4", "done"), ("1", "done"), ("0.5", "failed")))
    assert then != now
    assert judge(then, now).level == "equal except for", judge(then, now).shown
    found = judge(then, other)
    assert (found.level, found.why) == ("different", f"1 line differs, from {found.shown[0][2:].partition(':')[0]}")
    assert [line.split(": ")[1].removeprefix(" [?25h") for line in found.shown] == ["done", "failed"]


def test_a_text_without_bars_is_compared_by_its_lines() -> None:
    assert progress.changes("a\rb", "a\rc") is None
    assert progress.changes("a\n" + bar(10, "00:01<00:00, 9it/s"), "b\n" + bar(10, "00:01<00:00, 9it/s")) == [
        Change(place="", at="line 1", then="a", now="b")
    ]
