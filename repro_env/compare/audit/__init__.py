"""Records of runs against what is there now: outputs, code, data, specs, images, checkpoints and parents."""
