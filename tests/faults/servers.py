"""Faults of the Prefect server: it is killed, stops, was never there, or is left behind by its run."""

from __future__ import annotations

import random
import signal
import time
from contextlib import ExitStack

import psutil

from tests.faults.fault import Case, Fault
from tests.faults.questions import snapshot, wrong
from tests.faults.site import SURVIVAL, Tune
from tests.operations.site import free_port, serving

#: Seconds that a tune may take which has lost its server, beside those for its work (docs/faults.md).
BOUND = 30.0
MOMENTS = 3


def of_the_server(case: Case) -> None:
    _lost_to_many(case, signal.SIGKILL)


def server_stops(case: Case) -> None:
    _lost_to_many(case, signal.SIGSTOP)


def _lost_to_many(case: Case, number: signal.Signals) -> None:
    """Tunes at moments drawn lose one server together."""
    draw = random.Random(number)
    with serving(case.place / "server") as server:
        sites = [case.site(server.url) for _ in range(MOMENTS)]
        before = []
        with ExitStack() as stack:
            tunes = []
            for site in sites:
                site.own_devices()  # as on machines of their own
                # From where the flow has begun with the server, as far as the end.
                tunes.append(stack.enter_context(case.stopped(site, at=draw.uniform(0.1, 1.0))))
                before.append(snapshot(site))
            server.send(number)
            for tune in tunes:
                _bound(case, tune, MOMENTS)
                tune.go_on()
        server.send(signal.SIGCONT)
    for site, tune, seen in zip(sites, tunes, before, strict=True):
        _finished(case, tune)
        site.server = case.undisturbed.site.server
        case.conclude(site, seen)


def _bound(case: Case, tune: Tune, crowd: int = 1) -> None:
    """Limit what is left of a tune, one of several at once, on a machine that may be busier than before."""
    tune.limit = BOUND + 6 * crowd * case.undisturbed.seconds


def _finished(case: Case, tune: Tune) -> None:
    """The work needs no server: the tune has to end well, and to say what it missed."""
    assert tune.ended is not None
    if tune.ended.code != 0 or tune.ended.err.count("the work goes on without it") != 1:
        case.findings.wrong.append(f"not finished: {tune.ended.code} {tune.ended.err[-500:]}")


def under_a_retune(case: Case) -> None:
    """Two targets, each a flow in a flow; the server dies under the first."""
    with serving(case.place / "server") as server:
        site = case.site(server.url)
        site.write("other")
        with case.stopped(site, "--force", at=0.5, command="retune", target=site.folder) as tune:
            before = snapshot(site)
            server.send(signal.SIGKILL)
            _bound(case, tune, 2)
    _finished(case, tune)
    site.server = case.undisturbed.site.server
    case.findings.wrong += wrong(site, {}, None, "other")
    for name in ("faulty", "other"):
        case.conclude(site, before, target=name)


def not_there(case: Case) -> None:
    """Nobody at the address, and one who takes connections and answers nothing: refused, and nothing done."""
    with serving(case.place / "server") as server:
        server.send(signal.SIGSTOP)
        for url in (f"http://127.0.0.1:{free_port()}/api", server.url):
            site = case.site(url)
            with site.running() as tune:
                _bound(case, tune)
                refused = case.findings.ended(tune.wait())
            if refused.code != 1 or "does not answer" not in refused.err:
                case.findings.wrong.append(f"not refused for want of a server: {refused.err[-500:]}")
            case.findings.times += 1
            site.server = case.undisturbed.site.server
            case.conclude(site, snapshot(site))
        server.send(signal.SIGCONT)


def of_its_own_server(case: Case) -> None:
    """Where none is named, each run has one of its own, as a child."""
    site = case.site("")
    with case.stopped(site, at=0.5) as tune:
        before = snapshot(site)
        [server] = tune.servers()
        server.kill()
        _bound(case, tune)
    _finished(case, tune)
    site.server = case.undisturbed.site.server
    case.conclude(site, before)


def left_behind(case: Case) -> None:
    """A run is killed while its own server starts, and in the middle: the server has to end by itself."""
    site = case.site("")
    with site.running() as tune:
        server = _first_server(tune)
        tune.kill()
        case.findings.ended(tune.wait(), tune.was_killed)
        case.findings.times += 1
        case.findings.hung += _outlives(server)
    with case.stopped(site, at=0.5) as tune:
        [server] = tune.servers()
        case.killed(site, tune)
        case.findings.hung += _outlives(server)
    site.server = case.undisturbed.site.server
    case.conclude(site, snapshot(site))


def _first_server(tune: Tune) -> psutil.Process:
    deadline = time.monotonic() + tune.limit
    while time.monotonic() < deadline and tune.process.poll() is None:
        for server in tune.servers():
            return server
        time.sleep(0.01)
    raise AssertionError(f"no server was started: {tune.wait()}")


def _outlives(server: psutil.Process) -> list[str]:
    try:
        server.wait(SURVIVAL)
    except psutil.TimeoutExpired:
        server.kill()
        return [f"the Prefect server {server.pid} outlives its run"]
    return []


FAULTS = [
    Fault(
        "SIGKILL of the Prefect server",
        "all its processes, under three tunes at moments that are drawn, seed 9",
        of_the_server,
    ),
    Fault(
        "SIGKILL of the Prefect server under a retune",
        "of two targets, in the middle of the first",
        under_a_retune,
    ),
    Fault(
        "SIGKILL of the run's own Prefect server",
        "where PREFECT_API_URL is not set, halfway",
        of_its_own_server,
    ),
    Fault(
        "a Prefect server that stops answering",
        "SIGSTOP, under three tunes at moments that are drawn, seed 19",
        server_stops,
    ),
    Fault(
        "no Prefect server at the start",
        "at the address nobody listens, or a stopped server does",
        not_there,
    ),
    Fault(
        "SIGKILL of a run with a Prefect server of its own",
        "while the server starts, and halfway: the server must go too",
        left_behind,
        usual=True,
    ),
]
