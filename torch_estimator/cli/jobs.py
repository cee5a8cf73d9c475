"""Command ``estimator jobs``: submit trainings, look at them, follow their logs, end them and go on with them."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch_estimator.cli.tables import aligned
from torch_estimator.errors import InvalidValueError, printable
from torch_estimator.log import time_text

if TYPE_CHECKING:
    from torch_estimator.jobs.directory import JobDirectory, JobSpec

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

_ROLES = ("master", "worker", "parameter-server", "evaluator")
_TYPES = {"master": "chief", "worker": "worker", "parameter-server": "ps", "evaluator": "evaluator"}
# Options of gcloud that have no meaning outside of Google's cloud. Those of the second list take no value.
_USELESS = (
    *("account", "project", "verbosity", "region", "runtime-version", "python-version", "staging-bucket", "packages"),
    *("configuration", "flatten", "access-token-file", "impersonate-service-account", "billing-project", "trace-token"),
    *("service-account", "kms-key", "kms-keyring", "kms-location", "kms-project"),
    *("master-image-uri", "worker-image-uri", "parameter-server-image-uri", "evaluator-image-uri"),
)
_USELESS_FLAGS = ("async", "enable-web-access", "user-output-enabled", "log-http")
_USELESS_OTHERS = ("quiet", "use-chief-in-tf-config")

_SUBMIT = """\
Copies the package into the job's directory, starts the job and returns; --stream-logs follows it instead, until Ctrl-C,
which leaves the job running. The arguments are those of gcloud ai-platform jobs submit training. Options that only have
a meaning in Google's cloud are accepted, and named in one line. Scale tiers, machine types and targets beside the
built-in ones are in the file estimator.toml of this directory."""


def add_to(commands: Commands) -> None:
    """Add the command and its options to the parser."""
    parser = commands.add_parser(
        "jobs", help="jobs of training: submit, list, describe, advise, trials, stream-logs, cancel, resume"
    )
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    _add_submit(actions)
    listing = actions.add_parser("list", help="list the jobs, the newest first")
    _add_jobs(listing)
    _add_format(listing)
    listing.set_defaults(run=_run(run_list))

    def add(name: str, text: str, run: Any) -> argparse.ArgumentParser:
        action = actions.add_parser(name, help=text)
        action.add_argument("job", metavar="NAME", help="name of the job")
        _add_jobs(action)
        action.set_defaults(run=_run(run))
        return action

    _add_format(add("describe", "print what a job was asked for and what became of it", run_describe))
    add("cancel", "end a job; its roles save a checkpoint", run_cancel)
    resume = add(
        "resume",
        "start a job again that failed or was cancelled, with the package that it was submitted with",
        run_resume,
    )
    resume.usage = "estimator jobs resume NAME [--jobs DIR] [-- ARGS]"
    resume.epilog = "ARGS are all arguments of the program again, where estimator.toml says that some are secret."
    resume.set_defaults(error=resume.error, arguments=[])
    advise = add(
        "advise", "print what bounds a training, and what one more worker, server or reader would bring", run_advise
    )
    advise.add_argument("--model-dir", metavar="DIR", help="model directory (default: what --job-dir of the job names)")
    _add_format(advise)
    trials = add("trials", "list the trials of a study, the best one marked; or stop, pause or promote one", run_trials)
    _add_format(trials)
    which = trials.add_mutually_exclusive_group()
    which.add_argument("--stop", type=int, metavar="N", help="end trial N, which stays where it is")
    which.add_argument("--pause", type=int, metavar="N", help="end the process of trial N until it is promoted")
    which.add_argument("--promote", type=int, metavar="N", help="send trial N on, although others did better")
    stream = add("stream-logs", "print the log lines of a job as they come", run_stream)
    stream.add_argument("--task-name", metavar="ROLE", help="only this role, such as worker-0")
    _add_streaming(stream)


def _add_submit(actions: Any) -> None:
    submit = actions.add_parser("submit", help="submit a training").add_subparsers(required=True, metavar="KIND")
    parser = submit.add_parser("training", help="submit a training", description=_SUBMIT)
    add_request(parser)
    _add_jobs(parser)
    add = parser.add_argument
    add(
        "--stream-logs",
        action="store_true",
        help="print the log until the end; the status is 1 unless the job SUCCEEDED",
    )
    _add_streaming(parser)
    add("--dry-run", action="store_true", help="print what would be submitted, and submit nothing")
    _add_format(parser)
    parser.usage = "estimator jobs submit training NAME --module-name NAME [options] [-- ARGS]"
    parser.set_defaults(run=run_submit)


def add_request(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what is to be trained, and where."""
    add = parser.add_argument
    add("job", metavar="NAME", help="name of the new job: letters, digits, _ and -")
    add(
        "--on",
        metavar="TARGET",
        default="local",
        help="where to run: local, slurm, ray, kubernetes, or a target of estimator.toml (default: local)",
    )
    add("--module-name", metavar="NAME", help="module to run, such as trainer.task")
    add("--package-path", metavar="DIR", help="folder of its package (default: the one of its name here)")
    add("--job-dir", metavar="DIR", help="passed to the program as --job-dir DIR, after its other arguments")
    add(
        "--config",
        metavar="FILE",
        help="gcloud's YAML with trainingInput, or Vertex AI's with studySpec; options win over it",
    )
    add("--scale-tier", metavar="TIER", help="BASIC, STANDARD_1, PREMIUM_1, BASIC_GPU or CUSTOM (default: BASIC)")
    for role in _ROLES:
        add(
            f"--{role}-machine-type",
            metavar="TYPE",
            help=argparse.SUPPRESS
            if role != "master"
            else "machine type; also for worker, parameter-server and evaluator",
        )
        add(
            f"--{role}-accelerator",
            metavar="type=TYPE,count=N",
            help=argparse.SUPPRESS if role != "master" else "GPUs of the chief; also for the other roles",
        )
        if role != "master":
            add(f"--{role}-count", type=int, metavar="N", help=f"number of {role}s, with --scale-tier CUSTOM")
    add("--labels", metavar="KEY=VALUE,…", help="labels, for people")
    add("--max-restarts", type=int, default=3, metavar="N", help="restarts of each role (default: 3)")
    add(
        "--hang-secs",
        type=float,
        default=0.0,
        metavar="SECS",
        help="end and restart a role without progress for this time that waits for no other (default: 0, never)",
    )
    add("--queue", metavar="NAME", help="on Kubernetes: the queue of Kueue that the job waits in")
    for name in _USELESS:
        add(f"--{name}", help=argparse.SUPPRESS)
    for name in _USELESS_FLAGS:
        add(f"--{name}", f"--no-{name}", action="store_true", help=argparse.SUPPRESS)
    add("--quiet", "-q", action="store_true", help=argparse.SUPPRESS)
    add("--use-chief-in-tf-config", nargs="?", const="true", help=argparse.SUPPRESS)
    add("--flags-file", type=_refused_file, help=argparse.SUPPRESS)
    parser.set_defaults(error=parser.error, arguments=[])


