"""One command, from its arguments to its exit status."""

import argparse
import gc
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module

from kernelpair.call import fork_server
from kernelpair.call.system import inherit_orphans, kill_children
from kernelpair.cli.arguments import parser
from kernelpair.cli.input_faults import input_fault, unfinished
from kernelpair.cli.streams import open_streams, outlive_readers
from kernelpair.cli.supervised import supervised
from kernelpair.cli.unbegun import write_unbegun
from kernelpair.interruption import handled_by, ignore_signals, interrupt, take_over
from kernelpair.report.files import WriteError

EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_NOTHING, EXIT_HARNESS, EXIT_INTERRUPTED = 0, 1, 2, 3, 70, 130
BESIDE_WORKERS = ("check", "replay", "mutate", "premerge", "findings")
"""Commands that make no call in their own process: they run in one that is forked beside the workers."""
NOT_LOADED = ("KERNELPAIR_TIER: ", "the compiled library ")  # a suite's library cannot be loaded, for a reason that it says


class UsageError(Exception):
    """Something about the arguments is wrong; the message says what to write instead."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status. Without arguments it is those of the process, and signals are handled."""
    if arguments is not None:
        return _run(parser().parse_args(arguments))
    open_streams()
    inherit_orphans()
    options = argparse.Namespace(command="")
    take_over(lambda number, frame: leave(options))
    parser().parse_args(namespace=options)
    if options.command == "check" and options.in_process:
        status = supervised(lambda: _run(options), EXIT_HARNESS)
    elif options.command in BESIDE_WORKERS and not getattr(options, "in_process", False):
        status = _beside_workers(options)
    else:
        status = _run(options)
    ignore_signals()
    return status


def leave(options: argparse.Namespace) -> None:
    """End before a run has begun, since loading cannot always be interrupted. The files that were asked for say that there is
    no result.

    After the run these files are complete, and only the end of the process is left.
    """
    if getattr(options, "begun", False):
        return
    ignore_signals()
    write_unbegun(options)
    who = f"kernelpair {options.command}".rstrip()  # no command as long as its arguments are being read
    os.write(2, f"{who}: interrupted before it began\n".encode())
    fork_server.close()
    kill_children()  # a compiler
    os._exit(EXIT_INTERRUPTED)


def _run(options: argparse.Namespace) -> int:
    return _told(options, _dispatch)


def _run_right(options: argparse.Namespace) -> int:
    """The same for options that were found right."""
    return _told(options, _perform)


def _told(options: argparse.Namespace, carry_out: Callable[[argparse.Namespace], int]) -> int:
    outlive_readers()  # here, for a command may run in a process forked from a server
    try:
        status = carry_out(options)
        sys.stdout.flush()
        return status
    except UsageError as error:
        print(f"kernelpair {options.command}: {error}", file=sys.stderr)
        return EXIT_USAGE
    except WriteError as error:
        print(f"kernelpair {options.command}: {error}", file=sys.stderr)
        return EXIT_HARNESS
    except KeyboardInterrupt:
        return _interrupted(options)
    except Exception as error:  # noqa: BLE001 - told apart from a candidate's failure by the exit status
        if says := input_fault(f"{type(error).__name__}: {error}"):
            print(f"kernelpair {options.command}: {says}", file=sys.stderr)
            return EXIT_USAGE
        if says := unfinished(f"{type(error).__name__}: {error}"):
            print(f"kernelpair {options.command}: {says}", file=sys.stderr)
            return EXIT_FAILED  # as of a check
        if isinstance(error, (ValueError, ImportError)) and str(error).startswith(NOT_LOADED):
            print(f"kernelpair {options.command}: {error}", file=sys.stderr)
            return EXIT_USAGE
        traceback.print_exc()
        print("kernelpair: the harness itself failed (above); this says nothing about any kernel", file=sys.stderr)
        return EXIT_HARNESS


def _dispatch(options: argparse.Namespace) -> int:
    # Each command imports what it needs: `--help`, and what is wrong with the options, is told before torch has loaded.
    import_module("kernelpair.cli.usage").refuse_misuse(options)
    return _perform(options)


def _perform(options: argparse.Namespace) -> int:
    module = _module(options)
    gc.disable()  # of what is loaded nothing is garbage, and looking for it takes a sixth of the time
    try:
        command: Callable[[argparse.Namespace], int] = getattr(import_module(module), module.rpartition(".")[2])
    finally:
        gc.enable()
    if options.command == "check":  # it says itself when its run begins
        return command(options)
    with handled_by(interrupt):
        return command(options)


def _module(options: argparse.Namespace) -> str:
    """The module of a command, which has a function of its name."""
    return "kernelpair.cli." + {"list": "listing"}.get(options.command, options.command.replace("-", "_"))


def _beside_workers(options: argparse.Namespace) -> int:
    """Run the command where its workers are forked."""
    from kernelpair.cli.forked import forked
    from kernelpair.cli.usage import refuse_misuse
    from kernelpair.suite import SuiteError, find

    try:
        refuse_misuse(options)
        preload = find(options.suite).load().preload
    except (UsageError, SuiteError):  # the command tells it
        return _run(options)
    return forked(_run_right, options, [*preload, _module(options)])


def _interrupted(options: argparse.Namespace) -> int:
    if not getattr(options, "begun", False):  # which writes its files itself
        write_unbegun(options)
    print(f"kernelpair {options.command}: interrupted before it ended", file=sys.stderr)
    return EXIT_INTERRUPTED
