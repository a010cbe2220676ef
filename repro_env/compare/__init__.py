"""What differs, and how much it can matter: environments, images, outputs of runs, traces, records against the present, and this
machine against the captured one.

Nothing here changes what it compares. Use cases in `api` bring the two sides; the verdict of `verify` is made in `outputs`.
"""