def _add_jobs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--jobs", metavar="DIR", help="directory or URL of all jobs (default: $TORCH_ESTIMATOR_JOBS, else jobs)"
    )


def _refused_file(path: str) -> str:
    raise argparse.ArgumentTypeError(f"{path} is not read here; give its options on the command line")


def _add_format(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--format", type=_format, metavar="{text,json}", default="text", help="text for people, json for programs"
    )


def _format(name: str) -> str:
    # The text is YAML, gcloud's default.
    if name in ("yaml", "default"):
        return "text"
    if name not in ("text", "json"):
        raise argparse.ArgumentTypeError(f"must be text, yaml or json, but got {name!r}; take what you need from json")
    return name


def _add_streaming(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--polling-interval",
        type=float,
        metavar="SECS",
        help="seconds between two looks (default: 0.2; 1 where --jobs is a URL)",
    )
    add("--allow-multiline-logs", action="store_true", help="print the role once for lines that follow each other")


def _run(run: Callable[[argparse.Namespace], int | None]) -> Callable[[argparse.Namespace], int | None]:
    """Have a command name what it cannot read or write of the jobs."""

    @functools.wraps(run)
    def wrapped(options: argparse.Namespace) -> int | None:
        try:
            return run(options)
        except BrokenPipeError:
            raise
        except OSError as error:
            from torch_estimator import files
            from torch_estimator.jobs.directory import jobs_directory

            place = error.filename or jobs_directory(options.jobs)
            raise InvalidValueError(f"{place} cannot be used: {files.reason(error)}.") from error

    return wrapped


def _job(options: argparse.Namespace) -> JobDirectory:
    from torch_estimator.jobs.directory import JobDirectory, jobs_directory

    return JobDirectory(jobs_directory(options.jobs), options.job)


