"""The search for step sizes and constants on a validation split: grids from search.toml, the choice for tuned.csv."""

import dataclasses
import itertools
import tomllib

import pandas as pd

from .protocols import FOLDER, METHODS, OF_TASK, tuned
from .results import Result
from .runs import Run, Task, grid, task
from .tables import final_accuracy, final_gap

HELD_OUT = 0.1  # of the training images
CLIPPING_GAINS = 1.0  # points of accuracy that clipping must gain to be chosen, about the spread over seeds
SETTINGS = ("lr", "momentum", "server_lr", "option", "clip")  # what is searched; columns of tuned.csv


def search_runs(profile: str, seeds: int | None = None) -> list[Run]:
    """All runs of the grids of a profile, on the validation split, with at most so many seeds as each grid says."""
    spaces = tomllib.loads((FOLDER / "search.toml").read_text())
    if profile not in spaces:
        raise ValueError(f"nothing is searched at profile {profile!r}: expected one of {', '.join(spaces)}.")
    runs = []
    for space in spaces[profile]:
        base = task(profile, validation=HELD_OUT, **space["task"])
        limit = min(space["seeds"], seeds or space["seeds"])
        runs += [run for values in space["grids"] for run in _combinations(base, values, range(limit))]
    return runs


def _combinations(base: Task, values: dict, seeds) -> list[Run]:
    """Every combination of the values of one line."""
    names = [name for name in values if name != "method"]
    runs = []
    for chosen in itertools.product(*(values[name] for name in names)):
        fields = dict(zip(names, chosen))
        of_task = {name: fields.pop(name) for name in OF_TASK if name in fields}
        algorithm = METHODS[values["method"]](**fields)
        runs += grid(dataclasses.replace(base, **of_task), algorithm=algorithm, seed=seeds)
    return runs


def scores(results: list[Result]) -> pd.DataFrame:
    """Accuracy (percent, mean over seeds, NaN where one diverged) of each combination; settings have their columns."""
    rows = [{**_place(r.run), **_settings(r.run), "accuracy": final_accuracy(r)} for r in results]
    keys = ["dataset", "model", "method", *SETTINGS]
    frame = pd.DataFrame(rows, columns=[*keys, "accuracy"])
    by_combination = frame.groupby(keys, sort=False, dropna=False)["accuracy"]
    return by_combination.agg(accuracy=lambda a: a.mean(skipna=False), seeds="size").reset_index()


def _place(run: Run) -> dict:
    return {"dataset": run.task.dataset, "model": run.task.model, "method": run.algorithm.paper_name}


def _settings(run: Run) -> dict:
    """What was tried, with None for what a method does not have."""
    holders = {**vars(run.algorithm), "lr": run.task.lr, "clip": run.task.clip}
    return {name: holders.get(name) for name in SETTINGS}


def best(found: pd.DataFrame) -> pd.DataFrame:
    """The combination with the highest accuracy for each data set, model and method; clipping must gain a point."""
    finished = found.dropna(subset="accuracy")
    merit = finished["accuracy"] - CLIPPING_GAINS * finished["clip"].notna()
    ranked = finished.assign(merit=merit).sort_values("merit", ascending=False, kind="stable")
    first = ranked.groupby(["dataset", "model", "method"], sort=False).head(1)
    return first.drop(columns="merit").sort_index().reset_index(drop=True)


def is_tuned(row: dict, profile: str) -> bool:
    """Whether tuned.csv has exactly the settings of a row of `best`."""
    held = tuned(row["method"], task(profile, dataset=row["dataset"], model=row["model"]))
    return held == {name: row[name] for name in SETTINGS if not pd.isna(row[name])}


def lowest(results: list[Result]) -> list[Run]:
    """For each method of the paper's tables, the run that ends with the smallest f - f*, mean of its last quarter."""
    ends: dict[str, tuple[float, Run]] = {}
    for r in results:
        gap, method = final_gap(r, 0.25), r.run.algorithm.paper_name
        if method not in ends or gap < ends[method][0]:
            ends[method] = gap, r.run
    return [run for _, run in ends.values()]
