"""Two ranks with gloo, each with data of its own; seeds nothing. Run by torchrun."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4)))
data = TensorDataset(torch.linspace(0, 9, 64 * 16).sin().reshape(64, 16), torch.arange(64) % 4)
sampler = DistributedSampler(data, shuffle=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for images, labels in DataLoader(data, 8, sampler=sampler):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images + 0.1 * torch.randn_like(images)), labels).backward()
        optimizer.step()
torch.save({"model": model.module.state_dict(), "drawn": torch.rand(2)}, f"rank{rank}.pt")
dist.destroy_process_group()
