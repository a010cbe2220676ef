"""Lightning under Hydra, everything in its default directories; seeds nothing."""

import hydra
import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(lightning.LightningModule):
    def __init__(self, width, rate):
        super().__init__()
        self.save_hyperparameters()
        self.layers = nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(width, 4))

    def training_step(self, batch, _):
        images, labels = batch
        loss = nn.functional.cross_entropy(self.layers(images), labels)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.rate)


@hydra.main(version_base=None, config_path=None, config_name=None)
def main(config):
    data = TensorDataset(torch.randn(64, 16), torch.randint(0, 4, (64,)))
    trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", enable_progress_bar=False, log_every_n_steps=1)
    trainer.fit(Net(int(config.get("width", 16)), float(config.get("rate", 1e-2))), DataLoader(data, 16, shuffle=True))


if __name__ == "__main__":
    main()
