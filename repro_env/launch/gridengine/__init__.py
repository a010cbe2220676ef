"""Grid Engine: a job script for `qsub`, states from `qstat` and `qacct`.

`settings` are what `--job` can set, `engine` has the directives, `start.sh` starts the processes of a run on the node, `client` asks
Grid Engine's commands, and `states` parses their answers.
"""

from __future__ import annotations

from repro_env.launch.gridengine.engine import GridEngineEngine

ENGINE = GridEngineEngine()
