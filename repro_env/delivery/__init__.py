"""From a spec to an image: where the bytes come from, the layers, and the destinations that take them.

Layers are rebuilt from wheels and packages and are proven by their digests. What an environment contains is decided in `environment`.
"""
