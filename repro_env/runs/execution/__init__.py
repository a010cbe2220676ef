"""Run and record a command, alone or as one of several processes: runner, bytecode of the image, streams, and advice."""
