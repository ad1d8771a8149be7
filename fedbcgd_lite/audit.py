"""What the paper prints beside what comes out when it is computed: a table for each part of it."""

import dataclasses

import numpy as np
import pandas as pd

from . import theory
from .algorithms import FedBCGD, FedBCGDPlus, FedBCGDPlusScript
from .blocks import Blocks, partition
from .convex import ConvexTask
from .counts import full_size, layer_table
from .machine import Machine
from .partitioners import DirichletDraws
from .simulate import simulate
from .tables import PAPER

HEADS = ("where", "printed", "computed", "here")
COLUMN = ["table", "dataset", "model"]  # what tells the columns of Tables 2 to 6 apart


def _table(rows: list[tuple], heads: tuple[str, ...] = HEADS) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=heads).set_index(heads[0])


def theorem1(K: int, M: int, T: int, lam: float) -> pd.DataFrame:
    """Theorem 1 and its proof (Section 4.1, Appendix D) at these numbers of clients and steps, and this momentum."""
    q, noisy = 1 - K / M, {"beta": 1.0, "K": K, "M": M, "T": T, "lam": 0}
    c1_G = theory.thm1_c1(sigma=0, G=1, **noisy) * K / q
    c1_sigma = theory.thm1_c1(sigma=1, G=0, **noisy) * K * T
    c3_sigma = theory.thm1_c3(sigma=1, G=0, **noisy) * T
    one, eighth = theory.thm1_bracket([1.0, 1 / 8], K, M, lam)
    promise = theory.thm1_sc_statement(D0sq=10, R=1, mu=1, beta=10, sigma=0, G=0, K=1, M=1, T=1, lam=0.99)
    statement, rederived = (_in_tenths(f, K, M, T, lam) for f in (theory.thm1_gc_statement, theory.thm1_gc_rederived))
    printed, exact = (f(2, 5, 0, 10) for f in (theory.sampling_paper_rhs, theory.sampling_second_moment))
    umax, nc_umax = (f(K=K, M=M, lam=lam) for f in (theory.thm1_step_umax, theory.thm1_nc_step_umax))
    return _table(
        [
            (
                "constants",
                "128 G², 32 σ² in the statement",
                f"{c1_G:.0f} G², {c1_sigma:.0f} σ² in the proof",
                "the proof's",
            ),
            ("a constant of Appendix D", "3702 in one line", f"{c3_sigma:.0f} in its neighbours", "3072"),
            ("step limits", "1/β and 1/(8β)", f"bracket {one:.0f} and {eighth:.1f}; 1/4 at {umax:.4f}/β", "1/(50β)"),
            (
                "rate exp(-αμR/β)",
                f"{promise:.1e} after a round",
                f"best of all steps: {_best_step():.1f}",
                "exp(-μR/(50β))",
            ),
            ("general convex, units", "a bound of f", f"× {statement:.2g} with x in tenths", f"× {rederived:.2g}"),
            ("non-convex step", "1/(16β)", f"{nc_umax:.4f}/β", "the computed one"),
            ("sampling lemma, M = 5, K = 2", f"{printed:.2f}", f"{exact:.2f}", "the exact moment"),
        ]
    )


def _best_step() -> float:
    """The least f - f* of sum_k k x_k^2/2, k = 1..10, one gradient step from x = (1, ..., 1)."""
    k = np.arange(1, 11)
    return min((k * (1 - step * k) ** 2).sum() / 2 for step in np.linspace(0, 0.4, 4001))


def _in_tenths(bound, K: int, M: int, T: int, lam: float) -> float:
    """A bound of f, which stays what it is when x is measured in tenths, over itself."""
    world = {"R": 100, "K": K, "M": M, "T": T, "lam": lam}
    return bound(d0=100.0, beta=1e-2, sigma=0.1, G=0.1, **world) / bound(d0=1.0, beta=1.0, sigma=1.0, G=1.0, **world)


