"""Compare pairs of files of tensors: `python compare.py PAIRS OUT`.

PAIRS is a JSON file: a list of [left, right], the paths of two files. The answers are written to OUT as a JSON list with an
object for each pair: see `compare` in `tensors/pairs.py`.

Runs in the interpreter of the user's environment: standard library only, Python 3.8 and later.
"""

import importlib
import os
import sys


def main() -> None:
    directory = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [directory, *(path for path in sys.path if path != directory)]
    pairs = importlib.import_module("tensors.pairs")
    del sys.path[0]  # so that later imports come from the environment
    pairs.main(sys.argv[1], sys.argv[2])


if __name__ == "__main__":
    main()