def run_submit(options: argparse.Namespace) -> int:
    """Submit a training."""
    from torch_estimator.jobs.kinds import status_of
    from torch_estimator.jobs.submission import submit

    job = _job(options)
    spec, secrets, package = requested(options, job)
    spec, plan = submit(job, spec, package, secrets, is_dry=options.dry_run)
    if options.dry_run:
        _print_spec(spec, options.format, {"runs": plan})
        return 0
    state = status_of(job).state
    if options.format == "json":
        print(json.dumps({"jobId": spec.name, "state": state, "directory": job.url}))
    else:
        print(
            _SUBMITTED.format(
                name=spec.name, place="" if options.jobs is None else f" --jobs {options.jobs}", state=state
            )
        )
    sys.stdout.flush()
    return _follow(job, options, None) if options.stream_logs else 0


def requested(options: argparse.Namespace, job: JobDirectory | None) -> tuple[JobSpec, list[str], Path]:
    """Return what the command line asks for, the values of its secret arguments, and the package."""
    from torch_estimator.jobs.kinds import KINDS
    from torch_estimator.jobs.package import find_package
    from torch_estimator.jobs.request import request_of_file, spec_of, without_secrets
    from torch_estimator.jobs.table import Table
    from torch_estimator.launch.job import Limits

    request = _request(options)
    if options.config is not None:
        request = request.over(request_of_file(options.config))
    table = Table.read(KINDS)
    spec = spec_of(request, table, options.job, options.on)
    kept, secrets = without_secrets(spec.arguments, spec.secret_arguments)
    # This refuses numbers that the launcher would refuse.
    limits = Limits(max_restarts=options.max_restarts, hang_secs=options.hang_secs)
    spec = dataclasses.replace(spec, arguments=kept, max_restarts=limits.max_restarts, hang_secs=limits.hang_secs)
    if options.queue is not None:
        if "queue" not in KINDS[spec.settings["kind"]].SETTINGS:
            raise InvalidValueError(f"--queue is for Kubernetes, but target {spec.target} is {spec.settings['kind']}.")
        spec.settings["queue"] = options.queue
    useless = list(request.useless)
    if request.study is not None:
        from torch_estimator.tuning.configuration import study_of
        from torch_estimator.tuning.submission import study_spec

        if job is None:
            raise InvalidValueError(f"{options.config} asks for a study of several trainings; submit it.")
        study, others = study_of(request.study)
        spec = study_spec(spec, study, job)
        useless += others
    if useless := list(dict.fromkeys(useless)):
        print(f"{', '.join(useless)} {'does' if len(useless) == 1 else 'do'} nothing here.", file=sys.stderr)
    return spec, secrets, find_package(spec.module_name, options.package_path)


_SUBMITTED = """\
Job [{name}] submitted successfully.
Your job is still active. You may view the status of your job with the command

  $ estimator jobs describe {name}{place}

or continue streaming the logs with the command

  $ estimator jobs stream-logs {name}{place}
jobId: {name}
state: {state}"""


def _request(options: argparse.Namespace) -> Any:
    from torch_estimator.jobs.request import Request

    given = vars(options)
    request = Request(
        module_name=options.module_name,
        arguments=options.arguments or None,
        job_dir=options.job_dir,
        scale_tier=options.scale_tier,
        worker_count=options.worker_count,
        parameter_server_count=options.parameter_server_count,
        evaluator_count=options.evaluator_count,
        labels=_pairs(options.labels, "--labels") if options.labels else {},
        useless=[
            f"--{name}"
            for name in (*_USELESS, *_USELESS_FLAGS, "quiet", "use-chief-in-tf-config")
            if given[name.replace("-", "_")]
        ],
    )
    for role, type in _TYPES.items():
        name = role.replace("-", "_")
        if (machine := given[f"{name}_machine_type"]) is not None:
            request.types[type] = machine
        if (accelerator := given[f"{name}_accelerator"]) is not None:
            count = _pairs(accelerator, f"--{role}-accelerator").get("count", "1")
            if not count.isdecimal():
                raise InvalidValueError(f"the count of --{role}-accelerator must be a whole number, but got {count!r}.")
            request.gpus[type] = int(count)
    return request


def _pairs(text: str, option: str) -> dict[str, str]:
    pairs = [one.partition("=") for one in text.split(",")]
    if not all(key and sign for key, sign, _ in pairs):
        raise InvalidValueError(f"{option} must be KEY=VALUE,…, but got {text!r}.")
    return {key: value for key, _, value in pairs}


