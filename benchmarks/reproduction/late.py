"""How much the last round of a run is a matter of luck, a line a run.

    python benchmarks/reproduction/late.py RUN ...

Masked and unmasked accuracy of the last evaluation, the mean of the last five, the best one and its
round, and the mean and the largest change from one evaluation to the next in the second half of the
run; the training loss in the end.
"""

import sys
from itertools import pairwise
from pathlib import Path

from scool.display.records import read_run


def show(path: Path) -> None:
    record = read_run(path)
    line = str(path)
    for words, name in (("masked", "accuracy_mean"), ("unmasked", "unmasked_accuracy_mean")):
        found = {row["round"]: row[name] for row in record.evaluated if row.get(name) is not None}
        if not found:
            continue
        values, best = list(found.values()), max(found, key=lambda t: found[t])
        late = values[-5:]
        swings = [abs(b - a) for a, b in pairwise(values[len(values) // 2 :])]
        line += f"  {words}: last {values[-1]:.2f}, last {len(late)} {sum(late) / len(late):.2f}"
        line += f", best {found[best]:.2f} in round {best + 1}"
        if swings:
            line += f", swings {sum(swings) / len(swings):.2f} (up to {max(swings):.2f})"
    print(f"{line}  loss {record.rows[-1]['train_loss']:.3f}")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        show(Path(name))
