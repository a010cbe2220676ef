"""Parts of an execution: bytecode of the image, programs of ours in the image, container engines, streams, and advice."""
