"""Print the line of a planted case whose file is binary: `python encode.py NAME FILE THEN NOW`, where THEN and NOW are local files."""

import base64
import json
import pathlib
import sys
import zlib

name, file, then, now = sys.argv[1:]
then64, now64 = (base64.b64encode(zlib.compress(pathlib.Path(side).read_bytes(), 9)).decode() for side in (then, now))
print(json.dumps({"name": name, "file": file, "then64": then64, "now64": now64}))
