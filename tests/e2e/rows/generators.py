"""NumPy with generators that nobody seeds, and sets whose order follows hashes."""

import random

import numpy as np

draws = [np.random.default_rng().random(4) for _ in range(3)] + [
    np.random.rand(4),
    np.random.SeedSequence().generate_state(4) / 2**32,
]
order = list({f"label {number}" for number in range(40)})
random.shuffle(order)


class Thing:
    def __init__(self, number):
        self.number = number


things = {Thing(number) for number in range(200)}  # hashed by address
np.save("draws.npy", np.stack(draws))
with open("order.txt", "w") as file:
    print(*order, *(thing.number for thing in things), file=file)
