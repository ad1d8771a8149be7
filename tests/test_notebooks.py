"""The notebooks: form, committed outputs, refusals of the runner, and everything computed from nothing at smoke."""

import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
import pandas as pd
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from fedbcgd_lite import __main__, notebooks, records
from fedbcgd_lite.replay import replay

ROOT = Path(__file__).parent.parent
ALL = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.fixture(params=ALL, ids=lambda path: path.stem)
def notebook(request):
    return nbformat.read(request.param, as_version=4)


def code(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


# --- form -----------------------------------------------------------------------------------------------------------


def test_parameters_are_one_tagged_cell_of_commented_constants_with_profile_first(notebook):
    (cell,) = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    lines = cell.source.splitlines()
    assert lines[0].startswith('profile = "laptop"') and all(" # " in line for line in lines)


def test_cells_are_few_and_short_and_define_no_function(notebook):
    lengths = [len(cell.source.splitlines()) for cell in code(notebook)]
    assert 15 <= len(notebook.cells) <= 25 and statistics.median(lengths) <= 7
    assert not any(line.lstrip().startswith("def ") for cell in code(notebook) for line in cell.source.splitlines())


def test_title_is_a_question(notebook):
    assert notebook.cells[0].source.startswith("# ") and notebook.cells[0].source.endswith("?")


def test_no_bar_of_a_norm_ends_a_cell_of_a_table(notebook):
    """In a Markdown table \\| is a single bar, in a formula as well: norms are \\lVert and \\rVert there."""
    lines = [line for cell in notebook.cells if cell.cell_type == "markdown" for line in cell.source.splitlines()]
    assert not [line for line in lines if line.startswith("|") and r"\|" in line]


def test_committed_outputs_are_of_one_complete_run_without_errors(notebook):
    assert [cell.execution_count for cell in code(notebook)] == [*range(1, len(code(notebook)) + 1)]
    outputs = [output for cell in code(notebook) for output in cell.outputs]
    assert not [o for o in outputs if o.output_type == "error" or o.get("name") == "stderr"]
    assert set(notebook.metadata) == {"kernelspec", "language_info"} and notebook.metadata.kernelspec.name == "python3"


def test_something_is_checked_in_every_notebook(notebook):
    checked = [cell for cell in code(notebook) if "nbval-check-output" in cell.metadata.get("tags", [])]
    assert checked and all(cell.outputs for cell in checked)


def test_committed_choice_of_hyperparameters_is_the_one_that_the_package_holds():
    outputs = [
        o for cell in code(nbformat.read(ROOT / "notebooks/hyperparameters.ipynb", as_version=4)) for o in cell.outputs
    ]
    printed = "".join(output.get("text", "") for output in outputs)
    held, chosen = re.search(r"(\d+) of (\d+) choices stand in tuned.csv", printed).groups()
    assert held == chosen and int(chosen) >= 40


# --- outputs --------------------------------------------------------------------------------------------------------


HALVES = ALL[::2], ALL[1::2]  # run at the same time: a notebook mostly waits for its imports


def both(tmp_path, words) -> list[Path]:
    """Run `python <words(half)>` for both halves of the notebooks, with results of their own; returns the folders."""
    folders = [tmp_path / "first", tmp_path / "second"]
    fixed = {"PROGRESS": "0", "MPLBACKEND": "agg", "FEDBCGD_JOBS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, *words(half)],
            env={**os.environ, **fixed, "FEDBCGD_RESULTS": str(folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for half, folder in zip(HALVES, folders)
    ]
    with ThreadPoolExecutor(2) as pool:  # so that no pipe is full
        printed = list(pool.map(lambda process: process.communicate()[0], processes))
    assert [process.returncode for process in processes] == [0, 0], "\n".join(text[-6000:] for text in printed)
    return folders


def test_committed_outputs_and_tables_follow_from_the_committed_records(tmp_path):
    """nbval at laptop: the checked cells print what is committed, and every CSV file comes out as it is committed."""
    committed = ROOT / "figures" / "laptop"
    for name in ("first", "second"):
        shutil.copytree(committed / "records", tmp_path / name / "laptop" / "records")
    options = ["-q", "-p", "no:cacheprovider", "-c", os.devnull, "--nbval-lax", "--rootdir", str(ROOT)]
    folders = both(tmp_path, lambda half: ["-m", "pytest", *options, *map(str, half)])
    judged = []
    for folder in folders:
        for path in (folder / "laptop").glob("*.csv"):
            if path.name == "claims.csv":
                judged.append(pd.read_csv(path, keep_default_na=False, dtype=str))
            else:
                assert path.read_text() == (committed / path.name).read_text(), path.name
        assert len([*(folder / "laptop" / "records").iterdir()]) == len([*(committed / "records").iterdir()])
    merged = pd.concat(judged).sort_values("item", kind="stable").to_csv(index=False)
    assert merged == (committed / "claims.csv").read_text()
    made = {path.name for folder in folders for path in (folder / "laptop").glob("*.csv")}
    assert made == {path.name for path in committed.glob("*.csv")}


def test_everything_is_computed_from_nothing_at_smoke(tmp_path):
    """Every notebook runs at the smallest size without a record, and writes its figure, its table and its verdicts."""
    options = ["figures", "--profile", "smoke", "--seeds", "1", "--only"]
    folders = both(tmp_path, lambda half: ["-m", "fedbcgd_lite", *options, ",".join(path.stem for path in half)])
    written = {path.name for folder in folders for path in (folder / "smoke").iterdir()}
    without_a_figure = {"00_one_page", "your_own_model"}
    for item in {path.stem for path in ALL} - without_a_figure:
        assert {f"{item}.png", f"{item}.pdf", f"{item}.csv"} <= written
    assert "claims.csv" in written
    assert sum(len([*(folder / "smoke" / "executed").iterdir()]) for folder in folders) == len(ALL)


def test_first_rounds_of_committed_records_are_computed_again_alike():
    """`make replay` on one record of each method: they still describe the code."""
    paths = sorted((ROOT / "figures" / "laptop" / "records").glob("*-s0-*.json"))
    one_each = list({path.name.rpartition("-s0-")[0]: path for path in paths}.values())
    assert len(one_each) >= 5 and replay(one_each, "cpu") == {}


@pytest.mark.parametrize("what", ["accuracy", "upload_d", "test_loss", "rounds"])
def test_replay_reports_a_record_that_the_code_does_not_make(what, tmp_path):
    """A record with a valid digest and one wrong number (or one other client) is named, with the number."""
    path = min((ROOT / "figures" / "laptop" / "records").glob("fedavg-s0-*.json"))
    record = records.read_record(path)
    if what == "rounds":
        record["rounds"][0][0][0] += 1
    else:
        record["rows"][what][1] += 3
    records.write_record(tmp_path / path.name, record)
    (difference,) = replay([tmp_path / path.name], "cpu", jobs=1).values()
    assert ("other clients" if what == "rounds" else f"{what} in round 1 was") in difference


# --- what the runner refuses ----------------------------------------------------------------------------------------

KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}
PARAMETERS = new_code_cell('profile = "laptop"\ndevice = "cpu"', metadata={"tags": ["parameters"]})


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Write a notebook of the given cells as tmp_path/notebooks/trial.ipynb and point the runner there."""
    monkeypatch.setattr(notebooks, "FOLDER", tmp_path / "notebooks")
    monkeypatch.setenv("FEDBCGD_RESULTS", str(tmp_path / "figures"))
    (tmp_path / "notebooks").mkdir()

    def write(*cells):
        content = new_notebook(cells=list(cells), metadata={"kernelspec": KERNEL})
        nbformat.write(content, tmp_path / "notebooks" / "trial.ipynb")

    return write


@pytest.mark.parametrize("count", [0, 2])
def test_not_exactly_one_parameters_cell(make, count, capsys):
    make(*[new_code_cell("profile = 1", metadata={"tags": ["parameters"]}) for _ in range(count)])
    assert __main__.main(["figures"]) == 1
    assert f"trial.ipynb has {count} cells tagged 'parameters': exactly one" in capsys.readouterr().err


def test_unknown_parameter(make, capsys):
    make(PARAMETERS)
    assert __main__.main(["figures", "--seeds", "2"]) == 1
    assert "has no parameter seeds: expected names among profile, device" in capsys.readouterr().err


def test_failing_cell_gives_a_nonzero_code_and_keeps_the_notebook(make, tmp_path, capsys):
    make(PARAMETERS, new_code_cell("print(6 * 7)"), new_code_cell("1 / 0"), new_code_cell("print('never')"))
    assert __main__.main(["figures"]) == 1
    kept = tmp_path / "figures" / "laptop" / "executed" / "trial.ipynb"
    message = capsys.readouterr().err
    assert "trial failed: ZeroDivisionError" in message and str(kept) in message and "Traceback" not in message
    assert "42" in kept.read_text()


@pytest.mark.parametrize("end", ["import os; os._exit(0)", "get_ipython().ask_exit()"])
def test_notebook_that_ends_early_is_not_taken_for_a_finished_one(make, end, tmp_path, capsys):
    make(PARAMETERS, new_code_cell(end), new_code_cell("import time; time.sleep(1)"), new_code_cell("1"))
    assert __main__.main(["figures"]) == 1
    assert str(tmp_path / "figures" / "laptop" / "executed" / "trial.ipynb") in capsys.readouterr().err


def test_results_that_cannot_be_written_are_refused_before_anything_runs(make, tmp_path, monkeypatch, capsys):
    make(PARAMETERS)
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("FEDBCGD_RESULTS", str(tmp_path / "file"))
    assert __main__.main(["figures"]) == 2
    assert "could not write" in capsys.readouterr().err


INTERRUPTED = """
import pathlib, signal, sys
from fedbcgd_lite import __main__, notebooks, records
from fedbcgd_lite.replay import replay
signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs inherit it ignored
notebooks.FOLDER = pathlib.Path(sys.argv[1])
sys.exit(__main__.main(["figures"]))
"""


def test_ctrl_c_ends_cleanly_with_its_own_exit_code(make, tmp_path):
    """One sentence and no traceback, although the kernel was in the middle of a cell."""
    make(PARAMETERS, new_code_cell(f"open({str(tmp_path / 'begun')!r}, 'w').close(); import time; time.sleep(60)"))
    words = [sys.executable, "-c", INTERRUPTED, str(tmp_path / "notebooks")]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.monotonic() + 60
    while not (tmp_path / "begun").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    _, printed = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the same command goes on from there" in printed and "Traceback" not in printed


@pytest.mark.parametrize(
    ("words", "exit_code", "message"),
    [
        (["--profile", "desktop"], 2, "unknown profile 'desktop': expected one of laptop, smoke, paper"),
        (["--only", "fig99"], 1, "no notebook 'fig99': expected one of 00_one_page"),
        (["--device", "tpu"], 2, "unknown device 'tpu'"),
    ],
)
def test_bad_choices_are_answered_in_one_sentence(words, exit_code, message, capsys):
    assert __main__.main(["figures", *words]) == exit_code
    captured = capsys.readouterr()
    assert message in captured.err and "Traceback" not in captured.err and captured.out == ""


@pytest.mark.parametrize("words", [["--seeds", "0"], ["--seeds", "two"], ["--jobs", "-1"]])
def test_counts_must_be_whole_numbers(words, capsys):
    with pytest.raises(SystemExit, match="2"):
        __main__.main(["figures", *words])
    assert f"'{words[1]}' was given: expected a whole number of at least 1" in capsys.readouterr().err


def test_status_and_replay_say_when_there_is_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FEDBCGD_RESULTS", str(tmp_path))
    assert __main__.main(["status"]) == 0 and "0 records" in capsys.readouterr().out
    assert __main__.main(["replay"]) == 2 and "there are no records" in capsys.readouterr().err
