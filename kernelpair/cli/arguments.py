"""The arguments of every command, with the help that teaches them."""

import argparse

from kernelpair import __version__
from kernelpair.cli.options import (
    Commands,
    Once,
    Parser,
    above_0,
    add_cpu,
    add_html,
    add_json,
    add_junit,
    add_pairs,
    add_provider,
    add_seed,
    add_suite,
    add_tiers,
    many,
    positive,
)

DESCRIPTION = "Puts optimized CPU kernels on trial against their pure-PyTorch references, on thousands of generated batches."
EPILOG = """\
first steps:
  kernelpair doctor                           what this machine can run
  kernelpair check                            every pair on all tiers that run
  kernelpair check store_cache --tier scalar  one pair on one tier
  kernelpair replay '<case>' -v               a failing case, each difference

exit status: 0 all is well, 1 a candidate failed, 2 wrong usage,
             3 nothing was tested, 70 the harness itself failed, 130 interrupted
"""


def _add_doctor(commands: Commands) -> None:
    doctor = commands.add_parser("doctor", help="CPU, tiers and why one cannot run, torch, threads, compiler and flags")
    doctor.add_argument("--json", action="store_true", help="as JSON")
    doctor.add_argument("-v", "--verbose", action="store_true", help="also the compiler's flags of each tier")


def _add_listing(commands: Commands) -> None:
    listing = commands.add_parser("list", help="the pairs, or all that is known of one",
                                  description="With a PAIR: what its kernel is called with, candidates, cases, trials, files.")
    add_pairs(listing)
    add_provider(listing)
    listing.add_argument("--json", action="store_true", help="as JSON")


def _add_new_pair(commands: Commands) -> None:
    new = commands.add_parser(
        "new-pair",
        help="write the files of a new pair, for you to fill in",
        description="Writes a pair into the suite of the current folder: its room (cases, bound, relations, wrong calls, bench), "
        "a reference and a kernel in Python. The pair is found and put on trial at once, and fails until its three functions "
        "are filled in. Where there is no suite, a kernelpair_suite.py is written too.",
    )
    new.add_argument("name", metavar="NAME", help="the kernel's name: a Python name in lower case, such as row_scale")


def _add_check(commands: Commands) -> None:
    check = commands.add_parser(
        "check",
        help="put candidates on trial",
        description="Draws cases for each pair and tier and judges every call: values, memory, errors, relations. A failure is "
        "shrunk to its smallest case and printed with the command that replays it.",
        epilog="example: kernelpair check store_cache rms_norm --tier scalar --seconds 20",
    )
    add_pairs(check)
    add_tiers(check)
    add_provider(check)
    add_cpu(check)
    check.add_argument("--known", metavar="F", help="ledger of known failures (TOML): they are reported, and do not fail the run")
    check.add_argument(
        "--examples", type=positive, metavar="N",
        help="cases for each pair and tier (default: 200, or what fits into 45 s for all)",
    )
    says = "cases in all, shared out so that each pair and tier takes as long"
    check.add_argument("--total", type=positive, metavar="N", help=says)
    check.add_argument("--seconds", type=above_0, metavar="S", help="time in all, instead of a number of cases")
    add_seed(check)
    check.add_argument(
        "--trial", metavar="NAME", action=Once,
        help="only this trial: value, repeat, threads, concurrent, poison, neighbours, aftermath, series, fuzz, "
        "a relation, or wrong_call:NAME (kernelpair list PAIR)",
    )
    check.add_argument("--relation", dest="trial", metavar="NAME", help=argparse.SUPPRESS)  # its name before
    check.add_argument("--in-process", action="store_true", help="run kernels in this process, for a debugger; a crash ends it")
    add_json(check)
    add_junit(check)
    add_html(check)
    says = "also how tight the bounds are, and which trials and edges no case hit"
    check.add_argument("-v", "--verbose", action="store_true", help=says)


def _add_replay(commands: Commands) -> None:
    replay = commands.add_parser(
        "replay",
        help="run saved cases again",
        description="Takes cases as lines of JSON, files that hold one a line, or ids of findings. With -v every difference is "
        "shown: tensor, index, expected, got, bound, ratio.",
        epilog="""example: kernelpair replay '{"pair":"store_cache","v":1,"rows":3}' -v""",
    )
    replay.add_argument(
        "cases", nargs="+", metavar="CASE", help="a case as printed by check, a file of cases, or the id of a finding (VC-01)"
    )
    says = "write the (first) case as a script that needs only torch and the kernel: its library, or its Python module"
    replay.add_argument("--script", metavar="F", help=says)
    says = (
        "add the case to the pair's corpus.jsonl, or with --provider to corpus/PAIR.jsonl beside its file, which every check "
        "tries first, if a candidate fails on it"
    )
    replay.add_argument("--save", action="store_true", help=says)
    replay.add_argument("--save-passing", action="store_true", help="as --save, whether a candidate fails or not")
    add_tiers(replay)
    add_provider(replay)
    add_cpu(replay)
    replay.add_argument("--in-process", action="store_true", help="run the kernel in this process, for a debugger")
    replay.add_argument("--guards", action="store_true", help="with --in-process: accesses beyond a buffer fault, as in a worker")
    replay.add_argument("-v", "--verbose", action="store_true", help="the batch drawn in text, and the table of what differs")


