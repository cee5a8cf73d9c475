"""Children are in a group of their own, report their exit, and do not outlive this process."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
from pathlib import Path

from torch_estimator.processes import die_with_parent
from torch_estimator.processes.child import Child, signal_name


def test_a_child_in_a_group_of_its_own_reports_its_exit_and_leaves_no_process_behind(tmp_path: Path) -> None:
    # The descendant has the end for writing of this pipe as long as it lives.
    reads, writes = os.pipe()
    with open(tmp_path / "printed", "wb") as printed:
        child = Child(
            ["sh", "-c", "sleep 1000 & ps -o pgid= $$; exit 3"], os.environ, stream=printed.fileno(), pass_fds=[writes]
        )
    os.close(writes)
    ended: queue.SimpleQueue[int] = queue.SimpleQueue()
    child.watch(ended.put)
    assert ended.get() == 3
    with open(reads, "rb") as pipe:
        assert pipe.read() == b""
    assert int((tmp_path / "printed").read_text()) == child.pid
    # Nobody gets this signal.
    child.send(signal.SIGKILL)


def test_the_exit_status_of_a_child_that_a_signal_ended_is_negative() -> None:
    child = Child(["sleep", "1000"], os.environ)
    child.send(signal.SIGTERM)
    assert signal_name(child.wait()) == "SIGTERM"


def test_a_command_does_not_start_if_its_parent_died_before_the_kernel_watched_it(tmp_path: Path) -> None:
    began = tmp_path / "began"
    command = [sys.executable, die_with_parent.__file__, "{}", sys.executable, "-c", f"open({str(began)!r}, 'w')"]
    for parent, status in ((os.getpid() + 1, 1), (os.getpid(), 0)):
        assert not began.exists()
        assert subprocess.run([word.replace("{}", str(parent)) for word in command]).returncode == status
    assert began.exists()