def theorem2(K: int, M: int, T: int) -> pd.DataFrame:
    """Theorem 2, and what Section 4 says of the number of blocks and of floats."""
    few = np.array([1, M])
    stated, proved = (f(mu=1.0, beta=1.0, K=few, M=M) for f in (theory.thm2_rate_literal, theory.thm2_rate))
    steps = (10 / (15 * 5)) / (K / (15 * M))  # S/(15 mu N) over K/(15 mu M), with S = 10 and N = 5
    everybody = {"sigma": 0.0, "G": 1.0, "mu": 0.01, "beta": 1.0, "K": M, "T": T, "lam": 0, "eps": 1e-6}
    rounds = theory.fedbcgd_rounds_sc(**everybody), theory.fedbcgd_rounds_sc_from_theorem(M=M, **everybody)
    best, *more = (theory.fedbcgdplus_sc(0.01, 1.0, M, n, n, 0.01) for n in (10, 20, 40))
    return _table(
        [
            (
                "exponent",
                "M/(30K) in the statement",
                f"with 1 of {M} clients {stated[0] / stated[1]:.0f} times the rate of all",
                f"K/(30M): {proved[0] / proved[1]:.2f} times",
            ),
            ("step", "S/(15μN)", f"{steps:.0f} times K/(15μM)", "K/(15μM)"),
            ("rounds of FedBCGD, K = M", f"{rounds[0]:.1e}", f"{rounds[1]:.1e} from Theorem 1", "both are functions"),
            (
                "N = sqrt(β/μ) = 10 blocks",
                f"{best:.0f} d",
                f"{more[0]:.0f} d with 20, {more[1]:.0f} d with 40",
                "any N",
            ),
            ("vectors of FedBCGD+", "left out of Table 1", f"{theory.TABLE1[-1].vectors}", "count_factor=True"),
        ]
    )


def readings(rounds: int = 150) -> pd.DataFrame:
    """FedBCGD+ as the text can be read (Section 3.2, Appendix E): f - f*, and c against the mean of the c_i.

    Twenty clients, ridge regression with 40 weights, half of the clients a round, four blocks and a shared one.
    """
    task = ConvexTask(dataset="synthetic:1", model="ridge", n_clients=20, batch_size=20, rounds=rounds, lr=0.5)
    plus = FedBCGDPlus(Blocks(sizes=(8,) * 4, shared=8), momentum=0)
    fields = {"here": {}, "signs of Eq. (4)": {"sign": -1}, "shared part of Eq. (5)": {"shared_factor": 1 / 4}}
    fields |= {"factor K of Appendix E": {"block_factor": 2.5}, "all of c_i is overwritten": {"full": True}}
    methods = {name: dataclasses.replace(plus, **changed) for name, changed in fields.items()}
    methods["the authors' script"] = FedBCGDPlusScript(plus.blocks, momentum=0)
    problem, rows = task.problem(0), []
    for name, method in methods.items():
        run = simulate(problem, method, task, 0, machine=Machine(chunk=10))
        mean = sum(client["c_i"] for client in run.clients.values()) / task.n_clients
        away = float((run.server["c"] - mean).norm() / mean.norm())
        rows.append((name, f"{run.rows[-1]['gap']:.1e}", f"{away:.0e}"))
    return _table(rows, ("reading", "f - f*", "c against mean c_i"))


def paper_tables(values: str = "floats_to_target_d") -> pd.DataFrame:
    """What Tables 2 to 6 print, floats or "mean" (percent): a row a column of the tables and a column a method."""
    paper = pd.read_csv(PAPER / "tables.csv")
    return paper.pivot_table(index=COLUMN, columns="method", values=values, sort=False)