def _add_mutate(commands: Commands) -> None:
    mutate = commands.add_parser(
        "mutate",
        help="plant known bugs and see that they are noticed",
        description="Plants one bug at a time in a copy of the kernels' sources, compiles it and puts it on trial until "
        "something notices it. Then tries the kernels as they are, on as many cases. Status 0 if every mutant is noticed and no "
        "unchanged kernel is blamed.",
        epilog="example: kernelpair mutate store_cache --seconds 20",
    )
    add_pairs(mutate)
    one = "only this mutant of its pair: PAIR/NAME (may be repeated)"
    mutate.add_argument("--mutant", action="append", default=[], metavar="ID", help=one)
    mutate.add_argument("--tier", metavar="OLD=NEW", help="only mutants that name the tier OLD, planted in NEW")
    mutate.add_argument("--seconds", type=above_0, default=60.0, metavar="S", help="time for each mutant at most (default 60)")
    mutate.add_argument("--seed", type=int, default=1, metavar="N", help="seed for drawing cases (default 1)")
    add_json(mutate, "all results")
    add_html(mutate)
    mutate.add_argument("--markdown", metavar="F", help="write the table to this file, as the documentation shows it")
    mutate.add_argument("-v", "--verbose", action="store_true", help="also the shrunk case of each mutant")


def _add_findings(commands: Commands) -> None:
    findings = commands.add_parser(
        "findings",
        help="run the findings of docs/findings again",
        description="Runs each finding of a page again: it must fail as the page says, and our own kernels must pass it.",
    )
    findings.add_argument("pages", nargs="*", metavar="PAGE", help="pages of findings; all of docs/findings if none is given")
    add_html(findings)
    findings.add_argument("-v", "--verbose", action="store_true", help="also what each case shows")


def _add_premerge(commands: Commands) -> None:
    premerge = commands.add_parser(
        "premerge",
        help="say whether a change is fit to be merged",
        description="Finds what changed against the base, tries the pairs that it touches (saved cases first), gives the rest of "
        "the time to the others, and compares the speed of changed kernels with the base's build. A slowdown is reported; it is "
        "a failure only with --fail-on-slowdown.",
        epilog="example: kernelpair premerge --base main --markdown comment.md",
    )
    premerge.add_argument("--base", metavar="REV", help="compare with this commit (default: where main was left)")
    premerge.add_argument("--seconds", type=above_0, default=40.0, metavar="S", help="time for all trials together (default 40)")
    add_seed(premerge)
    premerge.add_argument("--markdown", metavar="F", help="write a comment for the pull request to this file")
    add_html(premerge)
    add_junit(premerge)
    premerge.add_argument("--fail-on-slowdown", action="store_true", help="a slowdown beyond noise is a failure")


def _add_bench(commands: Commands) -> None:
    bench = commands.add_parser(
        "bench",
        help="time tiers, torch and others' kernels on realistic sizes",
        description="Interleaved medians, so that a noisy machine disturbs all alike; ratios are to the fastest of the row. With "
        "--against each row also says how our best tiers compare with the peers, how much of the machine's measured limit "
        "(products from registers, reading from memory) they reach, and the speed that the row is to reach on the amx tier.",
        epilog="example: kernelpair bench store_cache --row 64\n"
        "         kernelpair bench --against torch,onednn --json speed.json\n"
        "         kernelpair speed speed.json docs/speed",
    )
    add_pairs(bench)
    add_tiers(bench)
    bench.add_argument(
        "--against", metavar="P[,P]", help="compete with these: torch, an installed provider's name (make peers), or its file .py"
    )
    bench.add_argument("--row", metavar="TEXT", help="only rows whose name holds this text")
    says = "time this case instead: a line as check prints it, a file of cases, or the id of a finding (may be repeated)"
    bench.add_argument("--case", action="append", default=[], metavar="LINE", help=says)
    bench.add_argument("--series", action="store_true", help="also the rows of the plots: decode and prefill over the length")
    bench.add_argument(
        "--tiles", action="store_true", help="time nothing: count the tile instructions of each row beside the least it needs"
    )
    bench.add_argument("--one-thread", action="store_true", help="with --against: our tiers on one thread too")
    bench.add_argument("--errors", action="store_true", help="with --against: also the errors of all on the same data")
    bench.add_argument("--threads", type=positive, metavar="N", help="threads of every competitor (default: the cores)")
    bench.add_argument("--seconds", type=above_0, default=1.0, metavar="S", help="time for each candidate of a row (default 1)")
    add_json(bench, "all figures")


