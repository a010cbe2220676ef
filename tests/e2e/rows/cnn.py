"""A CNN with augmentation in loader workers; seeds nothing. Arguments: `workers:start-method` each."""

import os
import random
import sys

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Digits(Dataset):
    def __init__(self):
        self.images = torch.linspace(0, 1, 48 * 64).sin().reshape(48, 1, 8, 8)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = self.images[index] + 0.1 * torch.rand(1, 8, 8)  # torch's own generator
        if random.random() < 0.5:
            image = image.flip(-1)
        noise = np.random.default_rng().normal(size=(1, 8, 8))  # no seed, as in most code
        return image + 0.01 * torch.from_numpy(noise).float() + 0.01 * float(np.random.rand()), index % 10


def train(workers, method):
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(), nn.Linear(8 * 36, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    context = method if workers else None
    for images, labels in DataLoader(Digits(), 8, shuffle=True, num_workers=workers, multiprocessing_context=context):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    os.makedirs(f"{workers}-{method}")
    torch.save(model.state_dict(), f"{workers}-{method}/weights.pt")


if __name__ == "__main__":
    for word in sys.argv[1:]:
        count, _, how = word.partition(":")
        train(int(count), how)
