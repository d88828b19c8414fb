"""The command `fittrain`.

Owns the group of commands and how errors look. Each command lives in its own module and is loaded
only when it runs, so that `fittrain --help` stays quick; nothing here loads TensorFlow, Keras,
Horovod or mpi4py. A `FittrainError` becomes one message and exit code 1.

A command is added with one line in `COMMANDS`.
"""

from __future__ import annotations

import importlib
from typing import Any

import click

from fittrain.errors import FittrainError
from fittrain.version import __version__

# Name: (module, attribute, line for `fittrain --help`).
COMMANDS: dict[str, tuple[str, str, str]] = {
    "horovod": ("fittrain.cli.horovod", "horovod", "Build, install and check Horovod."),
}


class CommandError(click.ClickException):
    """A `FittrainError` as the command line shows it."""


class LazyGroup(click.Group):
    """Group whose commands are imported when they are first needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Returns the names of all commands, in alphabetical order."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports and returns a command."""
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        command = getattr(importlib.import_module(module), attribute)
        return command if isinstance(command, click.Command) else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][2]) for name in self.list_commands(ctx)])

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command; an error raised on purpose becomes a message."""
        try:
            return super().invoke(ctx)
        except FittrainError as error:
            raise CommandError(str(error)) from error


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Run `fittrain COMMAND --help` for a command's options.",
)
@click.version_option(__version__, "--version", "-V", prog_name="fittrain")
def main() -> None:
    """Keras-style training on MPI clusters: N ranks compute what one rank would, faster."""
