"""The files of specs: the directory of a spec with its bundled blobs, specs that runs keep, and the search for a spec."""
