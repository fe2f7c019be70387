"""Prefect's server is lost before, under and after a flow: its work is finished, once, and in time.

Between the flow and a real server is a relay, so that the moment can be chosen; the fault suite has real
servers that are killed and stopped.
"""

from __future__ import annotations

import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from prefect import flow, runtime, task
from prefect.artifacts import create_markdown_artifact
from prefect.settings import PREFECT_API_URL, PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings
from routetune.flows import server
from routetune.flows.server import is_lost, patiently, run_through
from routetune.tasks.errors import RoutetuneError

PATIENCE = 0.5


class Relay:
    """A port that hands everything on to a server, until that seems gone or stopped."""

    def __init__(self, port: int, impatient: Callable[[], None]) -> None:
        self.target = port
        self.impatient = impatient
        self.silent = threading.Event()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}/api"
        self.ends: list[socket.socket] = []
        self.requests = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self.listener.accept()
                far = socket.create_connection(("127.0.0.1", self.target))
                self.ends += [near, far]
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=self._pump, args=(one, other), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if self.silent.is_set():
                    continue
                self.requests += data.split(b" ", 1)[0] in (b"GET", b"POST", b"PATCH")
                sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)

    def gone(self) -> None:
        """As after a SIGKILL: connections end, new ones are refused."""
        self.impatient()
        for one in (self.listener, *self.ends):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def stopped(self) -> None:
        """As after a SIGSTOP: connections are taken, and nothing is answered."""
        self.impatient()
        self.silent.set()


@pytest.fixture
def relay(prefect_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Relay]:
    def impatient() -> None:  # and not before: the machine may be a busy one
        monkeypatch.setattr(server, "PATIENCE", PATIENCE)
        monkeypatch.setattr(server, "_PAUSE", PATIENCE / 5)

    relay = Relay(int(prefect_url.split(":")[2].split("/")[0]), impatient)
    with temporary_settings({PREFECT_API_URL: relay.url, PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
        yield relay
    relay.gone()


@pytest.fixture(params=["gone", "stopped"])
def lose(request: pytest.FixtureRequest, relay: Relay) -> Callable[[], None]:
    way: Callable[[], None] = getattr(relay, request.param)
    return way


def told(caught: list[warnings.WarningMessage]) -> list[str]:
    return [str(one.message) for one in caught if "the work goes on without it" in str(one.message)]


def test_lost_under_the_work(lose: Callable[[], None], relay: Relay) -> None:
    runs: list[Any] = []

    @task(persist_result=False)
    def double(number: int) -> int:
        return 2 * number

    @flow(name="lost under the work", persist_result=False)
    def work(number: int) -> int:
        runs.append(runtime.flow_run.id)
        assert relay.requests > 2, "it came over the relay so far"
        lose()
        result = double(number)
        with pytest.raises(server.Lost):
            create_markdown_artifact("what a run leaves", key="left")
        return result

    with warnings.catch_warnings(record=True) as caught, patiently():
        warnings.simplefilter("always")
        began = time.monotonic()
        assert run_through(work, 21) == 42
        # Prefect alone would need more than a minute for each of the two requests.
        assert time.monotonic() - began < 40 * PATIENCE
        assert is_lost() and len(told(caught)) == 1
        assert run_through(work, 2) == 4, "the next is not even begun with the server"
        assert len(told(caught)) == 1
    assert runs[0] is not None and runs[1] is None


def test_lost_before_the_work_begins(relay: Relay) -> None:
    runs: list[Any] = []

    @flow(name="lost before", persist_result=False)
    def work() -> str:
        runs.append(runtime.flow_run.id)
        return "done"

    with patiently():
        relay.stopped()
        with pytest.warns(UserWarning, match="gave no answer for 0.5 s"):
            assert run_through(work) == "done"
    assert runs == [None]


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(RoutetuneError("no such route"), id="ours", marks=pytest.mark.slow),
        pytest.param(KeyboardInterrupt(), id="ctrl-c"),
    ],
)
def test_what_ends_the_work_is_told_not_that_the_server_is_lost(error: BaseException, relay: Relay) -> None:
    @flow(name="ends badly", persist_result=False)
    def work() -> None:
        relay.gone()
        raise error

    with patiently(), pytest.warns(UserWarning, match="gave no answer"), pytest.raises(type(error)) as raised:
        run_through(work)
    assert raised.value is error


def test_lost_between_flows_in_a_flow(relay: Relay) -> None:
    @flow(name="inner", persist_result=False)
    def inner(number: int) -> int:
        return number

    @flow(name="outer", persist_result=False)
    def outer() -> int:
        first = run_through(inner, 1)
        relay.gone()
        return int(first + run_through(inner, 2) + run_through(inner, 3))

    with patiently(), pytest.warns(UserWarning, match="gave no answer"):
        assert run_through(outer) == 6


def test_a_server_that_is_there_shows_all_of_it(relay: Relay) -> None:
    from prefect.client.orchestration import get_client

    @flow(name="well", persist_result=False)
    def work() -> str:
        return str(runtime.flow_run.id)

    with patiently():
        run = run_through(work)
        assert not is_lost()
    with get_client(sync_client=True) as client:
        state = client.read_flow_run(run).state
    assert state is not None and state.is_completed()


def test_a_server_that_refuses_is_no_lost_server(relay: Relay) -> None:
    elsewhere = relay.url + "/automations"  # of the real server, where it knows nothing of flows
    with (
        temporary_settings({PREFECT_API_URL: elsewhere}),
        pytest.raises(RoutetuneError, match=r"Prefect: .*nothing was started"),
        patiently(),
    ):
        raise AssertionError("nothing may start")
    assert not is_lost()
