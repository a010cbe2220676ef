"""Compares files of tensors, pair by pair: `python compare.py WANTED OUT`.

WANTED is a JSON file: a list of [left, right], the paths of two files. OUT gets a JSON file, a list with one object a pair: see
`compare` in `tensors/pairs.py`.

Runs in other people's interpreters: the standard library only, Python 3.8.
"""

import importlib
import os
import sys


def main() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [here, *(path for path in sys.path if path != here)]
    pairs = importlib.import_module("tensors.pairs")
    del sys.path[0]  # what is imported from here on is the environment's own
    pairs.main(sys.argv[1], sys.argv[2])


if __name__ == "__main__":
    main()
