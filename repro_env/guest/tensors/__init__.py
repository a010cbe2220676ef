"""Read files of tensors and other values, and report the differences between two of them.

Our own readers support .safetensors, files of torch.save (its zip format and the older one), .npy, .npz, other zips, pickles
and files of joblib. SQLite databases are read with the environment's `sqlite3`. The classes and functions in a pickle are never
imported: each object becomes an inert stand-in that keeps its arguments and state. NumPy is used if the environment has it, only
for speed.

Runs in the interpreter of the user's environment: standard library only, Python 3.8 and later.
"""
