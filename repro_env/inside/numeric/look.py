"""What is imported and asked, in order."""

from __future__ import annotations

import functools
import os
import sys
import warnings

from .devices import devices
from .libraries import libraries
from .packages import load, there
from .pytorch import torch_facts
from .report import Report


def main(path: str) -> None:
    with open(path, "w") as file:
        report = Report(file)
        report.say(started=True)
        sys.stdout.flush()
        sys.stderr.flush()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        warnings.simplefilter("ignore")
        numpy = load(report, "numpy")
        if numpy is not None:
            report.step("a multiplication by numpy", lambda: numpy.ones((64, 64)).dot(numpy.ones((64, 64))) is None)
        torch = load(report, "torch")
        if torch is not None:
            report.step("facts of torch", functools.partial(torch_facts, report, torch))
        elif not there("torch"):
            for name in ("scipy.linalg", "jax", "tensorflow"):
                load(report, name)
        report.step("libraries", functools.partial(libraries, report))
        if torch is not None:
            report.step("GPUs of torch", functools.partial(devices, report, torch))
        report.say(doing="")
        file.flush()
        # What was imported may hang when Python ends; all is said.
        os._exit(0)
