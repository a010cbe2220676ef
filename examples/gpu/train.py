"""Train a convolutional network on synthetic images, on the GPU if there is one.

An ordinary script that seeds nothing. On a GPU, several of its operations add in an order that changes from run to run, unless torch is
set to use deterministic ones. `--without-deterministic` adds an operation without a deterministic version in torch.
"""

import argparse
import hashlib
import itertools
import time

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

BATCH, CLASSES = 128, 10


class Waves(Dataset):
    """Waves of ten lengths, with noise that is drawn anew at each look."""

    def __len__(self):
        return BATCH * 400

    def __getitem__(self, index):
        wave = torch.linspace(0, 1 + index % CLASSES, 3 * 32 * 32).sin().reshape(3, 32, 32)
        return wave + 0.3 * torch.randn(3, 32, 32), index % CLASSES


class Network(nn.Module):
    def __init__(self, width, pools):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width)
        self.second, self.third = nn.Conv2d(width, width, 3, padding=1), nn.Conv2d(width, 2 * width, 3, padding=1)
        self.table, self.last = nn.Parameter(torch.randn(16, 2 * width)), nn.Linear(2 * width, CLASSES)
        self.pools = pools

    def forward(self, images):
        x = functional.max_pool2d(functional.relu(self.norm(self.first(images))), 2)
        x = functional.dropout(functional.relu(self.second(x)), 0.2, self.training)
        x = functional.relu(self.third(x))
        if self.pools:
            x = functional.adaptive_avg_pool2d(x, 5)
        x = x.mean((2, 3))
        rows = torch.arange(len(x), device=x.device)
        x = x + self.table[rows % 16]  # its gradient adds at the same places: index_put with accumulate
        sums = torch.zeros(4, x.shape[1], device=x.device, dtype=x.dtype).index_add(0, rows % 4, x)
        return self.last(x) + 1e-3 * sums.mean()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--amp", action="store_true", help="automatic mixed precision with bfloat16")
    parser.add_argument(
        "--without-deterministic", action="store_true", help="use an operation without a deterministic version in torch"
    )
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    network = Network(options.width, options.without_deterministic).to(device)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    torch.backends.cuda.matmul.allow_tf32 = True
    epochs = (DataLoader(Waves(), BATCH, shuffle=True, num_workers=2) for _ in itertools.count())
    start = time.monotonic()
    for images, kinds in itertools.islice(itertools.chain.from_iterable(epochs), options.steps):
        images, kinds = images.to(device), kinds.to(device)
        with torch.autocast(device, torch.bfloat16, enabled=options.amp):
            loss = functional.cross_entropy(network(images).float(), kinds)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    seconds = time.monotonic() - start
    torch.save(network.state_dict(), "weights.pt")
    weights = hashlib.sha256(b"".join(value.cpu().numpy().tobytes() for value in network.state_dict().values())).hexdigest()
    print(f"weights {weights[:16]}, loss {loss.item():.9f}, {options.steps} steps in {seconds:.2f} s")


if __name__ == "__main__":
    main()
