"""What a reader sees of an audit: a JSON file (the result), one self-contained page, JUnit XML, a terminal summary.

All show the tree that `auditor.audit.run_audit` returns; `auditor report` makes page and JUnit XML again from the JSON
file.
"""

from __future__ import annotations

from auditor.report.files import (
    HTML_FILE,
    JSON_FILE,
    JUNIT_FILE,
    RUN_FILE,
    read_report,
    read_run,
    result_file,
    write_report,
    write_views,
)
from auditor.report.junit import render_junit
from auditor.report.page import render_page
from auditor.report.terminal import print_summary

__all__ = [
    "HTML_FILE",
    "JSON_FILE",
    "JUNIT_FILE",
    "RUN_FILE",
    "print_summary",
    "read_report",
    "read_run",
    "render_junit",
    "render_page",
    "result_file",
    "write_report",
    "write_views",
]
