"""What a reader sees of an audit: a JSON file (the result), one self-contained HTML page, a terminal summary.

All three show the tree that `auditor.audit.run_audit` returns; `auditor report` makes the page again from the JSON
file.
"""

from __future__ import annotations

from auditor.report.files import HTML_FILE, JSON_FILE, read_report, write_report
from auditor.report.page import render_page
from auditor.report.terminal import print_summary

__all__ = ["HTML_FILE", "JSON_FILE", "print_summary", "read_report", "render_page", "write_report"]
