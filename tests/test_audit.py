"""The audit: what is printed against what is computed."""

import numpy as np

from fedbcgd_lite import audit


def test_theory_tables_say_what_the_functions_say():
    found = audit.theorem1(K=2, M=100, T=50, lam=0.8)["computed"]
    assert found["constants"] == "32 G², 64 σ² in the proof" and found["a constant of Appendix D"].startswith("3072")
    assert found["rate exp(-αμR/β)"] == "best of all steps: 3.0" and found["sampling lemma, M = 5, K = 2"] == "0.75"
    assert audit.theorem1(K=2, M=100, T=50, lam=0.8)["here"]["general convex, units"] == "× 1"
    second = audit.theorem2(K=2, M=100, T=50)["computed"]
    assert (
        second["step"] == "100 times K/(15μM)" and second["exponent"] == "with 1 of 100 clients 1 times the rate of all"
    )


def test_sentences_of_section_5_against_the_printed_tables():
    found = audit.experiments()["computed"]
    assert found["LeNet-5, CIFAR-100, FedAvg over FedBCGD"] == "7.25×"
    assert found["a budget of 1000 d"] == "FedDC, ResNet-18: 1985 d"
    assert found["floats to a target"] == "Table 5, FedDC: 85.8 < 88"
    assert found["FedBCGD+ is faster than FedBCGD"] == "in 10 of 14 columns"
    assert found["FedBCGD ends above centralised SGD"] == "not in Table 3, VGG-19"
    assert found["FedBCGD is faster than older methods"] == "not in Table 3, VGG-11 (SCAFFOLD)"
    assert found["bold is the best of its column"] == "Table 6, CIFAR10: 77.2 is not"


def test_only_the_reading_here_comes_near_the_optimum_and_keeps_the_mean():
    found = audit.readings(rounds=80)
    gaps, away = (found[name].astype(float) for name in found.columns)
    assert gaps["here"] < 0.05 * gaps.drop("here").min()
    assert list(away[away < 1e-12].index) == ["here", "signs of Eq. (4)"]
    assert np.isfinite(gaps).all()


def test_counts_and_script():
    counts = audit.parameters()
    assert tuple(counts.loc["resnet18", ["printed", "parameters"]]) == (10_992_320, 11_173_962)
    assert counts.loc["vit_base", "booked (d)"] == 0.167 and counts.loc["lenet5", "largest (d)"] == 0.773
    assert audit.script().loc["mean upload with LeNet-5", "computed"] == "0.276 d"
