"""Clinics from a CSV: personal models, who learned from whom, AUC per hospital, predictors."""

import tempfile
from pathlib import Path

import pandas as pd

import scool

table = Path(scool.__file__).parent / "data" / "heart_disease.csv"  # any CSV with a client column
federation = scool.from_frame(table, client="hospital", label="disease", missing="common")
print(federation.describe())

sgd = scool.LocalSGD(lr=0.05, batch_size=8)
method = scool.SCooL(prior=scool.SBM(), sgd=sgd, fraction=0.5)
alone = scool.fit(federation, "mlp", scool.LocalOnly(sgd=sgd), rounds=15)
together = scool.fit(federation, "mlp", method, rounds=15)
scores = {"alone": alone.evaluate("auc"), "together": together.evaluate("auc")}
print(pd.DataFrame(scores, index=list(federation.client_names or ())).round(3))
print(together.graph.to_pandas().round(2) if together.graph is not None else "")

with tempfile.TemporaryDirectory() as folder:  # what a hospital takes home
    together.export(folder)
    model = scool.load_model(folder, "Cleveland")
    patients = pd.read_csv(table).query("hospital == 'Cleveland'").head(3)
    print(patients[["age", "sex", "disease"]].assign(model_says=model.predict(patients)))
