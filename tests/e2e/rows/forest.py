"""scikit-learn with two jobs, in threads and in processes; seeds nothing. What runs in processes gets its seed with its task."""

import joblib
import numpy as np
from sklearn.ensemble import RandomForestClassifier
from sklearn.inspection import permutation_importance
from sklearn.model_selection import train_test_split

images = np.sin(np.arange(300 * 16)).reshape(300, 16)
labels = (images.sum(1) > 0).astype(int)
train, test, wanted, known = train_test_split(images, labels)
forest = RandomForestClassifier(20, n_jobs=2).fit(train, wanted)
joblib.dump(forest, "forest.joblib")
np.save("importance.npy", permutation_importance(forest, test, known, n_jobs=2, n_repeats=3).importances)
