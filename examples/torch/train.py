"""Train a small convolutional network on drawn shapes, on the CPU: loader workers, dropout, a scheduler, a checkpoint.

An ordinary script: nothing in it knows of repro-env, and it seeds nothing. The data set is drawn here, so that
the script needs torch and nothing else.
"""

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIZE = 16


class Shapes(Dataset):
    """Bars, boxes and crosses at random places, with noise that is drawn anew at each look."""

    def __init__(self, count):
        self.kinds = torch.randint(0, 3, (count,))
        self.places = torch.randint(3, SIZE - 3, (count, 2))

    def __len__(self):
        return len(self.kinds)

    def __getitem__(self, index):
        kind, (row, column) = int(self.kinds[index]), self.places[index].tolist()
        image = torch.zeros(1, SIZE, SIZE)
        if kind == 0:
            image[0, row, column - 3 : column + 3] = 1.0
        elif kind == 1:
            image[0, row - 2 : row + 3, column - 2 : column + 3] = 1.0
        else:
            image[0, row, column - 3 : column + 4] = 1.0
            image[0, row - 3 : row + 4, column] = 1.0
        return image + 0.3 * torch.randn_like(image), kind


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Dropout(0.25),
            nn.Linear(16 * (SIZE // 4) ** 2, 3),
        )

    def forward(self, images):
        return self.layers(images)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("outputs"))
    options = parser.parse_args()

    loader = DataLoader(Shapes(options.images), batch_size=64, shuffle=True, num_workers=options.workers)
    network = Network()
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=options.epochs)
    loss_of = nn.CrossEntropyLoss()
    for epoch in range(options.epochs):
        network.train()
        total, right = 0.0, 0
        for images, kinds in loader:
            optimizer.zero_grad()
            scores = network(images)
            loss = loss_of(scores, kinds)
            loss.backward()
            optimizer.step()
            total += loss.item() * len(kinds)
            right += int((scores.argmax(1) == kinds).sum())
        scheduler.step()
        print(f"epoch {epoch}: loss {total / options.images:.6f}, right {right / options.images:.3f}")

    options.out.mkdir(parents=True, exist_ok=True)
    torch.save(network.state_dict(), options.out / "weights.pt")
    torch.save(
        {
            "epoch": options.epochs,
            "network": network.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
            "generator": torch.get_rng_state(),
        },
        options.out / "checkpoint.pt",
    )


if __name__ == "__main__":
    main()
