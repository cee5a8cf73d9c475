"""Entry point of ``estimator``: parse the command line, run the command, turn errors into exit statuses."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from torch_estimator.errors import INTERRUPTED, UserError, printable

# One module per command. To add a command, write a module with `add_to` and list the module here.
_COMMANDS = {
    "Training": ("local", "jobs", "status", "console", "make_key"),
    "Exports": ("show", "predict", "predict_batch", "check", "serve", "manifest"),
    "Versions of models": ("models", "versions"),
    "From TensorFlow": ("port", "import_checkpoint"),
}

# Shells report this exit status for a program that SIGPIPE terminated.
BROKEN_PIPE = 141


def make_parser(command: str | None = None) -> argparse.ArgumentParser:
    """Return the parser of ``estimator``: with one command if that is known, otherwise with all.

    The import of all commands takes longer than most of them take.
    """
    known = [name for names in _COMMANDS.values() for name in names]
    wanted = [name for name in known if name.replace("_", "-") == command] or known
    parser = argparse.ArgumentParser(
        prog="estimator",
        description="Runs training jobs and exported models, and keeps versions of models.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND", help="one of the commands below")
    groups = []
    for title, names in _COMMANDS.items():
        for name in names:
            if name in wanted:
                importlib.import_module(f"torch_estimator.cli.{name}").add_to(commands)
        # argparse knows no groups of commands. This list is what it would print as one.
        lines = [f"  {one.dest:<18} {one.help}" for one in commands._choices_actions]
        commands._choices_actions.clear()
        groups.append("\n".join([f"{title}:", *lines]))
    parser.epilog = "\n\n".join([*groups, "estimator COMMAND --help prints the options of a command."])
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command of ``estimator`` that the arguments name, and return the exit status.

    It is 2 for a mistake of the user, the status of the job for ``local train``, otherwise 0. Without arguments, take
    those of this process.
    """
    own = list(sys.argv[1:] if arguments is None else arguments)
    parser = make_parser(own[0] if own else None)
    # What follows -- is for a program. argparse would give it to the first positional argument that takes several.
    own, after = (own[: own.index("--")], own[own.index("--") + 1 :]) if "--" in own else (own, [])
    options, unknown = parser.parse_known_args(own)
    if after and "arguments" in options:
        options.arguments = [*options.arguments, *after]
    else:
        unknown += after
    if unknown:
        message = f"unrecognized arguments: {' '.join(unknown)}"
        if "error" in options:
            options.error(f"{message}; put arguments of the program after --")
        parser.error(message)
    try:
        status: int | None = options.run(options)
        sys.stdout.flush()
    except UserError as error:
        print(f"estimator: error: {printable(str(error))}", file=sys.stderr)
        return UserError.exit_status
    except BrokenPipeError:
        # Redirect stdout to /dev/null, because Python flushes stdout when it exits, and would raise the error again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except KeyboardInterrupt:
        return INTERRUPTED
    return status or 0
