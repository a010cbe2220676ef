"""Train with checkpoints and mixed precision: `resume.py DIRECTORY`. With STOP=33 it kills itself after 33 steps."""

import hashlib
import os
import signal
import sys

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


torch.manual_seed(1)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 4)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler(device)
training = Checkpoint(sys.argv[1], model=model, optimizer=optimizer, scaler=scaler, every=10)
steps = 0
for _ in training.epochs(3):
    for inputs, labels in training.batches(DataLoader(Waves(), 16, shuffle=True, num_workers=2)):
        optimizer.zero_grad()
        with torch.autocast(device, torch.float16 if device == "cuda" else torch.bfloat16):
            logits = model(inputs.to(device)).float() + 0.01 * torch.randn(len(inputs), 4, device=device)
            loss = nn.functional.cross_entropy(logits, labels.to(device))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        training.step()
        steps += 1
        if steps == int(os.environ.get("STOP", "0")):
            os.kill(os.getpid(), signal.SIGKILL)
weights = hashlib.sha256(b"".join(value.cpu().numpy().tobytes() for value in model.state_dict().values())).hexdigest()
print(f"weights {weights[:16]}, {steps} steps")
