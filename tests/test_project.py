"""The repository keeps its own promises: dependencies, layers, the README's commands and numbers."""

import ast
import csv
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import fedbcgd_lite
from fedbcgd_lite import claims
from fedbcgd_lite.blocks import partition

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "fedbcgd_lite"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
README = (ROOT / "README.md").read_text()
CLAIMS = tomllib.loads((PACKAGE / "paper" / "claims.toml").read_text())["claim"]


def test_environment_and_pyproject_agree():
    """conda gets Python in the version that pyproject asks for, and everything else from pyproject."""
    dependencies = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    python = next(d for d in dependencies if isinstance(d, str) and d.startswith("python=")).removeprefix("python=")
    assert PYPROJECT["project"]["requires-python"] == f">={python}"
    assert {"pip", f"python={python}"} == {d for d in dependencies if isinstance(d, str)}
    assert dependencies[-1] == {"pip": ["--constraint constraints.txt", "--editable .[all]"]}


def test_extra_all_is_all_extras_and_constraints_pin_every_direct_dependency():
    extras = dict(PYPROJECT["project"]["optional-dependencies"])
    (everything,) = extras.pop("all")
    assert sorted(everything.partition("[")[2].rstrip("]").split(",")) == sorted(extras)
    pinned = {line.partition("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines()}
    wanted = [*PYPROJECT["project"]["dependencies"], *(d for group in extras.values() for d in group)]
    assert not [d for d in wanted if re.match(r"[\w-]+", d)[0].lower() not in pinned]


def test_version_is_the_same_everywhere():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert PYPROJECT["project"]["version"] == fedbcgd_lite.__version__ == citation["version"]
    assert citation["preferred-citation"]["doi"] == "10.1145/3664647.3681094"


LAYERS = {  # module or folder: what it may import from the package
    "checks": set(),
    "rng": set(),
    "blocks": {"paper_blocks"},
    "paper_blocks": set(),
    "models": set(),
    "datasets": {"rng"},
    "graphs": set(),
    "theory": set(),
    "machine": {"checks"},
    "augment": {"checks"},
    "partitioners": {"checks", "rng"},
    "data": {"augment", "datasets", "rng"},
    "payloads": set(),
    "codecs": {"checks", "payloads"},
    "messages": {"blocks"},
    "ledger": {"blocks"},
    "records": set(),
    "states": {"checks", "payloads", "records"},
    "flat": {"blocks"},
    "algorithms": {"blocks", "checks", "codecs", "messages"},
    "problem": {"checks", "flat", "rng"},
    "local": {"problem"},
    "convex": {"checks", "data", "partitioners", "problem", "rng"},
    "engine": {"algorithms", "blocks", "codecs", "flat", "graphs", "local", "machine", "problem", "rng"},
}


@pytest.mark.parametrize("module", LAYERS)
def test_lower_layers_know_nothing_of_higher_ones(module):
    file = PACKAGE / f"{module}.py"
    level, files = (1, [file]) if file.exists() else (2, [*(PACKAGE / module).glob("*.py")])
    imports = [node for path in files for node in ast.walk(ast.parse(path.read_text()))]
    imports = [node for node in imports if isinstance(node, ast.ImportFrom)]
    above = [(node.module or "").removeprefix("fedbcgd_lite.") for node in imports if node.level == 0]
    assert {name for name in above if (PACKAGE / f"{name}.py").exists()} <= LAYERS[module]
    imports = [node for node in imports if node.level == level]
    names = [[node.module] if node.module else [a.name for a in node.names] for node in imports]
    assert files and {name for found in names for name in found} <= LAYERS[module]


def test_only_the_reporting_modules_import_pandas_and_matplotlib():
    heavy = re.compile(r"^\s*(?:import|from) (?:pandas|matplotlib|seaborn)", re.M)
    users = {path.stem for path in PACKAGE.glob("*.py") if heavy.search(path.read_text())}
    assert users <= {"tables", "figures", "diagrams", "search", "audit", "claims", "counts", "lessons", "__main__"}


def test_the_module_alone_needs_no_plotting_packages():
    """`pip install -e .` without extras: methods and runs work, and only the reports ask for more."""
    blocked = (
        "import sys; sys.modules.update(dict.fromkeys(['pandas', 'matplotlib', 'seaborn', 'papermill', 'nbformat', "
        "'scipy', 'sklearn']));"
    )
    code = f"{blocked} import fedbcgd_lite as fb; fb.grid(fb.task('smoke'), algorithm=fb.FedBCGD())"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_code_is_formatted_and_linted():
    for words in (["format", "--check"], ["check"]):
        run = subprocess.run([sys.executable, "-m", "ruff", *words, "."], cwd=ROOT, capture_output=True, text=True)
        assert run.returncode == 0, run.stdout


def test_claims_are_well_formed():
    ids = [entry["id"] for entry in CLAIMS]
    assert len(ids) == len(set(ids))
    for entry in CLAIMS:
        assert entry["quantity"] in {*claims.QUANTITIES, "best", "computed"}, entry["id"]
        assert entry["relation"] in ("<", ">", "within"), entry["id"]
        assert (ROOT / "notebooks" / f"{entry['item']}.ipynb").exists() and ("than" in entry) != ("value" in entry)
        assert entry["statement"].endswith(".") and entry["place"]


def test_readme_shell_commands_exist():
    """Each `make` line of the README is a target that make knows."""
    lines = [
        line.split("#")[0].strip()
        for block in re.findall(r"```sh\n(.*?)```", README, re.S)
        for line in block.splitlines()
    ]
    targets = [line.split()[1:] for line in lines if line.startswith("make")]
    assert ["figures"] in targets and ["test"] in targets
    for words in targets:
        subprocess.run(["make", "-n", *words], cwd=ROOT, check=True, capture_output=True)


@pytest.mark.parametrize("block", re.findall(r"```python\n(.*?)```", README, re.S))
def test_readme_python_runs(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "README.md", "exec"), {})


def test_readme_table_has_a_row_for_each_notebook_with_its_verdicts():
    """Verdicts in the README are those of figures/laptop/claims.csv."""
    with (ROOT / "figures/laptop/claims.csv").open(newline="") as file:
        rows = [*csv.DictReader(file)]
    assert {row["claim"].partition(":")[0] for row in rows} == {entry["id"] for entry in CLAIMS}
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        (line,) = [line for line in README.splitlines() if line.startswith(f"| [`{path.stem}`]")]
        verdicts = [row["verdict"] for row in rows if row["item"] == path.stem]
        open_ = verdicts.count("not judged")
        told = f"{verdicts.count('reproduced')} of {len(verdicts) - open_} reproduced" if verdicts else "-"
        assert line.split("|")[-2].strip() == told + (f", {open_} not judged" if open_ else "")


def test_readme_numbers_are_those_of_the_verdicts():
    """Every accuracy and every upload with two decimals in the README stands in figures/laptop/claims.csv."""
    judged = (ROOT / "figures/laptop/claims.csv").read_text()
    numbers = re.findall(r"\d+\.\d\d (?:d|%)", README.replace("\n", " "))
    assert len(numbers) >= 8 and not [number for number in numbers if number not in judged]


def test_readme_speeds_are_those_of_the_benchmark():
    """The table of the README is the committed table of two cores."""
    with (ROOT / "tests/benchmarks/avx512-2-cores.csv").open(newline="") as file:
        rows = {(row["work"], row["engine"]): row for row in csv.DictReader(file)}
    for work in ("W1", "W2", "W3"):
        (line,) = [line for line in README.splitlines() if line.startswith(f"| {work}: ")]
        plain, *ratios = [cell.strip() for cell in line.split("|")[2:-1]]
        assert float(plain.removesuffix(" s")) == float(rows[work, "plain loop"]["seconds_per_round"])
        engines = ("FedAvg", "FedBCGD", "FedAvg, bf16", "FedAvg, 2 runs at a time")
        assert [float(ratio) for ratio in ratios] == [float(rows[work, engine]["ratio"]) for engine in engines]


def test_readme_costs_of_the_methods_are_those_of_the_benchmark():
    """FedBCGD+, SCAFFOLD, FedDC and the three compressed methods beside FedAvg, as far as the digits go."""
    with (ROOT / "tests/benchmarks/avx512-2-cores-methods.csv").open(newline="") as file:
        ratio = {row["engine"]: float(row["ratio"]) for row in csv.DictReader(file)}
    (sentence,) = re.findall(r"A round of W2 costs ([^;]+);", README.replace("\n", " "))
    compressed = max(ratio[name] for name in ("TOP-k", "FedPAQ", "QSGD+FedBCGD"))
    expected = [*(ratio[name] for name in ("FedBCGD+", "SCAFFOLD", "FedDC")), compressed]
    assert re.findall(r"\d\.\d\d", sentence) == [f"{number:.2f}" for number in expected]


def test_help_lists_the_targets():
    listed = subprocess.run(["make"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for target in "setup figures smoke test lab status replay notebooks bench gpu-check clean".split():
        assert f"make {target}" in listed


def test_embedded_paper_numbers_are_the_printed_ones():
    """Three cells of the paper's tables, and the weights that its Table 7 prints for LeNet-5 (biases are ours)."""
    with (PACKAGE / "paper" / "tables.csv").open(newline="") as file:
        rows = {(r["table"], r["method"], r["dataset"], r["model"]): r for r in csv.DictReader(file)}
    assert rows["2", "FedBCGD", "CIFAR100", "LeNet-5"]["floats_to_target_d"] == "77"
    assert rows["3", "FedAvg", "CIFAR10", "ResNet-18"]["mean"] == "89.0"
    assert rows["6", "QSGD+FedBCGD+", "CIFAR10", "LeNet-5"]["std"] == "0.3"
    model = fedbcgd_lite.models.LeNet5()
    biases = {"conv1": 64, "conv2": 64, "fc1": 384, "fc2": 192}
    assert [s - b for s, b in zip(partition(model, "paper").sizes, biases.values())] == [4800, 102400, 614400, 73728]
