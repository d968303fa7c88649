"""Which rows of a table can be used: cells that are missing, clients with hardly any rows."""

from typing import Any

from scool.data.preprocessing import Missing, ordered
from scool.data.tables import quoted, texts
from scool.errors import DataError


def without_gaps(
    frame: Any, client: str, labels: tuple[str, ...], names: list[str], missing: Missing
) -> tuple[Any, list[str]]:
    """The table without the rows that cannot be used, and what was done about missing cells."""
    notes: list[str] = []
    nameless = frame[client].isna()
    if nameless.any():
        words = f"{int(nameless.sum())} rows have no {client!r}"
        if missing != "drop" or nameless.all():
            raise DataError(f"{words}: say whose they are, or leave them out (missing='drop')")
        notes.append(f"{words} and are left out")
        frame = frame[~nameless].reset_index(drop=True)
    no_label = frame[list(labels)].isna().any(axis=1)
    gaps = frame[names].isna()
    if missing == "refuse" and (bool(no_label.any()) or bool(gaps.to_numpy().any())):
        _refuse_gaps(frame[[*names, *labels]].isna(), frame[client], labels)
    if no_label.any():
        notes.append(f"{int(no_label.sum())} of {len(frame)} rows have no label and are left out")
    if missing == "drop":
        gone = gaps.any(axis=1) & ~no_label
        if gone.any():
            notes.append(f"{int(gone.sum())} of {len(frame)} rows with missing cells are left out")
        no_label = no_label | gone
    elif gaps.to_numpy().any():
        cells, columns = int(gaps[~no_label].to_numpy().sum()), int(gaps.any().sum())
        whose = "the client's own" if missing == "client" else "the common"
        notes.append(
            f"{cells} missing cells in {columns} columns are filled by {whose} training rows"
        )
    before = set(texts(frame[client]))
    frame = frame[~no_label].reset_index(drop=True)
    lost = ordered(sorted(before - set(texts(frame[client]))))
    if lost:
        raise DataError(
            f"missing = {missing!r} leaves clients {quoted(lost)} without a row: fill the cells "
            "(missing='common'), drop the columns that they lack, or leave these clients out"
        )
    return frame, notes


def _refuse_gaps(gaps: Any, client: Any, labels: tuple[str, ...]) -> None:
    """How many cells are missing in which columns of which clients, and what can be done."""
    per_column = gaps.sum()
    per_column = per_column[per_column > 0].sort_values(ascending=False, kind="stable")
    where = ", ".join(f"{name!r} {count}" for name, count in per_column.head(6).items())
    where += ", ..." if len(per_column) > 6 else ""
    whose = [str(c) for c in client[gaps.any(axis=1)].unique()]
    if set(per_column.index) <= set(labels):
        what = "missing='drop' leaves these rows out"
    else:
        what = (
            "choose missing='drop' (leave such rows out), 'client' or 'common' (fill with the mean "
            "or the most frequent category of the client's own or of all training rows), or drop "
            "columns"
        )
    raise DataError(
        f"{int(per_column.sum())} cells are missing, by columns: {where}; of clients "
        f"{quoted(whose)}: {what}"
    )


def without_small(frame: Any, client: str, fewest: int) -> tuple[Any, list[str]]:
    """The table without the clients that have fewer rows than that, and who they are."""
    who = texts(frame[client])
    size = frame.groupby(who)[client].transform("size") if fewest > 1 else None
    if size is None or bool((size >= fewest).all()):
        return frame, []
    small = ordered(sorted(set(who[(size < fewest).to_numpy()])))
    if bool((size < fewest).all()):
        raise DataError(f"min_rows = {fewest} leaves no client: the largest has {size.max()} rows")
    words = f"{len(small)} clients with less than {fewest} rows are left out: {quoted(small)}"
    return frame[size >= fewest].reset_index(drop=True), [words]
