"""`auditor watch`: keep detectors current while a bundle is written, and act when a leak is found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from splitwire.options import Config, PrintSettings, Set, effective_settings
from splitwire.settings import render

if TYPE_CHECKING:  # numpy is not for --help
    from auditor.watch import WatchSettings
    from auditor.watch.watcher import WatchState


def command(
    bundle: Annotated[
        Path | None, typer.Argument(metavar="BUNDLE", help="Folder that the tap or the trusted node writes.")
    ] = None,
    *,
    truth: Annotated[Path | None, typer.Option("--truth", help="truth.sealed as it grows: calibrates.")] = None,
    key: Annotated[Path | None, typer.Option("--key", help="audit.key, which opens the truth.")] = None,
    metrics: Annotated[str, typer.Option("--metrics-listen", help="Address of the Prometheus metrics.")] = "",
    audit_metrics: Annotated[
        Path | None, typer.Option("--audit-metrics", help="File of auditor audit --metrics-file, to show beside.")
    ] = None,
    http: Annotated[
        str, typer.Option("--http", metavar="HOST:PORT", help="Show a live page there, to read only.")
    ] = "",
    on_leak: Annotated[
        str, typer.Option("--on-leak", metavar="COMMAND", help="Program and arguments to start; no shell.")
    ] = "",
    stop: Annotated[
        list[int] | None, typer.Option("--stop-on-leak", metavar="PID", help="Process to end; may be repeated.")
    ] = None,
    idle: Annotated[float, typer.Option("--idle", help="End when nothing came for so many seconds; 0: never.")] = 0,
    stay: Annotated[bool, typer.Option("--stay", help="Go on showing metrics after the end of the bundle.")] = False,
    config: Config = None,
    pairs: Set = None,
    print_settings: PrintSettings = False,
) -> None:
    """Watch a bundle while it is written. Exit code 0: no leak was found, 1: one was, 3: no frame came."""
    from auditor.watch.priority import yield_cores
    from auditor.watch.settings import WatchSettings

    named: dict[str, str | Path | None] = {
        "bundle": bundle,
        "truth": truth,
        "key": key,
        "metrics.listen": metrics,
        "page.listen": http,
        "metrics.audit_file": audit_metrics,
        "actions.on_leak": json.dumps(_words(on_leak)) if on_leak else "",
        "actions.stop_pids": json.dumps(stop) if stop else "",
        "idle_seconds": str(idle) if idle else "",
        "stay": "true" if stay else "",
    }
    own = [(name, str(value)) for name, value in named.items() if value]
    settings = effective_settings(WatchSettings, "watch", config, pairs, own)
    if print_settings:
        typer.echo(render(settings))
        return
    settings.check()
    yield_cores(settings.priority)
    raise typer.Exit(_watch(settings))


def _watch(settings: WatchSettings) -> int:
    import signal
    import threading

    import torch
    from rich.console import Console

    from auditor.verdict import EXIT_CODES
    from auditor.watch import Watcher
    from auditor.watch.live import LivePage
    from auditor.watch.view import line, shown
    from splitwire.metrics import serve

    torch.set_num_threads(1)
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    watcher = Watcher(
        settings, lambda text, failed: typer.echo(f"auditor: {text}", err=failed or text.startswith("LEAK"))
    )
    stop_metrics = serve(settings.metrics.listen, watcher.metrics.registry) if settings.metrics.listen else lambda: None
    try:
        with LivePage(settings.page) as page, shown(Console()) as show:

            def both(state: WatchState) -> None:
                page.show(state)
                show(state)

            last = watcher.run(stopped=stopped.is_set, show=both)
            page.show(last)
    finally:
        stop_metrics()
    typer.echo(line(last))
    if not last.num_frames and not stopped.is_set():
        typer.echo(f"auditor: nothing was watched: no frame came to {settings.bundle}", err=True)
        return EXIT_CODES["inconclusive"]
    return int(watcher.found_leak)


def _words(text: str) -> list[str]:
    import shlex

    from splitwire.errors import SettingsError

    try:
        return shlex.split(text)
    except ValueError as error:
        raise SettingsError(
            f"--on-leak {text!r} cannot be split into words: {error}", remedy="close its quotes"
        ) from None
