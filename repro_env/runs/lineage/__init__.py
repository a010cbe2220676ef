"""Which run made a file, from what, and what was made from it."""
