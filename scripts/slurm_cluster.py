"""A real Slurm of some nodes on one machine, from Debian's packages, for tests and for a first look.

Nothing is installed: the packages are unpacked into a folder of their own. The daemons, and with them all jobs, run in
a PID namespace, which the kernel ends with this process, however that ends. They have a mount namespace, too, in which
the names of the nodes resolve. Only the standard library is needed.
"""

from __future__ import annotations

import argparse
import contextlib
import glob
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

PACKAGES = ("slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins", "munge")
_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torch-estimator" / "slurm"
_DIE_WITH_PARENT = Path(__file__).parents[1] / "torch_estimator" / "processes" / "die_with_parent.py"
_START_SECS = 60.0
_POLL_SECS = 0.05

_CONF = """\
ClusterName=torch-estimator
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
PluginDir={plugins}
StateSaveLocation={folder}/slurmctld
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
{nodes}
PartitionName=all Nodes=ALL Default=YES State=UP
"""


class ClusterError(Exception):
    """A reason why there can be no cluster here, in a sentence."""


def main(argv: Sequence[str]) -> int:
    """Start or stop a cluster."""
    parser = argparse.ArgumentParser(
        prog="scripts/slurm-cluster",
        description=f"""{__doc__.partition(chr(10))[0]} It runs until Ctrl-C, SIGTERM or `stop`, which also removes the
        packages; they are kept in {_CACHE}. Needs root, and Debian 12 or a system like it.""",
    )
    parser.add_argument("action", nargs="?", choices=["start", "stop"], default="start")
    parser.add_argument("--nodes", type=int, default=4, metavar="N", help="number of nodes (default: 4)")
    parser.add_argument("--cpus", type=int, default=4, metavar="N", help="CPUs that a node has to give (default: 4)")
    parser.add_argument("--folder", type=Path, default=Path("/run/torch-estimator-slurm"), help="default: %(default)s")
    options = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        if options.action == "stop":
            _stop(options.folder)
        else:
            _run(options.folder, options.nodes, options.cpus)
    except ClusterError as error:
        print(f"slurm-cluster: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        pass
    return 0


def _run(folder: Path, nodes: int, cpus: int) -> None:
    _check()
    if _owner(folder):
        raise ClusterError(f"there is a cluster in {folder} already; scripts/slurm-cluster stop ends it.")
    packages = _packages()
    with _fresh(folder):
        names = [f"n{number}" for number in range(1, nodes + 1)]
        _write(folder, packages, names, cpus)
        began = time.monotonic()
        # The namespace ends with its first process, that with unshare, and that with this process.
        inside = [sys.executable, "-P", __file__, "--inside", str(folder), *names]
        unshare = ["unshare", "--pid", "--mount-proc", "--fork", "--kill-child", *inside]
        process = subprocess.Popen([sys.executable, "-I", "-S", _DIE_WITH_PARENT, str(os.getpid()), *unshare])
        try:
            _wait_until_idle(folder, names, process)
            print(f"{nodes} nodes are idle after {time.monotonic() - began:.1f} s. To use them in a shell:\n")
            print(f'    export PATH="{folder}/bin:$PATH"\n\nCtrl-C ends the cluster.', flush=True)
            process.wait()
            raise ClusterError("its first process was ended.")
        finally:
            # unshare returns when all processes of the namespace have ended.
            children = f"/proc/{process.pid}/task/{process.pid}/children"
            with contextlib.suppress(OSError):
                for pid in Path(children).read_text().split():
                    os.kill(int(pid), signal.SIGKILL)
            process.wait()


def _check() -> None:
    cure = "run it in a Debian 12 container or VM"
    if sys.platform != "linux" or not shutil.which("apt-get") or not shutil.which("dpkg"):
        raise ClusterError(f"it takes Slurm from Debian's packages, and there is no apt-get here; {cure}.")
    if os.geteuid():
        raise ClusterError("Slurm's daemons and a mount namespace need root; run it with sudo, or in a container.")
    if not os.listdir("/sys/fs/cgroup"):
        raise ClusterError(f"slurmd needs cgroups, and nothing is mounted at /sys/fs/cgroup; {cure}.")
    tried = subprocess.run(["unshare", "--pid", "--mount-proc", "--fork", "true"], stderr=subprocess.PIPE, text=True)
    if tried.returncode:
        raise ClusterError(f"no PID and mount namespaces can be made: {tried.stderr.strip()}; {cure}.")


def _packages() -> Path:
    """Return the folder with the unpacked packages, which are downloaded if it is not there."""
    root = _CACHE / "root"
    if root.is_dir():
        return root
    # What these packages need beside them, and this machine does not have.
    plan = _apt(["install", "--simulate", "--no-install-recommends", *PACKAGES], _CACHE.parent)
    names = dict.fromkeys([*PACKAGES, *re.findall(r"^Inst (\S+)", plan, re.MULTILINE)])
    shutil.rmtree(_CACHE, ignore_errors=True)
    (_CACHE / "new").mkdir(parents=True)
    _apt(["download", *names], _CACHE)
    for package in _CACHE.glob("*.deb"):
        subprocess.run(["dpkg", "-x", package, _CACHE / "new"], check=True)
        package.unlink()
    (_CACHE / "new").rename(root)
    return root


def _apt(arguments: list[str], folder: Path) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(["apt-get", "-y", *arguments], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        said = " ".join(line.removeprefix("E: ") for line in done.stderr.splitlines() if line.startswith("E: "))
        raise ClusterError(f"apt-get {arguments[0]} says {said!r}; try apt-get update.")
    return done.stdout


@contextlib.contextmanager
def _fresh(folder: Path) -> Iterator[None]:
    """Make the folder of the cluster, and remove it at the end."""
    if (folder / "pid").exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    try:
        (folder / "pid").write_text(str(os.getpid()))
        yield
    finally:
        shutil.rmtree(folder)


def _owner(folder: Path) -> int | None:
    """Return the process of the cluster in this folder, if it runs."""
    with contextlib.suppress(OSError, ValueError):
        pid = int((folder / "pid").read_text())
        if os.path.basename(__file__).encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid
    return None


def _stop(folder: Path) -> None:
    pid = _owner(folder)
    if pid is not None:
        os.kill(pid, signal.SIGTERM)
        while _owner(folder) == pid:
            time.sleep(_POLL_SECS)
    if (folder / "pid").exists():
        shutil.rmtree(folder)
    shutil.rmtree(_CACHE, ignore_errors=True)


def _write(folder: Path, packages: Path, names: list[str], cpus: int) -> None:
    """Write the configuration, and a command for each program of the packages."""
    (folder / "bin").mkdir()
    (loader,) = glob.glob("/lib64/ld-linux-*.so.*") or glob.glob("/lib/ld-linux-*.so.*")
    (plugins,) = packages.glob("usr/lib/*/slurm-wlm")
    for program in [*packages.glob("usr/bin/*"), *packages.glob("usr/sbin/*")]:
        # Not by LD_LIBRARY_PATH, which the jobs would inherit.
        run = shlex.join([loader, "--library-path", f"{plugins}:{plugins.parent}", str(program)])
        command = folder / "bin" / program.name.removesuffix("-wlm")
        command.write_text(f'#!/bin/sh\nexport SLURM_CONF={shlex.quote(str(folder))}/slurm.conf\nexec {run} "$@"\n')
        command.chmod(0o755)
    for name in ("log", "slurmctld", "unshared", *names):
        (folder / name).mkdir()
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o600)
    host = socket.gethostname()
    port, *ports = _free_ports(1 + len(names))
    nodes = "\n".join(
        f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={one} CPUs={cpus}"
        for name, one in zip(names, ports, strict=True)
    )
    conf = _CONF.format(host=host, port=port, folder=folder, plugins=plugins, nodes=nodes)
    (folder / "slurm.conf").write_text(conf)
    version = int(re.findall(r"\d+", subprocess.check_output([folder / "bin/slurmd", "-V"], text=True))[0])
    plugin = "disabled" if version >= 23 else "autodetect"
    (folder / "cgroup.conf").write_text(f"CgroupPlugin={plugin}\nIgnoreSystemd=yes\n")
    addresses = "".join(f"127.0.0.1 {name}\n" for name in names)
    (folder / "hosts").write_text(Path("/etc/hosts").read_text() + addresses)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _wait_until_idle(folder: Path, names: list[str], process: subprocess.Popen[bytes]) -> None:
    ends = time.monotonic() + _START_SECS
    while time.monotonic() < ends and process.poll() is None:
        if (folder / "munge.socket").exists():
            states = subprocess.run(
                [folder / "bin/sinfo", "-h", "-N", "-o", "%T"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            ).stdout.split()
            if states == [b"idle"] * len(names):
                return
        time.sleep(_POLL_SECS)
    said = [line for log in sorted(folder.glob("log/*")) for line in log.read_text().splitlines() if "error" in line]
    raise ClusterError("it did not start. Its logs say:\n" + "\n".join(said[-20:]))


def _be_first(folder: Path, names: list[str]) -> NoReturn:
    """Start the daemons as the first process of the namespace, and collect the processes that they leave behind."""
    subprocess.run(["mount", "--bind", folder / "hosts", "/etc/hosts"], check=True)
    programs = folder / "bin"
    log = open(folder / "log" / "daemons.log", "ab")  # noqa: SIM115

    def start(*command: object) -> subprocess.Popen[bytes]:
        return subprocess.Popen(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    munge = {"socket": "socket", "key-file": "key", "pid-file": "pid", "seed-file": "seed", "log-file": "log"}
    options = [f"--{option}={folder}/munge.{suffix}" for option, suffix in munge.items()]
    daemons = [start(programs / "munged", "--foreground", "--force", *options)]
    while not (folder / "munge.socket").exists() and daemons[0].poll() is None:
        time.sleep(_POLL_SECS / 5)
    daemons.append(start(programs / "slurmctld", "-D"))
    # Each node has a folder that the others do not see, as a disk of its own would be.
    private = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs tmpfs "$0" && exec "$@"', folder / "unshared"]
    for name in names:
        daemons.append(start(*private, programs / "slurmd", "-D", "-N", name, "-d", programs / "slurmstepd"))
    while os.wait()[0] not in {daemon.pid for daemon in daemons}:
        pass
    sys.exit(1)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--inside"]:
        _be_first(Path(sys.argv[2]), sys.argv[3:])
    sys.exit(main(sys.argv[1:]))
