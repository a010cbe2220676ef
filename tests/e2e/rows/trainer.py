"""A Hugging Face Trainer on a model made from nothing; what it seeds it seeds itself."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

model = GPT2LMHeadModel(GPT2Config(vocab_size=60, n_positions=16, n_embd=32, n_layer=2, n_head=2))
tokens = torch.randint(0, 60, (48, 12))
data = [{"input_ids": row, "labels": row} for row in tokens]
arguments = TrainingArguments(
    "out",
    num_train_epochs=1,
    per_device_train_batch_size=8,
    report_to=[],
    logging_steps=2,
    save_steps=4,
    use_cpu=True,
    disable_tqdm=True,
)
Trainer(model=model, args=arguments, train_dataset=data).train()
torch.save(model.state_dict(), "weights.pt")
