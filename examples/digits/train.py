"""Recognise handwritten digits: a small network and a forest, trained on the data set that scikit-learn ships.

An ordinary script: nothing in it knows of repro-env, and it seeds nothing.
"""

import argparse
import csv
import json
import random
from pathlib import Path

import joblib
import numpy as np
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.metrics import accuracy_score, confusion_matrix
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler


def augment(images, labels, copies, rng):
    """Shifted and noisy copies of the images: the generator comes unseeded, as in most scripts."""
    pictures, answers = [images], [labels]
    for _ in range(copies):
        down, right = rng.integers(-1, 2, size=2)
        moved = np.roll(images.reshape(-1, 8, 8), (down, right), axis=(1, 2)).reshape(images.shape)
        pictures.append(np.clip(moved + rng.normal(0.0, 1.0, size=images.shape), 0, 16))
        answers.append(labels)
    return np.concatenate(pictures), np.concatenate(answers)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=200, help="at most; training stops when the loss does")
    parser.add_argument("--copies", type=int, default=2, help="augmented copies of the training images")
    parser.add_argument("--out", type=Path, default=Path("outputs"))
    options = parser.parse_args()

    images, labels = load_digits(return_X_y=True)
    train_x, test_x, train_y, test_y = train_test_split(images, labels, test_size=0.25, stratify=labels)
    train_x, train_y = augment(train_x, train_y, options.copies, np.random.default_rng())

    width = random.choice([48, 64, 80])
    network = MLPClassifier((width,), max_iter=options.epochs, tol=0.01, n_iter_no_change=2)
    models = {
        "network": make_pipeline(StandardScaler(), network),
        "forest": RandomForestClassifier(n_estimators=60, n_jobs=2),
    }
    options.out.mkdir(parents=True, exist_ok=True)
    metrics = {"width": width, "train": len(train_x), "test": len(test_x)}
    columns = {"truth": test_y}
    for name, model in models.items():
        model.fit(train_x, train_y)
        columns[name] = model.predict(test_x)
        metrics[name] = {
            "accuracy": accuracy_score(test_y, columns[name]),
            "confusion": confusion_matrix(test_y, columns[name]).tolist(),
        }
        joblib.dump(model, options.out / f"{name}.joblib", compress=3)
        print(f"{name}: {metrics[name]['accuracy']:.4f} of the test images are read rightly")

    (options.out / "metrics.json").write_text(json.dumps(metrics, indent=2) + "\n")
    with (options.out / "predictions.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))


if __name__ == "__main__":
    main()
