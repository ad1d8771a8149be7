"""python -m fedbcgd_lite: what the Makefile calls.

Exit code 0 when all went well, 1 when something failed, 2 for bad input, 130 after Ctrl-C.
"""

import argparse
import os
import sys
import time

from . import records
from .problem import resolve_device
from .runs import PROFILES, results_folder, task


def main(arguments: list[str] | None = None) -> int:
    """Parse, dispatch, and turn every expected error into one clear sentence."""
    from .notebooks import NotebookError

    options = _parser().parse_args(arguments)
    try:
        resolve_device(options.device)
        task(options.profile)
        return options.command(options)
    except NotebookError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except (ValueError, records.StorageError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Interrupted. What was finished is kept; the same command goes on from there.", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m fedbcgd_lite", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="command")
    for name, command, what in (
        ("figures", figures, "execute the notebooks"),
        ("status", status, "what is computed, what is missing, which verdicts stand"),
        ("replay", replay, "recompute the first rounds of the kept records and compare"),
    ):
        sub = commands.add_parser(name, help=what)
        sub.set_defaults(command=command)
        sub.add_argument("--profile", default="laptop", help=f"one of {', '.join(PROFILES)}")
        sub.add_argument("--device", default="auto")
        sub.add_argument("--jobs", type=_at_least_one, help="runs at a time")
        if command is not figures:
            continue
        sub.add_argument("--only", default="", help="notebooks, separated by commas")
        sub.add_argument("--seeds", type=_at_least_one, help="number of seeds")
        sub.add_argument("--fresh", action="store_true", help="compute records again that exist")
        sub.add_argument("--dry", action="store_true", help="print what would be computed, and compute nothing")
        sub.add_argument("--publish", action="store_true", help="replace the notebooks by their executed copies")
    return parser


def _at_least_one(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} was given: expected a whole number of at least 1")
    return int(text)


def figures(options) -> int:
    """Execute the notebooks one after another; stop at the first that fails."""
    from . import notebooks

    named = [name.strip().removesuffix(".ipynb") for name in options.only.split(",")]
    chosen = [name for name in named if name] or notebooks.names()
    known = {name: notebooks.parameters(notebooks.FOLDER / f"{name}.ipynb") for name in chosen}  # refuses a bad name
    asked = {"profile": options.profile}
    asked |= {"device": options.device} if options.device != "auto" else {}
    asked |= {"seeds": options.seeds} if options.seeds else {}
    nobody = [name for name in asked if not any(name in parameters for parameters in known.values())]
    given = {name: {k: v for k, v in asked.items() if k in known[name] or k in nobody} for name in chosen}
    if options.dry:
        return _dry(given)
    os.environ.setdefault("PROGRESS", "1" if sys.stderr.isatty() else "0")
    if options.jobs:
        os.environ["FEDBCGD_JOBS"] = str(options.jobs)
    if options.fresh:
        os.environ["FEDBCGD_FRESH"] = str(time.time())
        if options.only:  # the search that chose the settings is made again where it is named
            os.environ["FEDBCGD_FRESH_SEARCH"] = "1"
    for name in chosen:
        started = time.monotonic()
        print(f"{name} ...", end=" ", flush=True)
        executed = notebooks.execute(name, options.profile, {} if options.publish else given[name])
        if options.publish:
            notebooks.publish(name, executed)
        print(f"{time.monotonic() - started:.0f} s", flush=True)
    print(f"figures and tables: {results_folder(options.profile)}")
    return 0


def _dry(given: dict[str, dict]) -> int:
    """What the notebooks would compute with the parameters given to each, without computing it."""
    import pandas as pd

    from . import notebooks
    from .estimate import forecast

    for name in given:
        runs = notebooks.planned(name, given[name])
        print(f"\n{name}: {len(dict.fromkeys(runs))} runs")
        if runs:
            print(pd.DataFrame(forecast(runs)).to_string(index=False))
    print("\nTimes are for all runs of a row, one after another, from a few steps on noise; evaluations come on top.")
    return 0


def status(options) -> int:
    """Records, runs in progress, figures and verdicts of a profile."""
    import pandas as pd

    folder = results_folder(options.profile)
    kept = [record for path in sorted((folder / "records").glob("*.json")) if (record := records.read_record(path))]
    running = sorted((folder / "records").glob("*.checkpoint"))
    diverged = [record for record in kept if record["status"] == "diverged"]
    hours = sum(record["made_by"]["seconds"] for record in kept) / 3600
    print(
        f"{folder}: {len(kept)} records ({hours:.1f} h of computing), {len(diverged)} of them diverged, "
        f"{len(running)} runs in progress"
    )
    for path in running:
        print(f"  in progress: {path.stem}")
    for path in sorted(folder.glob("*.png")):
        print(f"  figure: {path.name}")
    if (folder / "claims.csv").exists():
        verdicts = pd.read_csv(folder / "claims.csv", keep_default_na=False)
        print(verdicts[["claim", "ours", "verdict"]].to_string(index=False))
    return 0


def replay(options) -> int:
    """Evidence that the kept records still describe the code."""
    paths = sorted((results_folder(options.profile) / "records").glob("*.json"))
    if not paths:
        raise ValueError(f"there are no records in {results_folder(options.profile)}: run `make figures` first.")
    from .replay import replay as recompute

    differences = recompute(paths, options.device, options.jobs)
    for path, difference in differences.items():
        print(f"{path.name}: {difference}")
    print(f"{len(paths)} records replayed, {len(differences)} differ")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