def _add_speed(commands: Commands) -> None:
    speed = commands.add_parser(
        "speed",
        help="make the page of speeds from a bench's JSON",
        description="Writes a page (Markdown) and its plots (SVG) from what `kernelpair bench --against ... --json F` measured: "
        "into a folder of the machine's own in PLACE, beside those of other machines, and a page PLACE/README.md that compares "
        "all of them. Nothing is timed.",
        epilog="example: kernelpair speed all.json decode.json docs/speed",
    )
    speed.add_argument(
        "json", metavar="F", nargs="+", help="files of bench --against; rows of a later file replace those of earlier "
        "ones, and of several files rows that the bench has no more are left out"
    )
    speed.add_argument("page", metavar="PLACE", help="the folder of all machines, such as docs/speed, or one page (.md)")


def _add_watch(commands: Commands) -> None:
    watch = commands.add_parser(
        "watch",
        help="build and try again after every change of a source",
        description="Builds, tries the failures of earlier runs and then new cases, and waits for the next saved file. The first "
        "failure ends the command; with --keep-going only Ctrl-C does.",
        epilog="example: kernelpair watch store_cache --tier scalar",
    )
    add_pairs(watch)
    add_tiers(watch)
    watch.add_argument("--seconds", type=above_0, metavar="S", help="time for trials after each change (default 20)")
    watch.add_argument("--keep-going", action="store_true", help="wait for the next change after a failure too")


def _add_campaign(commands: Commands) -> None:
    campaign = commands.add_parser(
        "campaign",
        help="many cases on many machines",
        description="Shares out blocks of cases to the nodes of a Ray cluster, by labels that say what their CPUs can run; "
        "without --address to the cores of this machine. Each block's result is a file; blocks that have one are not run again.",
        epilog="example: kernelpair campaign --hours 8 --folder night --json night.json\n"
        "on each machine of a cluster:\n"
        "  ray start --address=HEAD:6379 --labels \"$(kernelpair campaign --labels)\"",
    )
    add_pairs(campaign)
    add_tiers(campaign)
    campaign.add_argument("--cases", type=many, metavar="N", help="cases in all, such as 1e8")
    campaign.add_argument("--hours", type=above_0, metavar="H", help="stop after this long, instead of --cases or as well")
    campaign.add_argument("--address", metavar="A", help="the cluster: auto, or HOST:PORT (default: this machine alone)")
    campaign.add_argument("--folder", default="campaign", metavar="DIR", help="where results are kept (default: campaign)")
    campaign.add_argument("--block", type=positive, metavar="N", help="cases of a block (default 2000)")
    campaign.add_argument("--shared", metavar="DB", help="where nodes share failing examples: a folder, or redis://host:port")
    campaign.add_argument("--seed", type=int, metavar="N", help="seed of the first block (default: a new one)")
    campaign.add_argument("--labels", action="store_true", help="print the labels of this machine as a node, and run nothing")
    add_json(campaign)
    add_html(campaign)


def _add_completion(commands: Commands) -> None:
    completion = commands.add_parser(
        "completion",
        help="print a shell's completion script for this command",
        description="Prints a script for the shell (needs pip install 'kernelpair[completion]').",
        epilog='bash: eval "$(kernelpair completion bash)"\nzsh:  kernelpair completion zsh > "${fpath[1]}/_kernelpair"',
    )
    completion.add_argument("shell", choices=("bash", "zsh", "tcsh"))


def _add_history(commands: Commands) -> None:
    history = commands.add_parser(
        "history",
        help="speeds, cases, tightness and mutants over commits",
        description="Each check, mutate, premerge and campaign adds its figures to .kernelpair/history.sqlite, in CI only where "
        "KERNELPAIR_HISTORY=1 asks for it. KERNELPAIR_HISTORY=0 keeps nothing; KERNELPAIR_HISTORY=PATH names another file.",
    )
    add_pairs(history)
    history.add_argument("--what", choices=("rate", "cases", "tightness", "mutants", "bench"), help="only figures of this kind")
    add_json(history, "the figures")
    add_html(history, "that plots them")


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = Parser(prog="kernelpair", description=DESCRIPTION, epilog=EPILOG)
    top.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    add_suite(top, None)
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)

    for add in (
        _add_doctor,
        _add_listing,
        _add_new_pair,
        _add_check,
        _add_replay,
        _add_mutate,
        _add_findings,
        _add_premerge,
        _add_bench,
        _add_speed,
        _add_history,
        _add_watch,
        _add_campaign,
        _add_completion,
    ):
        add(commands)
    for command in commands.choices.values():
        add_suite(command, argparse.SUPPRESS)
    return top
