#!/usr/bin/env python3
"""Opens pages of `shoal report` in headless Chromium and uses them as a person does: points, switches, zooms, reloads, follows.

    apt-get install chromium && pip install playwright
    tests/ecosystem/report_page.py build/release/shoal [FOLDER]      # FOLDER: for screenshots
"""
import pathlib
import re
import signal
import sys
import tempfile
import time

from playwright.sync_api import Error, sync_playwright
from runs import Runs, records_of

CHROMIUM = "/usr/bin/chromium"
MARKUP = "<script>alert(1)<"  # with a folder of this name below it, the two are a whole element
MARKUP_BELOW = "script><img src=x onerror=alert(2)>"


class Browser:
    """Pages that fail the test when anything is printed to the console, thrown, asked for on a network, or shown as a dialog."""

    def __init__(self, chromium, pictures):
        self.chromium, self.pictures = chromium, pictures

    def open(self, path, width=1280, scheme="light", hash_=""):
        context = self.chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page = context.new_page()
        page.faults, page.loads = [], 0
        page.on("console", lambda message: page.faults.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: page.faults.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (page.faults.append(f"dialog: {dialog.message}"), dialog.dismiss()))

        def loaded(request):
            if request.url.split("#")[0] == path.as_uri():
                page.loads += 1
            elif not request.url.startswith("data:"):
                page.faults.append(f"asks for {request.url}")

        page.on("request", loaded)
        page.goto(path.as_uri() + hash_)
        page.wait_for_selector("#loss .line", state="attached")
        return page

    def close(self, page, picture=None):
        if picture and self.pictures:
            page.screenshot(path=self.pictures / f"{picture}.png", full_page=True)
        assert not page.faults, page.faults
        page.context.close()


def point_at(page, chart, share):
    """Points at a chart, this share of its frame from the left; returns the text of the values that appear."""
    x = page.evaluate("([id, share]) => { const { frame } = CHARTS.find((c) => c.id === id).view;"
                      "return frame.left + share * (frame.right - frame.left); }", [chart, share])
    page.locator(f"#{chart}").scroll_into_view_if_needed()
    page.locator(f"#{chart}").hover(position={"x": x, "y": 60}, force=True)
    assert page.locator("#tip").is_visible()
    return page.locator("#tip").inner_text()


