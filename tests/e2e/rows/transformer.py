"""A small transformer with dropout, in bfloat16 autocast on the CPU; seeds nothing."""

import torch
from torch import nn

tokens = torch.randint(0, 50, (32, 12))
embed, out = nn.Embedding(50, 32), nn.Linear(32, 50)
body = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True), 2, enable_nested_tensor=False)
model = nn.Sequential(embed, body, out)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(6):
    batch = tokens[torch.randperm(32)[:8]]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "transformer.pt")
print("loss", loss.item())
