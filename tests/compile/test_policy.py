"""When a step is compiled in the background, by the kernel's counters of idle time."""

from __future__ import annotations

from pathlib import Path

import pytest

from torch_estimator.compile.policy import IdleCores, is_worth_compiling_in_background

LONG, SHORT = 1e6, 10.0


class Machine:
    """Writes files as the kernel does, and has a clock."""

    def __init__(self, folder: Path, cores: int, membership: str = "0::/\n") -> None:
        self.proc, self.groups, self.now = folder / "proc", folder / "groups", 0.0
        (self.proc / "self").mkdir(parents=True)
        (self.proc / "self" / "cgroup").write_text(membership)
        self._idle = [100.0] * cores
        self._used: dict[Path, float] = {}
        self.passes(1.0, idle=[0.0] * cores)

    def quota(self, group: str, text: str) -> None:
        """Limit a control group of version 2; the text is that of cpu.max."""
        folder = self.groups / group
        folder.mkdir(parents=True)
        (folder / "cpu.max").write_text(text)
        self._used[folder / "cpu.stat"] = 5.0
        self.passes(0.0, idle=[0.0] * len(self._idle))

    def old_quota(self, group: str, quota: int) -> None:
        """Limit a control group of version 1 to so many of every 100,000 microseconds."""
        for name in ("cpu", "cpuacct"):
            (self.groups / name / group).mkdir(parents=True)
        (self.groups / "cpu" / group / "cpu.cfs_quota_us").write_text(f"{quota}\n")
        (self.groups / "cpu" / group / "cpu.cfs_period_us").write_text("100000\n")
        self._used[self.groups / "cpuacct" / group / "cpuacct.usage"] = 5.0
        self.passes(0.0, idle=[0.0] * len(self._idle))

    def passes(self, secs: float, *, idle: list[float], used: float = 0.0) -> None:
        """Let time pass, with the share of it that each core was idle, and the number of cores that each group used."""
        self.now += secs
        lines = ["cpu  1 2 3 4 5 6 7 8 9 10"]
        for number, share in enumerate(idle):
            self._idle[number] += share * secs
            lines.append(f"cpu{number} 77 7 7 {self._idle[number] * 100:.0f} 3 0 7 0 0 0")
        (self.proc / "stat").write_text("\n".join([*lines, "intr 12345 1", "ctxt 1", ""]))
        for file in self._used:
            self._used[file] += used * secs
            is_old = file.name == "cpuacct.usage"
            nanoseconds = round(self._used[file] * 1e9)
            file.write_text(f"{nanoseconds}\n" if is_old else f"usage_usec {nanoseconds // 1000}\nuser_usec 1\n")

    def cores(self, allowed: set[int]) -> IdleCores:
        return IdleCores(allowed, proc=self.proc, groups=self.groups, clock=lambda: self.now)


@pytest.mark.parametrize(
    ("allowed", "idle", "expected"),
    [
        ({0, 1}, [0.0, 1.0], True),
        # This process and its input thread use one core and a third.
        ({0, 1}, [0.1, 0.57], True),
        # There are as many trainings as cores.
        ({0, 1}, [0.02, 0.01], False),
        ({0, 1, 2, 3}, [0.1, 0.1, 0.1, 0.1], False),
        # The idle cores are not for this process.
        ({0, 1}, [0.0, 0.0, 1.0, 1.0], False),
    ],
)
def test_only_idle_cores_that_the_process_may_use_count(
    tmp_path: Path, allowed: set[int], idle: list[float], expected: bool
) -> None:
    machine = Machine(tmp_path, len(idle))
    cores = machine.cores(allowed)
    assert cores.cores == len(allowed)
    assert not cores.is_one_idle()
    machine.passes(1.5, idle=idle)
    assert cores.is_one_idle() is expected


def test_only_the_last_measurement_counts(tmp_path: Path) -> None:
    machine = Machine(tmp_path, 2)
    cores = machine.cores({0, 1})
    for idle in ([0.0, 0.0], [0.0, 1.0], [0.0, 0.0]):
        machine.passes(1.0, idle=idle)
        assert cores.is_one_idle() is (idle[1] > 0)
        # Within a second nothing is measured again.
        machine.passes(0.5, idle=[0.0, 0.0])
        assert cores.is_one_idle() is (idle[1] > 0)
        machine.passes(0.5, idle=[0.0, 0.0])
        cores.is_one_idle()


