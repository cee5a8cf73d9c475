"""Forked processes: their exit statuses, and which of them outlive this process."""

from __future__ import annotations

import os
import time

import pytest

from torch_estimator.processes.forked import fork


@pytest.mark.parametrize("may_outlive", [False, True])
def test_a_forked_child_reports_its_exit_status(may_outlive: bool) -> None:
    child = fork(may_outlive=may_outlive)
    if child is None:
        os._exit(3 + (os.getpgid(0) == os.getpid()))
    while not child.has_ended():
        pass
    assert child.status == 3 + may_outlive


def test_what_a_child_in_a_group_of_its_own_leaves_behind_is_killed() -> None:
    # A descendant has the end for writing of this pipe as long as it lives.
    reads, writes = os.pipe()
    child = fork(may_outlive=True)
    if child is None:
        if os.fork() == 0:
            time.sleep(1000)
        os._exit(0)
    os.close(writes)
    while not child.has_ended():
        pass
    with open(reads, "rb") as pipe:
        assert pipe.read() == b""


def test_a_child_whose_status_others_have_collected_counts_as_ended() -> None:
    child = fork()
    if child is None:
        os._exit(1)
    os.waitpid(child.pid, 0)
    assert child.has_ended()
    assert child.status == 0


@pytest.mark.parametrize("may_outlive", [False, True])
def test_only_a_child_that_may_does_outlive_its_parent(may_outlive: bool) -> None:
    reads, writes = os.pipe()
    parent = fork()
    if parent is None:
        own = os.getpid()
        if fork(may_outlive=may_outlive) is None:
            os.write(writes, b"started\n")
            while not may_outlive or os.getppid() == own:
                time.sleep(0.001)
            os.write(writes, b"outlived\n")
        else:
            time.sleep(1000)
        os._exit(0)
    os.close(writes)
    with open(reads, "rb") as pipe:
        assert pipe.readline() == b"started\n"
        parent.kill()
        assert pipe.read() == b"outlived\n" * may_outlive
