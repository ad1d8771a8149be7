"""A machine verdict on what the paper says: entries of paper/claims.toml, judged on results."""

import tomllib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from . import records, tables
from .protocols import Column
from .results import Result
from .runs import results_folder

ENTRIES = tomllib.loads((tables.PAPER / "claims.toml").read_text())["claim"]
COLUMNS = ("claim", "item", "statement", "paper", "ours", "spread", "verdict")


@dataclass(frozen=True)
class Verdict:
    """One judged claim; spread is the standard deviation over seeds of the difference of the two numbers in `ours`."""

    claim: str
    item: str
    statement: str
    paper: str
    ours: str
    spread: str
    verdict: str  # reproduced, not reproduced, not judged

    def __str__(self) -> str:
        paper = f"   paper: {self.paper}" if self.paper else ""
        spread = f" (+- {self.spread} over seeds)" if self.spread else ""
        return f"{self.verdict:<15} {self.statement}\n{'':<15} ours: {self.ours}{spread}{paper}"


def _accuracy(result: Result, entry: dict) -> float:
    """A run that diverged ends below every other."""
    final = tables.final_accuracy(result)
    return final if np.isfinite(final) else -np.inf


def _accuracy_at(result: Result, entry: dict) -> float:
    """Accuracy at the first evaluation at which `at_d` was uploaded."""
    return next((row["accuracy"] for row in result.rows if row["upload_d"] >= entry["at_d"]), -np.inf)


def _mean_upload(result: Result, entry: dict) -> float:
    return float(np.mean([one["upload_floats"] for r in result.rounds for one in r])) / result.d


def _clients_a_block(result: Result, entry: dict) -> float:
    """max over rounds and blocks of |clients that sent the block - S/N|."""
    n_blocks = len(result.record["blocks"]["sizes"])
    counts = [np.bincount([one["block"] for one in r], minlength=n_blocks) - len(r) / n_blocks for r in result.rounds]
    return float(np.abs(counts).max())


def _lowest_gap(result: Result, entry: dict) -> float:
    return min((row["gap"] for row in result.rows if row["gap"] is not None), default=np.inf)


QUANTITIES: dict[str, tuple[Callable, str]] = {  # quantity -> value of one run, how to write it
    "to_target_d": (lambda result, entry: tables.to_target_d(result, entry["target"]), "{:.2f} d"),
    "accuracy_at_d": (_accuracy_at, "{:.2f} %"),
    "final_accuracy": (_accuracy, "{:.2f} %"),
    "mean_upload_d": (_mean_upload, "{:.4f} d"),
    "clients_a_block": (_clients_a_block, "{:.0f}"),
    "lowest_gap": (_lowest_gap, "{:.1e}"),
    "final_gap": (lambda result, entry: tables.final_gap(result), "{:.1e}"),
}


def judge(entry: dict, results: list[Result]) -> Verdict:
    """The verdict of one entry on the results of its notebook."""
    of, text = _values(entry, entry["of"], results)
    than = np.full_like(of, entry["value"]) if "value" in entry else _values(entry, entry["than"], results)[0]
    if len(of) != len(than):
        raise ValueError(
            f"claim {entry['id']}: {len(of)} runs stand against {len(than)}: expected the same seeds on both sides."
        )
    holds = _holds(entry, float(of.mean()), float(than.mean()))
    both = [_written(text, of.mean())] + ([] if "value" in entry else [_written(text, than.mean())])
    difference = of - than if np.isfinite(of).all() and np.isfinite(than).all() else np.array([])
    spread = f"{difference.std(ddof=1):.2g}" if len(difference) > 1 else ""
    judged = results[0].run.task.profile in entry["profiles"] and not _neither(entry, of, than)
    return _verdict(entry, both, spread, holds, judged)


def judge_number(entry: dict, of: float, than: float | None, profile: str) -> Verdict:
    """The verdict of an entry whose numbers are computed and not measured on runs."""
    other = entry["value"] if than is None else than
    both = [f"{number:.3g}" for number in ([of] if than is None else [of, than])]
    return _verdict(entry, both, "", _holds(entry, of, other), profile in entry["profiles"])


def _verdict(entry: dict, both: list[str], spread: str, holds: bool, judged: bool) -> Verdict:
    word = ("reproduced" if holds else "not reproduced") if judged else "not judged"
    ours, paper = " against ".join(both), entry.get("paper", "")
    return Verdict(entry["id"], entry["item"], entry["statement"], paper, ours, spread, word)


def _neither(entry: dict, of: np.ndarray, than: np.ndarray) -> bool:
    """Whether both sides stayed below the target, so that nothing was learned that could be compared."""
    if entry["quantity"] == "final_accuracy":
        return max(of.mean(), than.mean()) < entry.get("target", -np.inf)
    return bool(np.isinf(of).any() and np.isinf(than).any() and of.mean() == than.mean())