def wait_for(page, expression, seconds=30):
    """Until the page, which may be reloading itself, says that something is true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if page.evaluate(expression):
                return
        except Error:  # between two loads
            pass
        page.wait_for_timeout(100)
    raise AssertionError(f"not within {seconds} s: {expression}")


def check_values(browser, file, run):
    """Hovering shows the values of metrics.jsonl."""
    page = browser.open(file)
    records = records_of(run)
    last = max(record["step"] for record in records)
    shown = 0
    for record in records:
        text = point_at(page, "loss", record["step"] / last)
        value = record["loss"] if "loss" in record else record["val_loss"]
        values = [float(found) for found in re.findall(rf"(\S+)\tstep {record['step']:,}$", text, re.MULTILINE)]
        assert any(abs(found - value) < 0.51e-4 for found in values), (record, text)  # four digits of seven
        shown += 1
    evaluation = records[-1] if "val_loss" in records[-1] else records[-2]
    assert f"{100 * evaluation['val_accuracy']:.2f} %" in point_at(page, "accuracy", 1)
    browser.close(page)
    return shown


def check_controls(browser, file):
    """Every axis, scale and smoothing draws; a zoom and the settings survive a reload; runs can be hidden."""
    page = browser.open(file)
    lines = page.locator("#loss path.line").count()
    for axis in ("tokens", "flops", "time", "step"):
        page.check(f"input[value={axis}]", force=True)
        assert "NaN" not in page.locator("#charts").inner_html(), axis
        for chart in page.locator(".chart").all():
            point_at(page, chart.get_attribute("id"), 0.5)
    page.check("input[value=log]", force=True)
    page.locator("#smoothing").fill("3")
    assert page.locator("#loss path.smooth").count() > 0
    assert page.locator("#smoothed").inner_text() == "2 %"
    page.locator("#finals input").first.uncheck()
    assert page.locator("#loss path.line:not(.smooth)").count() < lines
    box = page.locator("#loss").bounding_box()
    page.mouse.move(box["x"] + 400, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + 700, box["y"] + 60, steps=4)
    page.mouse.up()
    assert page.locator("#whole").is_visible()
    ticks = page.locator("#loss text").all_inner_texts()
    page.reload()
    assert page.locator("#loss text").all_inner_texts() == ticks
    assert page.is_checked("input[value=log]") and not page.locator("#finals input").first.is_checked()
    page.locator("#loss").dblclick()
    assert not page.locator("#whole").is_visible()
    assert page.locator("#loss text").all_inner_texts() != ticks
    browser.close(page, "settings")


def check_little(browser, file):
    """A run of one evaluation without a config has no choice of an axis."""
    page = browser.open(file)
    assert not page.locator("#axes").is_visible() and page.locator("#scales").is_visible()
    assert "3.0000" in point_at(page, "loss", 0)
    browser.close(page)


def check_looks(browser, file):
    """Both themes, a desk and a phone: nothing is wider than the screen, and the theme is that of the system."""
    for scheme in ("light", "dark"):
        for width in (1280, 390):
            page = browser.open(file, width, scheme)
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            paper = [int(part) for part in re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).backgroundColor"))]
            assert (sum(paper) < 200) == (scheme == "dark"), paper
            assert page.locator("img").count() == 0
            assert all(document_box["x"] >= 0 and document_box["x"] + document_box["width"] <= width
                       for document_box in [page.locator("#tip").bounding_box() for _ in [point_at(page, "loss", 0.9)]])
            browser.close(page, f"{scheme}-{width}")


def check_live(browser, runs):
    """The page of a run that goes on reloads itself, keeps its settings, and rests when the run has ended."""
    training = runs.start("train", "tiny.toml", "run.name=live", "train.steps=10000000", "log.interval=100", "eval.interval=10000")
    metrics = runs.path("live") / "metrics.jsonl"
    while not metrics.exists() or not metrics.stat().st_size:
        time.sleep(0.1)
    file = runs.folder / "live.html"
    report = runs.start("report", "runs/live", "-o", file.name, "--follow")
    while not file.exists():
        time.sleep(0.1)
    page = browser.open(file, hash_="#x=tokens&y=log&smooth=2")

    def step():
        return int(page.locator("#finals tbody td").nth(1).inner_text().split()[0].replace(",", ""))

    first = step()
    assert page.locator(".state.running").count() == 1
    wait_for(page, f"runs[0].step > {first}")
    assert page.loads > 1 and page.is_checked("input[value=tokens]") and page.is_checked("input[value=log]")
    later = step()
    training.send_signal(signal.SIGTERM)
    training.wait()
    assert report.wait(60) == 0
    wait_for(page, "data.refresh === 0")
    assert page.locator(".state.stopped").count() == 1
    loads, last = page.loads, step()
    assert last == records_of(runs.path("live"))[-1]["step"]
    page.wait_for_timeout(7000)
    assert page.loads == loads
    browser.close(page)
    return first, later, last, loads


def main(shoal, pictures=None):
    with tempfile.TemporaryDirectory() as folder, Runs(shoal, folder) as runs, sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        browser = Browser(chromium, pathlib.Path(pictures) if pictures else None)
        print(f"Chromium {chromium.version}")

        base = runs.train("base")
        runs.train("wide", "model.n_embd=64", "optim.lr=1e-3")
        runs.train("gossip", "--ranks", "4", "parallel.engine=gossip", "train.micro_batch=2", "train.steps=100")
        runs.train("pipeline", "--ranks", "2", "parallel.pipeline=2", "train.micro_batch=1", "train.steps=60")
        runs.train("diverged", "optim.lr=3e7", "train.grad_clip=0", "train.on_bad_step=skip", "train.steps=60")
        runs.train("one-step", "train.steps=1", "log.interval=1")
        odd = runs.path(MARKUP) / MARKUP_BELOW
        empty = runs.path("empty")
        for path in (odd, empty, runs.folder / "other" / MARKUP_BELOW):
            path.mkdir(parents=True)
            (path / "config.toml").write_bytes((base / "config.toml").read_bytes())
            (path / "metrics.jsonl").write_bytes(b"" if path == empty else (base / "metrics.jsonl").read_bytes())
        names = ["base", "wide", "gossip", "pipeline", "diverged", "one-step", "empty", f"{MARKUP}/{MARKUP_BELOW}"]
        runs.run("report", *[f"runs/{name}" for name in names], f"other/{MARKUP_BELOW}", "-o", "all.html")
        runs.run("report", "runs/base", "-o", "base.html")

        shown = check_values(browser, runs.folder / "base.html", base)
        print(f"pointing at each of {shown} records shows its step and its loss with four digits")
        check_controls(browser, runs.folder / "all.html")
        print("steps, tokens, FLOPs, time; log; smoothing; a hidden run; a zoom: all kept by a reload")
        little = runs.path("little")
        little.mkdir()
        (little / "metrics.jsonl").write_text('{"step":0,"train_loss":3.5,"val_loss":3}\n')
        runs.run("report", "runs/little", "-o", "little.html")
        check_little(browser, runs.folder / "little.html")
        check_looks(browser, runs.folder / "all.html")
        print("light and dark, 1280 and 390 pixels: nothing is wider than the screen; names with markup are text")
        first, later, last, loads = check_live(browser, runs)
        print(f"a run that goes on: step {first}, {later}, {last} without a touch in {loads} loads, settings kept; then at rest")
        print("nothing on the console, no dialog, no request but for the page itself")
        chromium.close()


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    main(*sys.argv[1:])
