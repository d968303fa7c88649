"""The page as a file: whole, offline, and with nothing from data as markup."""

import re
from pathlib import Path

import numpy as np
import pytest

import scool
from scool.cli.main import dispatch
from scool.display.page.render import write_report
from scool.errors import ConfigError


def test_the_page_is_one_file_that_loads_nothing(made: Path, tmp_path: Path) -> None:
    path = write_report([made], tmp_path / "out")
    assert path == tmp_path / "out" / "report.html" and list(path.parent.iterdir()) == [path]
    text = path.read_text()
    assert not re.search(r"<(script|img|iframe)[^>]*\ssrc=|<link[^>]*href=\"(?!data:)", text)
    assert "@import" not in text and "fetch(" not in text
    assert path.stat().st_size < 3_000_000
    assert write_report([made], tmp_path / "again").read_bytes() == path.read_bytes()


def test_the_command_names_the_page(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    runs = [str(made / "local-0"), str(made / "scool-sbm-0")]
    assert dispatch(["report", *runs]) == 0
    assert capsys.readouterr().out.strip() == "report.html" and Path("report.html").is_file()
    shown: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda uri: shown.append(uri) or True)
    assert dispatch(["report", *runs, "--out", "page", "--open"]) == 0
    assert shown == [(tmp_path / "page" / "report.html").as_uri()]
    assert dispatch(["report", *runs, "--out", "page/other.html"]) == 0
    assert Path("page/other.html").read_bytes() == Path("page/report.html").read_bytes()
    with pytest.raises(ConfigError, match="needs a run"):
        dispatch(["report"])


def test_names_from_data_are_no_markup(tmp_path: Path) -> None:
    nasty = "<script>alert(1)</script>"
    rng = np.random.default_rng(0)
    clients = [(rng.normal(size=(8, 3)).astype("float32"), np.arange(8) % 2) for _ in range(2)]
    federation = scool.from_arrays(
        clients, test_fraction=0.25, name=nasty, client_names=[nasty, "b"], class_names=[nasty, "c"]
    )
    scool.fit(federation, "linear", scool.LocalOnly(), rounds=1, out=tmp_path / "r", method=nasty)
    text = write_report([tmp_path / "r"], tmp_path, title=nasty).read_text()
    assert nasty not in text and "&lt;script&gt;alert" in text
