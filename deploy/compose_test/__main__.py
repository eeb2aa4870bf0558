"""`make compose-test`: brings docker-compose.yml up on this machine, watches it train, breaks it, takes it down.

    1. An engine is started where none runs, images are built, keys are made, SmolLM2 is put into a volume.
    2. tln, tap, watch, ucn and Prometheus come up and are healthy.
    3. Training goes on with the gradient open: Prometheus has the series of all four, the alert LeakFound fires, and
       the page of the watch names the leak.
    4. The untrusted node's container is restarted in the midst of it; the trusted node goes on from its checkpoint.
    5. The run is stopped and its recording audited; the verdict, which is a fail, arrives on the page and in
       Prometheus, and the alert AuditFailed fires.
    6. `serve` comes up instead, answers a request with an API key and refuses one without.
    7. Everything is removed.

Exit code 0: all of it held. Grafana is left out, and said so, where no registry serves its image.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from deploy.compose_test.engine import ComposeTestError, Project, engine
from deploy.compose_test.http import Page, Server
from deploy.compose_test.preparation import fill_models, prepare
from deploy.compose_test.prometheus import Prometheus

SERVED = ("ucn", "tap", "watch", "prometheus")
_STEPS_BEFORE = 4
"""More than the first checkpoint, and enough that the count is seen to begin anew."""
PROFILES = ("tln", "ucn", "observability", "serve")
SERIES = (
    'up{job="ucn"} == 1',
    'up{job="tln"} == 1',
    'up{job="tap"} == 1',
    'up{job="watch"} == 1',
    "ucn_sessions_active > 0",
    "ucn_queue_depth",
    "ucn_cache_bytes",
    "ucn_device_memory_bytes",
    'splitwire_wire_bytes_total{job="tap", hop="BACKWARD"} > 0',
    'splitwire_wire_bytes_total{job="tln", hop="FORWARD"} > 0',
    'splitwire_wire_bytes_total{job="ucn", hop="FORWARD"} > 0',
    'splitwire_step_seconds_count{job="tln", phase="train"} > 0',
    'splitwire_step_seconds_count{job="tln", phase="exchange_backward"} > 0',
    'splitwire_certificate_not_after_timestamp_seconds{job="ucn"} > 0',
    'splitwire_certificate_not_after_timestamp_seconds{job="tap"} > 0',
    "splitwire_defence_info",
    "tln_loss_nats",
    "auditor_tap_dropped_total == 0",
    "auditor_watch_frames_total > 0",
    'auditor_watch_leak{detector="support"} == 1',
    "auditor:margin_pp",
    "splitwire:wire_bytes:rate5m > 0",
)


@dataclass(frozen=True)
class Limits:
    """How long parts of the test may take, in seconds."""

    start: float
    train: float


def main() -> int:
    """The whole test; the exit code says whether it held."""
    parser = argparse.ArgumentParser(prog="make compose-test", description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(".compose-test"), help="folder for keys, made anew")
    parser.add_argument("--no-build", action="store_true", help="use the images that are there")
    parser.add_argument("--keep", action="store_true", help="leave everything running at the end")
    parser.add_argument("--start-seconds", type=float, default=900, help="how long until everything is healthy")
    parser.add_argument("--train-seconds", type=float, default=1800, help="how long the run may take")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, _interrupt)
    limits = Limits(arguments.start_seconds, arguments.train_seconds)
    try:
        return _test(arguments.out.resolve(), limits, build=not arguments.no_build, keep=arguments.keep)
    except ComposeTestError as failure:
        _say(f"FAILED: {failure}")
        return 1
    except KeyboardInterrupt:
        _say("interrupted")
        return 130


def _test(out: Path, limits: Limits, *, build: bool, keep: bool) -> int:
    _say("engine and images")
    engine("up")
    engine("base")
    engine("prometheus")
    has_grafana = engine("grafana")
    if not has_grafana:
        _say("Grafana is left out: no registry serves its image here")
    environment = prepare(out)
    port = int(environment["PROMETHEUS_PORT"])
    services = (*SERVED, "tln", *(("grafana",) if has_grafana else ()))
    project = Project("splitwire-test", PROFILES, environment, services)
    project.down()
    try:
        if build:
            project.compose("build", quiet=False)
        fill_models(project)
        _say("up")
        project.up()
        _run(project, Prometheus(port), limits)
        _judge(project, Prometheus(port), limits)
        _serve(project, limits)
    except BaseException:
        for service in project.services:
            _say(f"--- {service}\n{project.logs(service)}")
        raise
    finally:
        if not keep:
            _take_down(project, out)
    _say("everything held")
    return 0


def _run(project: Project, prometheus: Prometheus, limits: Limits) -> None:
    for service in project.services:
        if service == "tln":  # it is, once it prepared; what it does is looked at below
            continue
        _until(f"{service} is healthy", limits.start, lambda name=service: _is_healthy(project, name))  # type: ignore[misc]
    for query in SERIES:
        _until(f"Prometheus has {query}", limits.train, lambda asked=query: bool(prometheus.samples(asked)))  # type: ignore[misc]
    _until("the alert LeakFound fires", limits.train, lambda: _fires(prometheus, "LeakFound"))
    count = 'splitwire_step_seconds_count{job="tln", phase="train"}'
    page = Page(int(project.environment["WATCH_PORT"]))
    _until("the page names the leak", limits.train, lambda: any(text.startswith("support") for text in page.leaks()))
    _until("steps were taken", limits.train, lambda: (prometheus.value(count) or 0) >= _STEPS_BEFORE)
    _say("restarting the untrusted node")
    before = int(project.state("tln")["RestartCount"])
    project.compose("restart", "--timeout", "5", "ucn")
    _until("tln started again", limits.train, lambda: int(project.state("tln")["RestartCount"]) > before)
    _until("training goes on", limits.train, lambda: bool(prometheus.samples(f"resets({count}[15m]) > 0")))


def _judge(project: Project, prometheus: Prometheus, limits: Limits) -> None:
    _say("auditing what was recorded")
    project.compose("stop", "tln")
    project.compose("stop", "tap")
    audited = _audit(project)
    _expect(f"the audit of an open gradient ends with code {audited}, which is fail", audited == 1)
    page = Page(int(project.environment["WATCH_PORT"]))
    _until("the page shows the verdict", limits.start, lambda: page.verdict() == "fail")
    _until("the verdict arrived", limits.start, lambda: bool(prometheus.samples('auditor_verdict{state="fail"} == 1')))
    _until("the alert AuditFailed fires", limits.start, lambda: _fires(prometheus, "AuditFailed"))


def _serve(project: Project, limits: Limits) -> None:
    _say("serving through a new recording")
    project.compose("start", "tap")
    serving = Project(project.name, PROFILES, project.environment, ("serve",))
    serving.up()
    _until("serve is healthy", limits.start, lambda: _is_healthy(serving, "serve"))
    server = Server(project.environment)
    _expect("a request without an API key is refused", server.status(key="") == 401)
    answer = server.complete("The capital of France is", max_tokens=2)
    _expect(f"a request with it is answered {answer!r}", bool(answer))


def _take_down(project: Project, out: Path) -> None:
    try:
        project.down()
        shutil.rmtree(out)
        left = project.left()
        _expect(f"containers, networks and volumes that are left: {', '.join(left) or 'none'}", not left)
    finally:
        engine("down")


def _audit(project: Project) -> int:
    audit = Project(project.name, ("audit",), project.environment)
    return audit.compose("run", "--rm", "audit", "--plan", "quick", check=False).returncode


def _is_healthy(project: Project, service: str) -> bool:
    state = project.state(service)
    if state.get("Status") in ("exited", "dead"):
        raise ComposeTestError(f"{service} ended with code {state['ExitCode']}\n{project.logs(service)}")
    return bool(state.get("Health", {}).get("Status") == "healthy")


def _fires(prometheus: Prometheus, alert: str) -> bool:
    return bool(prometheus.samples(f'ALERTS{{alertname="{alert}", alertstate="firing"}}'))


def _expect(what: str, holds: bool) -> None:
    if not holds:
        raise ComposeTestError(f"not so: {what}")
    _say(what)


def _until(what: str, seconds: float, happened: Callable[[], bool]) -> None:
    began = time.monotonic()
    while not happened():
        if time.monotonic() - began > seconds:
            raise ComposeTestError(f"not within {seconds:.0f} s: {what}")
        time.sleep(1)
    _say(f"{what} ({time.monotonic() - began:.0f} s)")


def _say(text: str) -> None:
    sys.stderr.write(f"compose-test: {text}\n")
    sys.stderr.flush()


def _interrupt(_signal: int, _frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