def run_list(options: argparse.Namespace) -> None:
    """List the jobs."""
    from torch_estimator import files
    from torch_estimator.jobs.directory import JobDirectory, jobs_directory, names
    from torch_estimator.jobs.kinds import status_of

    where = jobs_directory(options.jobs)
    found = []
    for name in names(where):
        job = JobDirectory(where, name)
        try:
            found.append((job.spec(), status_of(job)))
        except (InvalidValueError, OSError) as error:
            why = f"{job.url}: {files.reason(error)}." if isinstance(error, OSError) else str(error)
            print(f"estimator: {printable(why)}", file=sys.stderr)
    found.sort(key=lambda one: -one[0].created)
    if options.format == "json":
        print(
            json.dumps(
                [{"jobId": spec.name, "state": status.state, "createTime": spec.created} for spec, status in found]
            )
        )
        return
    if not found:
        print(f"There are no jobs in {where}.", file=sys.stderr)
        return
    rows = [
        [spec.name, status.shown, time_text(spec.created), spec.target, "study" if spec.study else spec.tier]
        for spec, status in found
    ]
    print(printable(aligned([["JOB_ID", "STATUS", "CREATED", "TARGET", "TIER"], *rows])))


def run_describe(options: argparse.Namespace) -> None:
    """Print a job."""
    from torch_estimator.jobs.directory import FINAL
    from torch_estimator.jobs.kinds import status_of

    job = _job(options)
    spec, status, events = job.spec(), status_of(job), job.events()
    roles: dict[str, dict[str, Any]] = {}
    for event in events:
        if event.role:
            role = roles.setdefault(event.role, {"restarts": 0})
            role["restarts"] += event.kind == "restarted"
            if event.kind == "exited":
                role.update(state="exited", status=event.status, reason=event.reason)
            else:
                # The reason why it was restarted stays.
                role.update(state="running", pid=event.pid, status=None, reason=role.get("reason", ""))
    for role in roles.values():
        if status.state in FINAL and role["state"] == "running":
            # Its launcher did not live to see its end.
            role["state"] = "ended"
    extra = {
        "state": status.state,
        "reason": status.reason,
        "since": status.since,
        "directory": job.url,
        "roles": roles,
    }
    if spec.study is not None:
        from torch_estimator.tuning.directory import StudyDirectory, best_trial

        directory = StudyDirectory(job)
        study, trials = directory.study(), directory.trials()
        states = directory.states(trials, is_over=status.state in FINAL)
        best = best_trial(trials, study)
        extra["trials"] = {state: states.count(state) for state in dict.fromkeys(states)}
        extra["bestTrial"] = None if best is None else best.number
    _print_spec(spec, options.format, extra)


def run_trials(options: argparse.Namespace) -> None:
    """List the trials of a study."""
    from torch_estimator.jobs.directory import FINAL
    from torch_estimator.jobs.kinds import status_of
    from torch_estimator.tuning.directory import StudyDirectory, best_trial
    from torch_estimator.tuning.requests import Requests

    directory = StudyDirectory(_job(options))
    for action in ("stop", "pause", "promote"):
        if (number := getattr(options, action)) is not None:
            Requests(directory).ask(action.upper(), number)
            print(f"Asked study {directory.job.name} to {action} trial {number}.", file=sys.stderr)
            return
    study, trials = directory.study(), directory.trials()
    best = best_trial(trials, study)
    states = directory.states(trials, is_over=status_of(directory.job).state in FINAL)
    if options.format == "json":
        shown = [
            {**dataclasses.asdict(trial), "state": state, "value": trial.value, "best": trial is best}
            for trial, state in zip(trials, states, strict=True)
        ]
        # JSON has no NaN.
        print(json.dumps(json.loads(json.dumps(shown), parse_constant=lambda name: None)))
        return
    names = list(dict.fromkeys(name for trial in trials for name in trial.parameters))
    rows = [["TRIAL", "STATE", "RUNG", "STEP", study.metric, *names, ""]]
    for trial, state in zip(trials, states, strict=True):
        step, value = ("", "") if trial.value is None else (str(trial.step), f"{trial.value:.6g}")
        note = "best" if trial is best else trial.reason
        parameters = [trial.parameters.get(name, "") for name in names]
        rows.append([str(trial.number), state, str(trial.rung), step, value, *parameters, note])
    print(printable(aligned(rows)))