def experiments() -> pd.DataFrame:
    """Sentences of Section 5 against the numbers of Tables 2 to 6."""
    floats, mean = paper_tables(), paper_tables("mean")
    sent = pd.read_csv(PAPER / "tables.csv").dropna(subset="floats_to_target_d")
    reached = sent[np.isfinite(sent["floats_to_target_d"])]
    over = reached[reached["floats_to_target_d"] > reached["budget_d"]]
    short = reached[reached["mean"] < reached["target_acc"]]
    faster, higher = floats["FedBCGD+"] < floats["FedBCGD"], mean["FedBCGD+"] > mean["FedBCGD"]
    beaten = mean[mean["FedBCGD"] < mean["Centralised SGD"]].reset_index()
    older = floats[[name for name in floats.columns if "FedBCGD" not in name]]
    behind = older[older.min(axis=1) < floats["FedBCGD"]].idxmin(axis=1).rename("first").reset_index()
    best = sent.groupby(COLUMN)["mean"].transform("max")
    bold = sent[(sent["bold_acc"] == 1) & (sent["mean"] < best)]
    lenet, again = (floats.loc[table, "CIFAR100", "LeNet-5"] for table in (2, 6))
    gain = lenet["FedAvg"] / lenet["FedBCGD"]
    passes = FedBCGDPlus().passes(5) / FedBCGD().passes(5)
    return _table(
        [
            ("LeNet-5, CIFAR-100, FedAvg over FedBCGD", "7.3×", f"{gain:.2f}×"),
            ("a budget of 1000 d", "for all", _listed(over, "{method}, {model}: {floats_to_target_d:.0f} d")),
            ("floats to a target", "if reached", _listed(short, "Table {table}, {method}: {mean} < {target_acc}")),
            ("FedBCGD+ is faster than FedBCGD", "said of all", f"in {faster.sum()} of {len(faster)} columns"),
            (
                "FedBCGD+ ends no higher than FedBCGD",
                "said of all",
                f"higher in {higher.sum()} of {len(higher)} columns",
            ),
            (
                "FedBCGD ends above centralised SGD",
                "said of all",
                "not in " + _listed(beaten, "Table {table}, {model}"),
            ),
            (
                "FedBCGD is faster than older methods",
                "said of all",
                "not in " + _listed(behind, "Table {table}, {model} ({first})"),
            ),
            ("bold is the best of its column", "in all", _listed(bold, "Table {table}, {dataset}: {mean} is not")),
            ("ViT: 5.8 d with N = 6", "whole rounds", f"{5.8 * 6:.1f} rounds of d/6, {5.8 * 5:.0f} of d/5"),
            ("S = N K, with S = 10", "assumed", f"K = {10 / 6:.2f} with N = 6, {10 / 20} with N = 20"),
            ("gradients of FedBCGD+ in a round", "not mentioned", f"{passes:.1f} times FedBCGD's"),
            ("one setting in Tables 2 and 6", f"FedBCGD {lenet['FedBCGD']:.0f} d", f"{again['FedBCGD']:.0f} d"),
        ],
        HEADS[:3],
    )


def _listed(rows: pd.DataFrame, text: str) -> str:
    return "; ".join(text.format(**row) for row in rows.to_dict("records"))


def parameters() -> pd.DataFrame:
    """Sums of Tables 7 to 11 and of the layers, and the upload that is booked beside the largest one (units of d)."""
    known = [("lenet5", 10), ("vgg11_table8", 100), ("resnet18", 10), ("vgg19", 100), ("vit_base", 200)]
    rows = {}
    for model, classes in known:
        blocks = partition(full_size(model, classes), "paper")
        row = layer_table(model, classes)[["printed", "parameters"]].sum().astype(int).to_dict()
        rows[model] = row | {"booked (d)": round(1 / blocks.n_blocks, 3), "largest (d)": round(blocks.max_upload_d, 3)}
    return pd.DataFrame.from_dict(rows, orient="index")


def script() -> pd.DataFrame:
    """What can be computed of the authors' script with code of our own: its partition of data and of LeNet-5."""
    labels = np.repeat(np.arange(10), 5000)  # as CIFAR-10 has them
    held = np.bincount(np.concatenate(DirichletDraws(0.6).split(labels, 100, 42)), minlength=len(labels))
    authors, paper = (partition(full_size("lenet5", 10), name).mean_upload_d for name in ("authors", "paper"))
    return _table(
        [
            ("images of CIFAR-10 that nobody holds", "none", f"{(held == 0).mean():.1%}"),
            ("images that several clients hold", "none", f"{(held > 1).mean():.1%}"),
            ("mean upload with LeNet-5", f"{paper:.3f} d from Table 7", f"{authors:.3f} d"),
        ],
        HEADS[:3],
    )
