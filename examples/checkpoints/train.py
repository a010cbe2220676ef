"""The loop of plain.py, with checkpoints."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from repro_env.checkpoint import Checkpoint


class Waves(Dataset):
    def __init__(self):
        self.waves = torch.linspace(0, 60, 320 * 16).sin().reshape(320, 16)

    def __len__(self):
        return len(self.waves)

    def __getitem__(self, index):
        return self.waves[index] + 0.1 * torch.randn(16), index % 4


def main():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 60)
    loader = DataLoader(Waves(), batch_size=16, shuffle=True, num_workers=2)
    training = Checkpoint("checkpoints", model=model, optimizer=optimizer, scheduler=scheduler, every=10)
    for epoch in training.epochs(3):
        for inputs, labels in training.batches(loader):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
            scheduler.step()
            training.step()
        print(f"epoch {epoch}: learning rate {scheduler.get_last_lr()[0]:.4f}")
    torch.save(model.state_dict(), "weights.pt")


if __name__ == "__main__":
    main()
