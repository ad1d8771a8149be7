"""Executing the notebooks: papermill, with refusals where a notebook could be taken for one that ran and did not."""

import logging
import os
import shutil
import sys
from contextlib import contextmanager
from pathlib import Path

import nbformat
import papermill
from nbclient.exceptions import DeadKernelError
from papermill.exceptions import PapermillException

from . import records
from .experiments import OnlyPlanned
from .runs import Run, results_folder

FOLDER = Path(__file__).parent.parent / "notebooks"


class NotebookError(Exception):
    """A notebook that cannot be run as asked, or that failed; the message says which and where its copy lies."""


def names() -> list[str]:
    """All notebooks, in the order of their names."""
    return sorted(path.stem for path in FOLDER.glob("*.ipynb"))


def parameters(path: Path) -> tuple[str, ...]:
    """The names of a notebook's parameters."""
    try:
        notebook = nbformat.read(path, as_version=4)
    except FileNotFoundError:
        raise NotebookError(f"there is no notebook {path.stem!r}: expected one of {', '.join(names())}.") from None
    except Exception as error:  # nbformat raises many kinds
        raise NotebookError(f"{path} is no valid notebook ({error}).") from error
    tagged = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    if len(tagged) != 1:
        raise NotebookError(f"{path} has {len(tagged)} cells tagged 'parameters': exactly one is expected.")
    return tuple(papermill.inspect_notebook(str(path)))


def execute(name: str, profile: str, given: dict) -> Path:
    """Run one notebook with the given parameters into figures/<profile>/executed/; returns the executed copy."""
    source, target = FOLDER / f"{name}.ipynb", results_folder(profile).resolve() / "executed" / f"{name}.ipynb"
    known = parameters(source)
    unknown = [parameter for parameter in given if parameter not in known]
    if unknown:
        raise NotebookError(f"{source} has no parameter {', '.join(unknown)}: expected names among {', '.join(known)}.")
    records.check_writable(target.parent)
    target.unlink(missing_ok=True)
    try:
        shown = {"progress_bar": False, "stderr_file": sys.stderr, "extra_arguments": ["--log-level=CRITICAL"]}
        papermill.execute_notebook(source, target, parameters=given, kernel_name="python3", cwd=FOLDER, **shown)
    except KeyboardInterrupt:
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # which else prints the cell's traceback at exit
        raise
    except (PapermillException, DeadKernelError) as error:
        last = str(error).strip().splitlines()[-1]
        raise NotebookError(f"{name} failed: {last}\nThe notebook as far as it ran is kept in {target}") from error
    code = [cell for cell in nbformat.read(target, as_version=4).cells if cell.cell_type == "code"]
    not_run = [cell for cell in code if cell.source.strip() and cell.execution_count is None]
    if not_run:
        raise NotebookError(
            f"{name} ended early: {len(not_run)} code cells were not run\nThe notebook as far as it ran is kept in "
            f"{target}"
        )
    return target


def planned(name: str, given: dict) -> list[Run]:
    """The runs of a notebook, found by executing its code up to the grid, which is not computed."""
    notebook, space = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4), {}
    if not any(grid in cell.source for cell in notebook.cells for grid in ("run_grid", "run_columns")):
        return []
    with _environment(FEDBCGD_DRY="1"):
        for cell in notebook.cells:
            if cell.cell_type != "code":
                continue
            try:
                exec(compile(cell.source, name, "exec"), space)
            except OnlyPlanned as plan:
                return plan.runs
            if "parameters" in cell.metadata.get("tags", []):
                space.update(given)
    return []


@contextmanager
def _environment(**variables: str):
    """Environment variables inside the block."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def publish(name: str, executed: Path) -> None:
    """Put an executed copy in the place of the notebook itself, without what papermill adds."""
    notebook = nbformat.read(executed, as_version=4)
    notebook.metadata = {key: notebook.metadata[key] for key in ("kernelspec", "language_info")}
    for cell in notebook.cells:
        cell.metadata = {"tags": cell.metadata["tags"]} if cell.metadata.get("tags") else {}
    nbformat.write(notebook, executed)
    shutil.copyfile(executed, FOLDER / f"{name}.ipynb")
