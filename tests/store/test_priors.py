from __future__ import annotations

import math
import warnings

import pytest
from routetune.tasks.errors import BadInput
from routetune.tasks.routes.tuning_log import LoggedTrial, TuningLog
from routetune.tasks.store import Store

FAST = LoggedTrial({"-b": "1", "-a": "off"}, 0.25, losses={"y": math.nan})
SLOW = LoggedTrial({"-a": "off"}, 0.5)
CRASHED = LoggedTrial({"-a": "on"}, None, crashed=True, error="SIGSEGV")
LOG = TuningLog({"tuner_version": "1", "argv": ["/home/somebody"]}, (SLOW, FAST, CRASHED))


def test_the_fastest_that_ran_come_first_as_they_were_written(store: Store) -> None:
    store.priors.add(LOG, "tune.jsonl", "mlp")
    found = [(source, list(trial.route)) for source, trial in store.priors.promising("mlp")]
    assert found == [("tune.jsonl", ["-b", "-a"]), ("tune.jsonl", ["-a"])]
    assert store.priors.trials("mlp")[0] == SLOW
    assert store.priors.trials("mlp")[2] == CRASHED
    assert math.isnan(store.priors.trials("mlp")[1].losses["y"])
    assert store.priors.promising("other") == []


def test_the_same_log_twice_is_one_and_target_by_target_two(store: Store) -> None:
    first = store.priors.add(LOG, "tune.jsonl")
    assert store.priors.add(LOG, "renamed.jsonl") == first
    assert store.priors.add(LOG, "tune.jsonl", "mlp") != first
    assert len(store.priors.trials("mlp")) == 6
    assert len(store.priors.trials("other")) == 3
    assert "somebody" not in first.read_text()


def test_they_are_no_results(store: Store) -> None:
    store.priors.add(LOG, "tune.jsonl")
    assert list(store.entries) == []
    assert store.records.read().num_rows == 0


def test_a_damaged_file_is_set_aside(store: Store) -> None:
    path = store.priors.add(LOG, "tune.jsonl")
    store.priors.add(LOG, "tune.jsonl", "mlp")
    path.write_bytes(path.read_bytes().replace(b"0.25", b"0.01"))
    with pytest.warns(UserWarning, match="damaged priors"):
        assert len(store.priors.trials("mlp")) == 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(store.priors.trials("mlp")) == 3


def test_a_name_that_is_none_is_refused(store: Store) -> None:
    with pytest.raises(BadInput):
        store.priors.add(LOG, "tune.jsonl", "../mlp")
