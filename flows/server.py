"""Prefect's server, as a run from the command line needs it: the work is finished also without it.

Prefect tries each request for over a minute where the server is gone, and for seven where it has stopped. A
tune makes half a dozen of them when its work is done. Here the first unanswered one is the last.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from copy import copy
from functools import wraps
from threading import Lock
from typing import Any

import httpx
from prefect import Flow, State
from prefect.client.orchestration import SyncPrefectClient
from prefect.context import SyncClientContext
from prefect.settings import PREFECT_API_URL
from routetune.flows.warden import MARK
from routetune.tasks.errors import RoutetuneError

#: Seconds for which the server may leave a request unanswered. Then it is lost to the run, and asked no more.
PATIENCE = 20.0
_PAUSE = 0.5  # seconds between two tries
ADVICE = "run again, or start a server yourself (prefect server start) and set PREFECT_API_URL to its address"


class Lost(httpx.TransportError):
    """The server was given up. Prefect's client does not try again on this."""


class Line(httpx.BaseTransport):
    """The way to the server: tries again until there is an answer, or patience is at its end.

    Attributes:
        client: whose requests go over it.
        lost: why the server was given up, or "".
    """

    def __init__(self, client: SyncPrefectClient) -> None:
        self.client = client
        self.lost = ""
        self._telling = Lock()
        # The transports that Prefect has made, with its TLS and proxies: they cannot be handed over instead.
        inner: Any = client._client
        self._way: Callable[[httpx.URL], httpx.BaseTransport] = inner._transport_for_url
        inner._transport_for_url = lambda url: self

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """A whole answer; raises Lost."""
        deadline = time.monotonic() + PATIENCE
        while not self.lost:
            left = max(deadline - time.monotonic(), _PAUSE)
            request.extensions["timeout"] = dict.fromkeys(("connect", "read", "write", "pool"), left)
            try:
                response = self._way(request.url).handle_request(request)
                response.read()
                return response
            except httpx.TransportError as error:
                if time.monotonic() + _PAUSE > deadline:
                    self._give_up(request.url, error)
                else:
                    time.sleep(_PAUSE)
        raise Lost(self.lost, request=request)

    def answers(self) -> bool:
        """Whether the server is there; what it answers is for Prefect to judge."""
        self.client.api_healthcheck()
        return not self.lost

    def _give_up(self, url: httpx.URL, error: httpx.TransportError) -> None:
        with self._telling:
            if self.lost:
                return
            why = f"{type(error).__name__}: {error}"
            self.lost = f"Prefect's server at {url.host}:{url.port} gave no answer for {PATIENCE:g} s ({why})"
        # Prefect's log handler would say the same of each batch of lines that it has left.
        logging.raiseExceptions = False
        warnings.warn(f"{self.lost}; the work goes on without it", stacklevel=2)


_line: ContextVar[Line | None] = ContextVar("routetune-line", default=None)
_last: Line | None = None


def is_lost() -> bool:
    """Whether this process has given up its server."""
    return _last is not None and bool(_last.lost)


@contextmanager
def patiently() -> Iterator[None]:
    """Hold the line for the flows of the body. Where no server is named, Prefect starts one, guarded.

    Raises:
        RoutetuneError: there is no server to begin with.
    """
    global _last
    with ExitStack() as stack:
        try:
            if not PREFECT_API_URL.value():
                _guard()
            context = SyncClientContext()
            line = _last = Line(context.client)
            stack.enter_context(context)  # asks the server for its version
        except (RuntimeError, httpx.HTTPError) as error:
            raise RoutetuneError(f"Prefect: {error}; nothing was started ({ADVICE})") from error
        token = _line.set(line)
        stack.callback(_line.reset, token)
        yield


def run_through(flow: Flow[..., Any], *arguments: Any, **keywords: Any) -> Any:
    """Run a flow to its end, also where the server is lost before, under or after it.

    The work needs no server; only what Prefect shows of it is missing then. Outside of `patiently` this is a
    plain call.

    Raises:
        RoutetuneError: the server is there, and did not begin the run.
    """
    line = _line.get()
    if line is None:
        return flow(*arguments, **keywords)
    heard, outcomes = _overheard(flow)
    # Asked first, since Prefect begins a flow in a flow by way of another client.
    if line.answers():
        try:
            return heard(*arguments, **keywords)
        except Exception as error:
            if not line.lost:
                _explain(error, outcomes)
    if not outcomes:
        heard.fn(*arguments, **keywords)
    return outcomes[-1].result()


def _overheard(flow: Flow[..., Any]) -> tuple[Flow[..., Any], list[Future[Any]]]:
    """The same flow, and what each run of its function will have come to, for when Prefect cannot tell."""
    outcomes: list[Future[Any]] = []

    @wraps(flow.fn)
    def body(*arguments: Any, **keywords: Any) -> Any:
        outcome: Future[Any] = Future()
        try:
            value = flow.fn(*arguments, **keywords)
            if isinstance(value, State) and isinstance(value.data, BaseException):
                outcome.set_exception(value.data)
            else:
                outcome.set_result(value)
        except BaseException as error:
            outcome.set_exception(error)
            raise
        finally:
            outcomes.append(outcome)
        return value

    heard = copy(flow)
    heard.fn = body
    return heard, outcomes


def _explain(error: Exception, outcomes: list[Future[Any]]) -> None:
    """Say what Prefect itself had to complain of, other than the end of the flow's own function."""
    if not outcomes:
        raise RoutetuneError(f"Prefect did not begin the run: {error}; nothing was started") from error
    if error is not outcomes[-1].exception():
        warnings.warn(f"Prefect did not take the end of the run: {error}", stacklevel=3)


def _guard() -> None:
    """Have the server that Prefect will start ended with this process, also by a SIGKILL."""
    mark = os.environ[MARK] = uuid.uuid4().hex  # the server inherits it
    guard = [sys.executable, "-P", "-m", "routetune.flows.warden", mark]
    # Not in our session: what is sent to the terminal's processes is not for it. It waits on the pipe.
    subprocess.Popen(
        guard,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
