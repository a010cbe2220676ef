"""A job of the engines that start it with a script on a node, and what is the same in their scripts."""

from __future__ import annotations

from repro_env.launch.engine import NodeJob

RUN = "0197c1d2-0000-7000-8000-00000000abcd"
JOB = NodeJob(
    runs=((RUN, 7),),
    name="train-0000abcd",
    command=("/opt/tool/bin/repro-env", "exec"),
    words=("train.py", "--lr", "0.1"),
    directory="/home/ann/digits",
    jobs="/home/ann/digits/runs/.jobs",
    store="/home/ann/.cache/repro-env",
    needed=("/opt/tool/bin/repro-env", "/home/ann/.cache/repro-env"),
)
ON_THE_NODE = """\
missing() {
    echo "repro-env: error: $1 is not on the node $(hostname)" >&2
    echo "  -> the project, the store (REPRO_ENV_STORE) and repro-env must be on a file system that the nodes share" >&2
    exit 16
}
for path in /opt/tool/bin/repro-env /home/ann/.cache/repro-env; do
    [ -e "$path" ] || missing "$path"
done
cd /home/ann/digits || missing /home/ann/digits
export REPRO_ENV_STORE=/home/ann/.cache/repro-env
"""
