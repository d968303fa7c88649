"""Look at what was learned: a page, a figure with its numbers, and one client's model.

The same from a shell: `scool report RUN`, `scool plot graph RUN --out graph.pdf`.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import scool
from scool.display.figure import write_plot
from scool.display.page.render import write_report

federation = scool.digits(num_clients=8, groups=2, seed=0)
sgd = scool.LocalSGD(lr=0.2, batch_size=8)
methods = {
    "local": scool.LocalOnly(sgd=sgd),
    "scool-sbm": scool.SCooL(prior=scool.SBM(num_blocks=2), sgd=sgd, fraction=0.375),
}

with TemporaryDirectory() as place:
    runs = [Path(place) / name for name in methods]
    for run, (name, algorithm) in zip(runs, methods.items(), strict=True):
        result = scool.fit(federation, "mlp", algorithm, rounds=10, out=run, method=name)
        print(f"{name}: {float(result.accuracy.mean()):.1f} % on average")

    page = write_report(runs, Path(place))
    print(f"{page.name}: {page.stat().st_size / 1e6:.1f} MB, opens offline in a browser")
    for file in write_plot("graph", runs, Path(place) / "graph.pdf"):
        print(f"{file.name}: {file.stat().st_size / 1e3:.0f} kB")

    model = scool.load_model(runs[1], client=3)
    test = federation.test
    right = model.predict(test.x[test.index[3]]) == test.y[3]
    print(f"client 3, loaded from its run: {100 * float(right.float().mean()):.1f} %")
