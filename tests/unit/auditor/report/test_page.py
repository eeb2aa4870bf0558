"""The page is whole, loads nothing, and shows a browser what was found."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from auditor.report import (
    render_page,
)
from auditor.runlog import RunLog
from auditor.words import MEANINGS
from tests.unit.auditor.browser import needs_browser, seen_by_a_browser, size_in_a_browser


class Tags(HTMLParser):
    """Counts what would load something, and checks that tags close."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [f"{tag} {name}" for name, _ in attrs if name in ("src", "href", "action", "onload")]
        if tag in ("script", "iframe", "link", "object"):
            self.loads.append(tag)
        if tag not in ("meta", "br", "link", "wbr"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """A closed tag opens nothing."""

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_loads_nothing(report: dict[str, Any]) -> None:
    page = render_page(report)
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert tags.loads == []
    assert page.count("<svg") >= 5
    assert "exact_support_frames" in page
    assert report["plan"]["hash"] in page


@needs_browser
def test_a_browser_shows_the_page(report: dict[str, Any], tmp_path: Path) -> None:
    """The verdict stands in the open, the pictures have a size, and nothing reaches past the window's edge."""
    page = tmp_path / "audit.html"
    page.write_text(render_page(report))
    seen = seen_by_a_browser(page.as_uri(), tmp_path / "profile")
    assert report["verdict"]["state"] in seen
    assert seen.count("<svg") >= 5
    width, height = size_in_a_browser(page, "svg", tmp_path / "profile")
    assert width > 300
    assert height > 50
    assert size_in_a_browser(page, "body", tmp_path / "profile")[0] <= 800
    for wide in ("svg", ".checks"):
        assert size_in_a_browser(page, wide, tmp_path / "profile", 500)[0] <= 500


def test_every_check_of_the_page_is_explained_once(report: dict[str, Any]) -> None:
    page = render_page(report)
    for metric in {check["metric"] for result in report["results"] for check in result["checks"]}:
        assert page.count(f"<dt>{metric}</dt><dd>{MEANINGS[metric]}</dd>") == 1


def test_every_text_of_the_page_is_escaped(report: dict[str, Any]) -> None:
    bad = "<script>alert(1)</script>"
    changed = json.loads(json.dumps(report))
    changed["bundles"][0]["name"] = bad
    for kind in ("leak", "evidence", "instrument", "power", "undecided", "plan", "not_measured"):
        changed["verdict"]["reasons"].append({"kind": kind, "text": bad, "subject": bad})
        changed["results"][0]["checks"][0]["reasons"].append({"kind": kind, "text": bad, "subject": ""})
    changed["results"][0]["notes"] = changed["results"][0]["controls"][0]["what"] = bad
    changed["results"][0]["family"] = changed["results"][1]["family"] = bad
    for field in ("attack", "knowledge", "given", "paper", "partition"):
        changed["results"][0][field] = bad
    changed["results"][0]["checks"][0] |= {"words": [bad], "metric": bad}
    changed["results"][0]["details"] |= {bad: bad}
    changed["results"][0]["assumptions"] = {bad: bad}
    changed["not_measured"].append({"attack": bad, "family": bad, "reason": bad, "applies": True})
    changed["observable"][bad] = changed["plan"]["name"] = changed["scope"] = bad
    changed["notes"].append(bad)
    changed["versions"]["splitwire"] = bad
    arms = next(r for r in changed["results"] if "arms" in r["details"])
    arms["details"]["arms"][0]["name"] = bad
    page = render_page(changed, RunLog().tree() | {"platform": bad, "created": bad})
    assert "<script>" not in page
    assert page.count("&lt;script&gt;") > 20