def _written(text: str, value: float) -> str:
    return text.format(value) if np.isfinite(value) else ("never" if value > 0 else "diverged")


def _values(entry: dict, side: dict, results: list[Result]) -> tuple[np.ndarray, str]:
    """One value a seed, sorted by seed, for the runs that have the fields of `side`."""
    chosen = [r for r in results if all(_field(r, name) == value for name, value in side.items())]
    chosen.sort(key=lambda r: r.run.seed)
    if not chosen:
        raise ValueError(f"claim {entry['id']}: no run has {side}: the notebook's grid must contain it.")
    if entry["quantity"] == "best":
        return np.array([_best(entry["field"], chosen)]), "{:.3g}"
    value, text = QUANTITIES[entry["quantity"]]
    return np.array([value(r, entry) for r in chosen]), text


def _field(result: Result, name: str):
    """A field of the algorithm or of the task; "method" is the name in the paper's tables."""
    if name == "method":
        return result.run.algorithm.paper_name
    return getattr(result.run.algorithm, name, getattr(result.run.task, name, None))


def _best(field: str, results: list[Result]) -> float:
    """The value of an algorithm's field with the highest final accuracy, mean over seeds."""
    by_value: dict[float, list[float]] = {}
    for r in results:
        by_value.setdefault(getattr(r.run.algorithm, field), []).append(_accuracy(r, {}))
    return max(by_value, key=lambda value: np.mean(by_value[value]))


def _holds(entry: dict, of: float, than: float) -> bool:
    than, tolerance = than * entry.get("factor", 1), entry.get("tolerance", 0)
    if entry["relation"] == "within":
        return abs(of - than) <= tolerance + 1e-12
    return of < than - tolerance if entry["relation"] == "<" else of > than + tolerance


def claim(item: str, results: list, columns: list[Column] | None = None) -> list[Verdict]:
    """Judge all claims of one notebook, print them, and enter them into figures/<profile>/claims.csv.

    With the columns of a table, results are a list for each of them, and every claim is judged in every column, with
    that column's target and the paper's numbers.
    """
    entries = [entry for entry in ENTRIES if entry["item"] == item and entry["quantity"] != "computed"]
    if not entries:
        raise ValueError(f"claims.toml has no claim for {item!r}.")
    if columns is None:
        verdicts = [judge(entry, results) for entry in entries]
    else:
        pairs = [(_of_column(entry, column), mine) for entry in entries for column, mine in zip(columns, results)]
        verdicts = [judge(entry, mine) for entry, mine in pairs]
    return _entered(item, verdicts, (results if columns is None else results[0])[0].run.task.profile)


def claim_numbers(item: str, numbers: dict[str, float | tuple[float, float]], profile: str) -> list[Verdict]:
    """`claim` for what a notebook computes without runs: {id: number}, or {id: (of, than)} where two are compared."""
    entries = {entry["id"]: entry for entry in ENTRIES if entry["item"] == item and entry["quantity"] == "computed"}
    if entries.keys() != numbers.keys():
        raise ValueError(f"numbers were given for {', '.join(numbers)}: expected {', '.join(entries)} (claims.toml).")
    pairs = {id: value if isinstance(value, tuple) else (value, None) for id, value in numbers.items()}
    return _entered(item, [judge_number(entries[id], *pairs[id], profile) for id in entries], profile)


def _entered(item: str, verdicts: list[Verdict], profile: str) -> list[Verdict]:
    """Printed, and written into figures/<profile>/claims.csv in the place of the item's older ones."""
    print("\n".join(map(str, verdicts)))
    path = results_folder(profile) / "claims.csv"
    new = pd.DataFrame([vars(v) for v in verdicts], columns=COLUMNS)
    old = pd.read_csv(path, keep_default_na=False, dtype=str) if path.exists() else new.iloc[:0]
    merged = pd.concat([old[old["item"] != item], new]).sort_values(["item"], kind="stable")
    records.write_atomic(path, merged.to_csv(index=False).encode())
    return verdicts


def _of_column(entry: dict, column: Column) -> dict:
    """The claim for one column of a table, with what the paper prints there."""
    name = ", ".join(column.task.names)
    statement = f"{name}: {entry['statement']}"
    found = {"target": column.target, **entry, "id": f"{entry['id']}: {name}", "statement": statement}
    printed = tables.paper_values(column.paper_table, column.paper_dataset)
    model = column.paper_model or column.task.names[0]
    name, unit = {"to_target_d": ("paper_to_target_d", "d")}.get(entry["quantity"], ("paper_mean", "%"))
    sides = [printed.get((side.get("method"), model)) for side in (entry["of"], entry.get("than", {}))]
    texts = [f"{side[name]:g} {unit}" if np.isfinite(side[name]) else "never" for side in sides if side]
    return found | ({"paper": " against ".join(texts)} if texts else {})
