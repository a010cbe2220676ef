"""Reads files of tensors and other values and says what differs between two of them.

Read are .safetensors, what torch.save wrote (its zip format and the older one), .npy, .npz, other zips, pickles
and what joblib makes of them, by readers of our own; SQLite databases by the environment's. Classes that
a pickle names are never imported: each becomes an inert stand-in that keeps what it was made of. NumPy is used
where the environment has it, for speed alone.

Runs in other people's interpreters: the standard library only, Python 3.8.
"""