@pytest.mark.parametrize("group", ["job/worker", "job", ""])
@pytest.mark.parametrize("is_old", [False, True])
def test_a_quota_of_a_control_group_or_of_a_parent_limits_idle_cores(tmp_path: Path, group: str, is_old: bool) -> None:
    machine = Machine(tmp_path, 4, "4:cpu,cpuacct:/job/worker\n0::/\n" if is_old else "0::/job/worker\n")
    if is_old:
        machine.old_quota(group, 150_000)
    else:
        machine.quota(group, "150000 100000\n")
    cores = machine.cores({0, 1, 2, 3})
    assert cores.cores == 1.5
    machine.passes(1.0, idle=[0.0, 1.0, 1.0, 1.0], used=1.2)
    assert not cores.is_one_idle()
    machine.passes(1.0, idle=[0.0, 1.0, 1.0, 1.0], used=0.9)
    assert cores.is_one_idle()


def test_a_group_without_a_quota_limits_nothing(tmp_path: Path) -> None:
    machine = Machine(tmp_path, 2, "4:cpu,cpuacct:/old\n0::/new\n")
    machine.old_quota("old", -1)
    machine.quota("new", "max 100000\n")
    cores = machine.cores({0, 1})
    machine.passes(1.0, idle=[0.0, 1.0], used=1.0)
    assert (cores.cores, cores.is_one_idle()) == (2, True)


def test_without_the_kernels_counters_no_core_is_idle(tmp_path: Path) -> None:
    machine = Machine(tmp_path, 2)
    (machine.proc / "stat").unlink()
    cores = machine.cores({0, 1})
    machine.now += 2
    assert not cores.is_one_idle()


def test_a_short_training_compiles_on_an_idle_core_and_a_long_one_always(tmp_path: Path) -> None:
    machine = Machine(tmp_path, 2)
    idle = machine.cores({0, 1})
    machine.passes(1.0, idle=[0.0, 1.0])
    assert not is_worth_compiling_in_background(0.9, 900, SHORT, idle)
    assert is_worth_compiling_in_background(1.1, 1100, SHORT, idle)
    assert is_worth_compiling_in_background(1.1, 1100, None, idle)
    machine.passes(1.0, idle=[0.0, 0.0])
    assert not is_worth_compiling_in_background(1.1, 1100, 30_000.0, idle)
    assert not is_worth_compiling_in_background(1.1, 1100, None, idle)
    assert is_worth_compiling_in_background(1.1, 1100, LONG, idle)
    assert is_worth_compiling_in_background(300.0, 1100, None, idle)


def test_if_more_than_three_seconds_are_left_an_idle_core_compiles_after_a_fifth_of_a_second(tmp_path: Path) -> None:
    machine = Machine(tmp_path, 2)
    idle = machine.cores({0, 1})
    machine.passes(0.15, idle=[0.0, 1.0])
    assert not is_worth_compiling_in_background(0.15, 150, LONG, idle)
    machine.passes(0.05, idle=[0.0, 1.0])
    assert is_worth_compiling_in_background(0.2, 200, 3000.0, idle)
    for steps_left in (2900.0, None):
        assert not is_worth_compiling_in_background(0.2, 200, steps_left, idle)


def test_without_an_idle_core_the_first_second_is_too_short_for_an_estimate(tmp_path: Path) -> None:
    machine = Machine(tmp_path, 2)
    idle = machine.cores({0, 1})
    machine.passes(0.9, idle=[0.3, 0.1])
    assert not is_worth_compiling_in_background(0.9, 900, LONG, idle)
    # The next second, and no shorter time, is measured again.
    machine.passes(0.3, idle=[0.0, 1.0])
    assert not idle.is_one_idle()
    machine.passes(0.8, idle=[0.0, 1.0])
    assert is_worth_compiling_in_background(0.9, 900, LONG, idle)


def test_a_process_with_one_core_does_not_compile_however_long_it_trains(tmp_path: Path) -> None:
    machine = Machine(tmp_path, 2)
    for allowed, quota in (({1}, "max 100000\n"), ({0, 1}, "100000 100000\n")):
        machine.quota(f"job{quota[:3]}", quota)
        (machine.proc / "self" / "cgroup").write_text(f"0::/job{quota[:3]}\n")
        idle = machine.cores(allowed)
        assert idle.cores == 1
        machine.passes(1.0, idle=[1.0, 1.0])
        assert not is_worth_compiling_in_background(1000.0, 1100, LONG, idle)