def run_advise(options: argparse.Namespace) -> None:
    """Print what bounds a training."""
    from torch_estimator.activity.timeline import read_runs
    from torch_estimator.jobs.advice import advise, model_dir_of

    model_dir = options.model_dir or model_dir_of(_job(options))
    runs = read_runs(model_dir)
    if not runs:
        raise InvalidValueError(
            f"{model_dir} has no records of a training yet; if the job trains elsewhere, name that with --model-dir."
        )
    advice = advise(runs)
    if options.format == "json":
        print(json.dumps({"jobId": options.job, "modelDir": model_dir, **dataclasses.asdict(advice)}))
        return
    gains = [[f"one more {gain.of}", str(gain)] for gain in advice.gains]
    shares = [[part, f"{share:.0%}"] for part, share in advice.shares.items() if share >= 0.005]
    tables = aligned([["WITH", "MORE EXAMPLES/S"], *gains]), aligned([["PART", "TIME"], *shares])
    print(printable("\n\n".join([advice.sentence, *tables])))


def _print_spec(spec: JobSpec, form: str, extra: dict[str, Any]) -> None:
    content = {"jobId": spec.name, **extra, "trainingInput": dataclasses.asdict(spec)}
    if form == "json":
        print(json.dumps(content, indent=2))
        return
    from torch_estimator.yaml_text import to_yaml

    for part in (content, content["trainingInput"]):
        for key in ("created", "since"):
            if part.get(key):
                part[key] = time_text(part[key])
    shown = {key: value for key, value in content["trainingInput"].items() if value not in ("", None, {}, [], 0)}
    shown.pop("launcher")
    content["trainingInput"] = shown
    content = {key: value for key, value in content.items() if value not in ("", None, {})}
    print(printable(to_yaml([content]).rstrip()))


def run_cancel(options: argparse.Namespace) -> None:
    """Ask a job to end."""
    from torch_estimator.jobs.submission import cancel

    cancel(_job(options))
    print(f"Cancelled {options.job}.")


def run_resume(options: argparse.Namespace) -> None:
    """Start a job again."""
    from torch_estimator.jobs.kinds import status_of
    from torch_estimator.jobs.submission import resubmit

    job = _job(options)
    resubmit(job, options.arguments or None)
    print(f"Job [{options.job}] was started again.\nstate: {status_of(job).state}")


def run_stream(options: argparse.Namespace) -> int:
    """Print the lines of a job until it ends."""
    from torch_estimator.jobs.targets import machines_of
    from torch_estimator.launch.lines import LAUNCHER

    job = _job(options)
    spec = job.spec()
    trials = spec.study["max_trials"] if spec.study else 0
    roles = [*([f"trial-{number + 1}" for number in range(trials)] or machines_of(spec)), LAUNCHER]
    name = options.task_name
    if name is not None:
        # gcloud calls them worker-replica-0 and master-replica-0.
        name = name.replace("-replica", "").replace("master-", "chief-")
        if name not in roles:
            there = f"trial-1 to trial-{trials}" if trials else ", ".join(roles)
            raise InvalidValueError(f"job {job.name} has no role {options.task_name}; it has {there}.")
        if trials and name != LAUNCHER:
            from torch_estimator import files
            from torch_estimator.tuning.directory import StudyDirectory

            own = StudyDirectory(job).trial_job(int(name.removeprefix("trial-")))
            if files.exists(own.url):
                return _follow(own, options, None)
    return _follow(job, options, name)


def _follow(job: JobDirectory, options: argparse.Namespace, role: str | None) -> int:
    from torch_estimator.jobs.directory import FINAL
    from torch_estimator.jobs.kinds import status_of
    from torch_estimator.jobs.logs import LogReader

    polling_secs = options.polling_interval
    if polling_secs is None:
        polling_secs = 0.2 if job.is_local else 1.0
    if not polling_secs > 0:
        raise InvalidValueError(f"--polling-interval must be more than 0, but got {polling_secs}.")
    reader = LogReader(job.logs, role)
    before, is_warned = "", False
    while True:
        status = status_of(job)
        for line in reader.read():
            prefix = f"{line.time} [{line.role}] "
            is_further = options.allow_multiline_logs and line.role == before
            print(printable(f"{' ' * len(prefix) if is_further else prefix}{line.text}"))
            before = line.role
        sys.stdout.flush()
        if status.state in FINAL:
            break
        if status.host and not is_warned:
            print(f"Job {job.name} is {status.shown}: {status.reason} Ctrl-C ends this command.", file=sys.stderr)
            is_warned = True
        time.sleep(polling_secs)
    print(f"Job {job.name} {status.state}{f': {status.reason}' if status.reason else '.'}", file=sys.stderr)
    return status.state != "SUCCEEDED"
