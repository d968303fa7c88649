"""The page as a person uses it, in headless Chromium. Skipped where there is no browser."""

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import scool
from scool.display.page.render import write_report
from scool.display.records import read_run
from scool.display.series import final_scores
from scool.evaluation.paired import paired_difference
from scool.recording.clients import NAME, clients_file
from scool.recording.seals import DamageWarning
from scool.recording.writer import RunWriter

REMEDY = "install Chromium (apt-get install chromium) or name one in SCOOL_CHROMIUM"
NASTY = "<script>window.harmed = true</script>"


def chromium() -> str | None:
    """A Chromium or Chrome of this machine."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    found = (shutil.which(name) for name in names)
    return os.environ.get("SCOOL_CHROMIUM") or next((path for path in found if path), None)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = chromium()
    if path is None:
        pytest.skip(f"no browser: {REMEDY}")
    with sync_api.sync_playwright() as driver:
        try:
            opened = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        except sync_api.Error as error:
            pytest.skip(f"{path} does not start ({str(error).splitlines()[0]}): {REMEDY}")
        yield opened
        opened.close()


class Tab:
    """A tab with a report in it, and every complaint of the page."""

    def __init__(self, browser: Any, path: Path, **options: Any) -> None:
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page = browser.new_context(**options).new_page()
        self.page.on("console", self._heard)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        began = time.perf_counter()
        self.page.goto(path.resolve().as_uri())
        self.page.wait_for_selector("html[data-ready=yes]", timeout=30_000)
        self.seconds = time.perf_counter() - began

    def _heard(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def heat(self) -> list[list[float]]:
        """The numbers that the heat map shows."""
        return self.page.evaluate(
            "Array.from(document.getElementById('c-graph').data[0].z, r => Array.from(r))"
        )

    def shown(self, chart: str) -> str:
        """What a chart says it shows."""
        return self.page.get_attribute(f"#{chart}", "aria-label") or ""


@pytest.fixture(scope="module")
def report(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report([made], tmp_path_factory.mktemp("page"))


@pytest.fixture
def tab(browser: Any, report: Path) -> Iterator[Tab]:
    tab = Tab(browser, report)
    yield tab
    tab.page.context.close()
    assert tab.complaints == []
    assert [url for url in tab.requests if not url.startswith(("file:", "data:", "blob:"))] == []


def test_the_page_opens_from_a_file_and_draws_everything(tab: Tab) -> None:
    assert tab.page.title() == "scool: comparison"
    charts = tab.page.eval_on_selector_all(".chart", "all => all.map(c => c.id)")
    drawn = tab.page.eval_on_selector_all(".chart:not(.empty) .main-svg", "all => all.length")
    assert len(charts) == 15 and drawn >= 15
    for chart in charts:
        assert tab.shown(chart), f"{chart} has no alternative text"
    axes = tab.page.evaluate(
        """[...document.querySelectorAll('.chart')].filter(c => c.data && c.layout.xaxis.visible
        !== false).filter(c => !c.layout.xaxis.title.text || !c.layout.yaxis.title.text)
        .map(c => c.id)"""
    )
    assert axes == [], "no chart without labelled axes"


def test_tool_bars_cover_no_title_and_send_nothing_away(tab: Tab) -> None:
    """Plotly 6.3 and later offer to upload a chart, unless they are told not to."""
    bottoms = """[...document.querySelectorAll('.chart:not(.empty)')].map(c => [c.id,
        c.querySelector('.modebar').getBoundingClientRect().bottom,
        c.querySelector('.gtitle').getBoundingClientRect().top])"""
    for chart, bar, title in tab.page.evaluate(bottoms):
        assert bar <= title, chart
    words = tab.page.eval_on_selector_all(".modebar-btn", "all => all.map(b => b.dataset.title)")
    assert "Zoom" in words and not [word for word in words if "hare" in word or "loud" in word]


def test_gains_are_told_with_both_spreads(tab: Tab, made: Path) -> None:
    rows = [line.split("\t") for line in tab.page.inner_text("#against tbody").splitlines()]
    runs = {path.name: read_run(path) for path in sorted(made.glob("*-[01]"))}
    assert [row[0].strip() for row in rows] == ["scool-sbm", "scool-attention"]
    for name, mean, seeds, clients, worse, who in rows:
        ours, alone = (
            [final_scores(runs[f"{method}-{seed}"]) for seed in (0, 1)]
            for method in (name.strip(), "local")
        )
        gain = paired_difference(ours, alone, same_clients=False, seeds=[0, 1])  # type: ignore
        assert mean == f"{gain.mean:+.2f}"
        for text, ends in ((seeds, gain.over_seeds), (clients, gain.over_clients)):
            assert ends is not None and text == f"{ends.low:+.2f} to {ends.high:+.2f}"
        assert worse == f"{len(gain.worse)} of {gain.compared}"
        assert who.startswith(", ".join(gain.names_worse[:5]) or "nobody")


def test_the_slider_changes_the_heat_map(tab: Tab) -> None:
    last = tab.heat()
    tab.page.focus("#round")
    tab.page.keyboard.press("Home")
    tab.page.wait_for_function("document.getElementById('round-text').textContent === '1 of 4'")
    assert tab.heat() != last and len(last) == 6
    assert "round 1" in tab.shown("c-graph")
    tab.page.keyboard.press("End")
    tab.page.wait_for_function("document.getElementById('round-text').textContent === '4 of 4'")
    assert tab.heat() == last


def test_play_walks_through_the_rounds(tab: Tab) -> None:
    tab.page.click("#play")
    tab.page.wait_for_function("document.getElementById('round-text').textContent === '2 of 4'")
    tab.page.wait_for_function("document.getElementById('play').ariaPressed === 'false'")
    assert tab.page.inner_text("#round-text") == "4 of 4"


def test_order_and_network(tab: Tab) -> None:
    numbered = "document.getElementById('c-graph').data[0].y"
    tab.page.select_option("#order", "number")
    assert list(map(str, tab.page.evaluate(numbered))) == list("012345")
    tab.page.select_option("#order", "true")
    order = [int(name) for name in tab.page.evaluate(numbered)]
    groups = tab.page.evaluate("page.federations[page.runs[shown.run].federation].groups")
    assert [groups[i] for i in order] == sorted(groups)
    tab.page.select_option("#view", "net")
    assert tab.shown("c-graph").startswith("Network drawing")
    assert tab.page.evaluate("document.getElementById('c-truth').data.at(-1).x.length") == 6


def test_choosing_a_client_shows_its_neighbours(tab: Tab, made: Path) -> None:
    tab.page.select_option("#who", "3")
    assert tab.page.inner_text("#client-text").startswith("Client 3")
    tab.page.wait_for_function(
        "document.getElementById('c-neighbours').ariaLabel.startsWith('Client 3 learns from')"
    )
    bars = tab.page.evaluate("Array.from(document.getElementById('c-neighbours').data[0].x)")
    whom = tab.page.evaluate(
        "Array.from(document.getElementById('c-neighbours').data[0].customdata)"
    )
    found = read_run(made / "scool-sbm-0").last_graph()
    assert found is not None
    row = found[1][3].numpy()
    assert set(whom) == set(np.flatnonzero(row).tolist())
    np.testing.assert_allclose(bars, row[whom], atol=float(row.max()) / 200)
    tab.page.click("#after")
    assert tab.page.inner_text("#client-text").startswith("Client 4")


def test_a_click_in_the_heat_map_chooses_the_client(tab: Tab) -> None:
    tab.page.select_option("#order", "number")
    tab.page.locator("#c-graph").scroll_into_view_if_needed()
    box = tab.page.locator("#c-graph .nsewdrag").first.bounding_box()
    assert box is not None
    tab.page.mouse.click(box["x"] + box["width"] * 0.4, box["y"] + box["height"] * 5.5 / 6)
    tab.page.wait_for_function("document.getElementById('who').value === '5'")


def test_the_table_sorts(tab: Tab) -> None:
    def column(number: int) -> list[str]:
        return tab.page.locator(f"#table tbody tr > :nth-child({number})").all_inner_texts()

    head = tab.page.locator("#table thead th").nth(1)
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    falling = [float(text.split(" ")[0]) for text in column(2)]
    assert falling == sorted(falling, reverse=True) and len(falling) == 3
    head.locator("button").press("Enter")
    assert [float(text.split(" ")[0]) for text in column(2)] == sorted(falling)


def test_a_method_can_be_switched_off(tab: Tab) -> None:
    names = "document.getElementById('{}').data.map(t => t.name).filter(n => n)"
    assert tab.page.evaluate(names.format("c-score")) == ["local", "scool-sbm", "scool-attention"]
    button = tab.page.locator("#legend button").nth(1)
    button.press("Enter")
    assert button.get_attribute("aria-pressed") == "false"
    for chart in ("c-score", "c-loss", "c-bytes", "c-learning"):
        assert tab.page.evaluate(names.format(chart)) == ["local", "scool-attention"]
    assert tab.page.evaluate(names.format("c-gains")) == ["scool-attention"]
    button.click()
    assert "scool-sbm" in tab.page.evaluate(names.format("c-score"))


def test_light_dark_and_what_the_system_says(browser: Any, report: Path) -> None:
    tab = Tab(browser, report, color_scheme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    assert tab.page.evaluate(ground) == "rgb(17, 22, 29)"
    ink = tab.page.evaluate("document.getElementById('c-score').layout.font.color")
    tab.page.click("#theme")
    assert tab.page.evaluate(ground) == "rgb(255, 255, 255)"
    assert tab.page.evaluate("document.getElementById('c-score').layout.font.color") != ink
    tab.page.click("#theme")
    assert tab.page.evaluate(ground) == "rgb(17, 22, 29)"
    assert tab.complaints == []


def test_a_phone_needs_no_sideways_scrolling(browser: Any, report: Path) -> None:
    tab = Tab(browser, report, viewport={"width": 390, "height": 844})
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= 390
    assert tab.complaints == []


def test_names_from_data_stay_text(browser: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    clients = [(rng.normal(size=(8, 3)).astype("float32"), np.arange(8) % 2) for _ in range(3)]
    federation = scool.from_arrays(
        clients,
        test_fraction=0.25,
        name=NASTY,
        client_names=[NASTY, "<b>bold</b>", "c & d"],
        class_names=[NASTY, "%{y}"],
    )
    scool.fit(federation, "linear", scool.LocalOnly(), rounds=2, out=tmp_path / "r", method=NASTY)
    tab = Tab(browser, write_report([tmp_path / "r"], tmp_path, title=NASTY))
    assert not tab.page.evaluate("window.harmed") and tab.page.title() == NASTY
    assert tab.page.inner_text("#table tbody th").strip() == NASTY
    assert NASTY[:20] in tab.page.inner_text("#client-text")
    for chart in ("c-classes", "c-partition"):
        words = tab.page.locator(f"#{chart} text").all_text_contents()
        assert any("<script>" in word for word in words), words
    assert tab.complaints == []


def test_broken_folders_still_make_a_page(browser: Any, comparison: Path) -> None:
    sbm = comparison / "scool-sbm-0"
    (sbm / "run.json").write_text("{")
    (sbm / "metrics.jsonl").write_text((sbm / "metrics.jsonl").read_text()[:-300])
    (comparison / "local-0" / "metrics.jsonl").unlink()
    shutil.rmtree(comparison / "scool-attention-0" / "graphs")
    (comparison / "scool-sbm-1" / "clients.safetensors").unlink()
    with pytest.warns(DamageWarning):
        path = write_report([comparison])
    tab = Tab(browser, path)
    notes = tab.page.inner_text("#note-list")
    assert "run.json is damaged" in notes and "metrics.jsonl is missing" in notes
    assert "metrics.jsonl is damaged: it ends after line" in notes
    assert "no graph file can be read" in notes and "clients.safetensors is missing" in notes
    for run in range(6):
        tab.page.select_option("#run", str(run))
        tab.page.wait_for_timeout(50)
    assert tab.complaints == []


def test_a_client_in_quarantine_is_shown_in_no_block(
    browser: Any, with_quarantine: Path, tmp_path: Path
) -> None:
    tab = Tab(browser, write_report([with_quarantine], tmp_path))
    assert "empty while it is in quarantine" in tab.shown("c-blocks")
    for chart in ("c-blocks", "c-member"):
        last = f"Array.from(document.getElementById('{chart}').data[0].z).at(-1)"
        assert tab.page.evaluate(last) == [None, None]
    tab.page.select_option("#who", "1")
    words = tab.page.inner_text("#client-text")
    assert "in quarantine: non-finite inputs" in words and "block" not in words
    tab.page.select_option("#view", "net")
    assert tab.shown("c-graph").startswith("Network drawing")
    hover = tab.page.evaluate("document.getElementById('c-graph').data.at(-1).hovertemplate")
    assert "in quarantine" in hover[1] and "group" in hover[0] and "null" not in "".join(hover)
    assert tab.complaints == []


def test_one_client_without_truth(browser: Any, tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(9, 3)).astype("float32")
    federation = scool.from_arrays([(x, np.arange(9) % 3)], test_fraction=0.3)
    scool.fit(federation, "linear", scool.SCooL(), rounds=2, out=tmp_path / "r")
    tab = Tab(browser, write_report([tmp_path / "r"], tmp_path))
    assert "not known" in tab.page.inner_text("#c-truth") and tab.heat() == [[1.0]]
    assert tab.complaints == []


def test_regression_runs_have_r2_and_bars(browser: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    clients = [
        (rng.normal(size=(9, 3)).astype("float32"), rng.normal(size=(9, 1)).astype("float32"))
        for _ in range(4)
    ]
    federation = scool.from_arrays(clients, test_fraction=0.3, task="regression")
    scool.fit(federation, "linear", scool.SCooL(), rounds=2, out=tmp_path / "r")
    tab = Tab(browser, write_report([tmp_path / "r"], tmp_path))
    assert "R²" in tab.page.inner_text("#table thead")
    assert tab.page.evaluate("document.getElementById('c-partition').data[0].type") == "bar"
    assert tab.complaints == []


def test_a_hundred_clients_for_a_hundred_rounds(browser: Any, tmp_path: Path) -> None:
    """Six methods with graphs that do not compress: at most 12 MB, and quick to open."""
    federation = scool.synthetic(num_clients=100, groups=5, seed=0)
    rng = torch.Generator().manual_seed(0)
    for method in ("local", "a", "b", "c", "d", "e"):
        header = {"format": "scool-run-1", "method": method, "status": "finished", "seed": 0}
        folder = RunWriter.create(tmp_path / "runs" / method, header)
        folder.write(NAME, "clients", *clients_file(federation))
        for t in range(100):
            scores = (100 * torch.rand(100, generator=rng)).tolist()
            row = {"round": t, "train_loss": 1.0, "accuracy_mean": 50.0, "scores": scores}
            folder.append("metrics.jsonl", row | {"test_loss": 1.0, "bytes": 9, "messages": 9})
            folder.write_graph(t, torch.rand(100, 100, generator=rng))
    path = write_report([tmp_path / "runs"], tmp_path)
    assert path.stat().st_size <= 12_000_000
    tabs = [Tab(browser, path) for _ in range(2)]
    assert all(tab.complaints == [] for tab in tabs)
    assert tabs[0].page.evaluate("Number(document.getElementById('round').max)") >= 90
    # 2 s on an idle machine; the tests may have to share it with others.
    assert min(tab.seconds for tab in tabs) < 6
