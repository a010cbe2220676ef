"""The only doors to the world: files, processes, HTTP to indexes and registries, and container engines.

Each door has limits and turns failures into our errors. Nothing here decides what is done with the result.
"""
