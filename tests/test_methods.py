"""What the methods with client state and compressed messages keep true in every round, and when they coincide."""

import copy

import numpy as np
import pytest
import torch
from helpers import METHODS, TOY, assert_same_run, local_sgd, run, toy

from fedbcgd_lite import (
    QSGD,
    Blocks,
    Compressed,
    FedAdam,
    FedAvg,
    FedBCGD,
    FedBCGDPlus,
    FedDC,
    Identity,
    Machine,
    Problem,
    Scaffold,
    TopK,
    Training,
)
from fedbcgd_lite.blocks import partition
from fedbcgd_lite.data import augmentation
from fedbcgd_lite.flat import Flat
from fedbcgd_lite.local import Draws
from fedbcgd_lite.simulate import plan
from fedbcgd_lite.simulate import select as package_select

FEDERATED = {name: a for name, a in METHODS.items() if not a.pooled and not isinstance(a, Compressed)}
# Keys of a client's state whose mean over all clients the server keeps, and under which key.
KEPT_MEANS = {
    "SCAFFOLD, option 1": (Scaffold(1), {"c_i": "c"}),
    "SCAFFOLD, option 2": (Scaffold(2), {"c_i": "c"}),
    "FedDC": (FedDC(), {"g_i": "g", "h_i": "h"}),
    "FedBCGD+": (FedBCGDPlus("balanced:2"), {"c_i": "c"}),
    "FedBCGD+, N = 3": (FedBCGDPlus("balanced:3"), {"c_i": "c"}),
    "FedBCGD+, N = 6": (FedBCGDPlus("balanced:6", option=2), {"c_i": "c"}),
    "FedBCGD+, no SVRG": (FedBCGDPlus("balanced:2", svrg=False), {"c_i": "c"}),
}


def _wrapped(codec):
    return {
        f"{type(codec).__name__}, {name}": (Compressed(method, codec), keys)
        for name, (method, keys) in KEPT_MEANS.items()
    }


EVERY_MEAN = {**KEPT_MEANS, **_wrapped(QSGD(3, 8)), **_wrapped(TopK(0.2))}


def mean_over_clients(trajectory, key: str) -> torch.Tensor:
    """(1/M) sum over all 8 clients; those that were never sampled hold zero."""
    return sum(state[key] for state in trajectory.clients.values()) / 8


@pytest.mark.parametrize("algorithm, keys", EVERY_MEAN.values(), ids=EVERY_MEAN.keys())
def test_the_server_keeps_the_mean_of_what_clients_keep(algorithm, keys):
    """c = mean_i c_i after every round, compression included (the paper, Eq. (5) with 1/M in both parts)."""
    errors = []

    def look(t):
        errors.extend(float((mean_over_clients(t, key) - t.server[own]).abs().max()) for key, own in keys.items())

    t = run(toy(), algorithm, rounds=6, on_round=look)
    assert len(errors) == 6 * len(keys) and max(errors) < 1e-12
    assert all(t.server[own].abs().max() > 1e-3 for own in keys.values())


BROKEN = {
    "Eq. (5)'s 1/(MN)": FedBCGDPlus("balanced:2", shared_factor=1 / 2),
    "Appendix E's K/M": FedBCGDPlus("balanced:2", block_factor=2),
    "all of c_i overwritten": FedBCGDPlus("balanced:2", full=True),
}


@pytest.mark.parametrize("algorithm", BROKEN.values(), ids=BROKEN.keys())
def test_the_printed_variants_lose_the_mean(algorithm):
    """Each of the paper's other readings ends with c away from mean_i c_i."""
    t = run(toy(), algorithm)
    assert (mean_over_clients(t, "c_i") - t.server["c"]).abs().max() > 1e-3


def test_eq_5_shrinks_the_shared_part_by_n_and_appendix_e_stretches_the_blocks_by_k():
    """In the first round, where c starts at zero, the factors are seen as they are."""
    ours, eq5, appendix = (
        run(toy(), FedBCGDPlus("balanced:2", **factor), rounds=1).server["c"]
        for factor in ({}, {"shared_factor": 1 / 2}, {"block_factor": 2})
    )
    shared = slice(64 - 15, 64)
    torch.testing.assert_close(eq5[shared], ours[shared] / 2)
    torch.testing.assert_close(appendix[: shared.start], 2 * ours[: shared.start])
    assert torch.equal(eq5[: shared.start], ours[: shared.start]) and torch.equal(appendix[shared], ours[shared])


@pytest.mark.parametrize("option", [1, 2])
def test_fedbcgd_plus_with_one_block_is_scaffold(option):
    """N = 1 without shared block, SVRG and momentum (the paper, Section 3.2; Karimireddy et al., 2020)."""
    plus = run(toy(), FedBCGDPlus("whole", 0, option=option, svrg=False))
    scaffold = run(toy(), Scaffold(option))
    for key in ("x", "c"):
        torch.testing.assert_close(plus.server[key], scaffold.server[key], rtol=1e-13, atol=1e-15)
    assert plus.rows[-1]["upload_d"] == scaffold.rows[-1]["upload_d"] == 2 * TOY["rounds"]


def test_fedbcgd_plus_without_corrections_is_fedbcgd():
    """In the first round c and c_i are zero: without SVRG the step is FedBCGD's."""
    plus, plain = (run(toy(), a, rounds=1) for a in (FedBCGDPlus("balanced:2", svrg=False), FedBCGD("balanced:2")))
    assert torch.equal(plus.x, plain.x) and not torch.equal(plus.server["c"], torch.zeros(64))


def test_svrg_has_no_noise_at_the_anchor():
    """With one local step the batch does not matter, as its gradient cancels (Johnson and Zhang, 2013)."""
    short = dict(rounds=1, local_epochs=1, batch_size=5)
    whole = run(toy(), FedBCGDPlus("balanced:2", 0), plan=lambda indices, *_: [indices], **short)
    single = run(toy(), FedBCGDPlus("balanced:2", 0), plan=lambda indices, *_: [indices[:1]], **short)
    torch.testing.assert_close(whole.x, single.x, rtol=1e-13, atol=1e-15)
    plain = [run(toy(), FedAvg(), plan=lambda i, *_, n=n: [i[:n]], **short).x for n in (5, 1)]
    assert not torch.allclose(*plain)


def test_feddc_without_penalty_and_drift_is_scaffold_with_the_mean_drift_added():
    """Its first round is FedAvg's plus (1/M) sum h_i = (S/M) mean dx (Gao et al., 2022, Algorithm 1)."""
    x0 = run(toy(), FedAvg(), rounds=1)
    start = Flat(toy().model, x0.blocks, toy().loss).x0
    feddc = run(toy(), FedDC(penalty=0), rounds=1)
    torch.testing.assert_close(feddc.x - start, (x0.x - start) * (1 + 4 / 8), rtol=1e-12, atol=1e-14)


# --- FedAdam --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("corrected", [False, True])
def test_fedadam_is_torch_adam_on_the_mean_displacement(corrected):
    """With tau as Adam's eps, w starting at zero and bias correction it is torch.optim.Adam on -mean dx."""
    algorithm = FedAdam(server_lr=0.05, b1=0.9, b2=0.99, tau=1e-3, bias_correction=corrected)
    moves = torch.randn(5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    server, _ = algorithm.init(torch.zeros(7, dtype=torch.float64), 8)
    server["w"] = torch.zeros_like(server["w"]) if corrected else server["w"]
    parameter = torch.nn.Parameter(torch.zeros(7, dtype=torch.float64))
    adam = torch.optim.Adam([parameter], lr=0.05, betas=(0.9, 0.99), eps=1e-3)
    m, w, x = 0, 1e-6, 0
    for D in moves:
        server = algorithm.aggregate(server, _mail(D))
        parameter.grad = -D.clone()
        adam.step()
        m, w = 0.9 * m + 0.1 * D, 0.99 * w + 0.01 * D**2
        x = x + 0.05 * m / (w.sqrt() + 1e-3)
    torch.testing.assert_close(server["x"], parameter.detach() if corrected else x, rtol=1e-12, atol=1e-14)


def _mail(D):
    from fedbcgd_lite.messages import Letter, Mail

    return Mail([Letter(Blocks((len(D),)).slot(0, 0), {"dx": D})])


# --- compression ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", FEDERATED.values(), ids=FEDERATED.keys())
def test_the_identity_codec_changes_nothing(algorithm):
    """Compressed(method, Identity()) is the method, bit for bit and float for float."""
    assert_same_run(run(toy(), Compressed(algorithm, Identity())), run(toy(), algorithm))


@pytest.mark.parametrize("algorithm", FEDERATED.values(), ids=FEDERATED.keys())
@pytest.mark.parametrize("feedback", [False, True])
def test_keeping_all_coordinates_changes_nothing(algorithm, feedback):
    """With k = d nothing is left over, so that the residual stays zero."""
    kept = run(toy(), Compressed(algorithm, TopK(1.0, error_feedback=feedback)))
    torch.testing.assert_close(kept.x, run(toy(), algorithm).x, rtol=1e-12, atol=1e-14)
    assert not feedback or all(not state["e_i"].any() for state in kept.clients.values())


def test_error_feedback_remembers_what_was_not_sent():
    """u = dx + e_i, s = top-k(u), e_i = u - s: over a client's rounds all dx add up to all s plus what is left."""
    algorithm, sgd_out = (
        Compressed(FedAvg(), TopK(0.25)),
        torch.randn(9, 12, generator=torch.Generator().manual_seed(0)),
    )
    slot = Blocks((12,)).slot(0, 0)
    _, client = algorithm.init(torch.zeros(12), 1)
    sent = torch.zeros(12)
    for dx in sgd_out:
        message, client = algorithm.upload({"dx": dx}, client, slot, algorithm.codec.encode)
        assert torch.count_nonzero(message["dx"].decode()) == 3
        sent += message["dx"].decode()
    torch.testing.assert_close(sent + client["e_i"], sgd_out.sum(0))
    assert client["e_i"].any()


def test_error_feedback_of_blocks_waits_for_the_next_time_that_a_block_is_sent():
    """The residual of a block that is not sent stays as it is."""
    algorithm, blocks = Compressed(FedBCGD("balanced:2"), TopK(0.25)), Blocks((6, 6), 4)
    _, client = algorithm.init(torch.zeros(16), 1)
    dx = torch.randn(2, 16, generator=torch.Generator().manual_seed(0))
    _, first = algorithm.upload({"dx": dx[0]}, client, blocks.slot(0, 0), algorithm.codec.encode)
    _, second = algorithm.upload({"dx": dx[1]}, first, blocks.slot(0, 1), algorithm.codec.encode)
    assert first["e_i"][:6].any() and not first["e_i"][6:12].any()
    assert torch.equal(first["e_i"][:6], second["e_i"][:6]) and second["e_i"][6:12].any()


def test_top_k_without_feedback_forgets():
    t = run(toy(), Compressed(FedAvg(), TopK(0.3, error_feedback=False)))
    assert not t.clients and not torch.allclose(t.x, run(toy(), Compressed(FedAvg(), TopK(0.3))).x)


def test_quantisation_draws_by_seed_round_and_client():
    """Clients with the same displacement round it differently, and a repeated run rounds it alike."""
    found = [run(toy(), Compressed(FedAvg(), QSGD(1, 8)), seed=seed) for seed in (0, 0, 1)]
    assert torch.equal(found[0].x, found[1].x) and not torch.equal(found[0].x, found[2].x)
    threads = run(toy(), Compressed(FedAvg(), QSGD(1, 8)), machine=Machine(workers=3))
    assert torch.equal(found[0].x, threads.x)


@pytest.mark.parametrize(
    "algorithm, floats",
    [
        (Compressed(FedAvg(), TopK(0.25)), 16 * 2),
        (Compressed(FedAvg(), QSGD(127, 32)), (64 * 8 + 32 * 2) / 32),
        (Compressed(FedBCGD(Blocks((20, 20), 24)), QSGD(3, 512)), (44 * 3 + 32 * 2) / 32),
        (Compressed(FedBCGDPlus(Blocks((20, 20), 24)), QSGD(3, 512)), 2 * (44 * 3 + 32 * 2) / 32),
        (Compressed(Scaffold(), TopK(0.25)), 2 * 16 * 2),
    ],
    ids=str,
)
def test_compressed_uploads_cost_what_their_bits_say(algorithm, floats):
    """k (32 + 32) / 32, and n (1 + ceil log2 (s + 1)) + 32 ceil(n / b) bits a tensor."""
    last = run(toy(dtype=torch.float32), algorithm, rounds=2).rows[-1]
    assert last["upload_d"] == pytest.approx(2 * floats / 64) and last["upload_bits"] == 2 * 32 * floats


# --- clipping -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", METHODS.values(), ids=METHODS.keys())
def test_a_clip_that_never_bites_changes_nothing(algorithm):
    plain, clipped = run(toy(), algorithm), run(toy(), algorithm, clip=1e6)
    assert torch.equal(plain.x, clipped.x)


@pytest.mark.parametrize("together", [False, True])
def test_no_step_is_longer_than_lr_times_clip(together):
    """A step that is longer keeps its direction: torch.nn.utils.clip_grad_norm_ on gradient and weight decay."""
    problem, batches = toy(), plan(np.arange(5), Training(**TOY), 0, 0, 0)[:1]
    flat = Flat(problem.model, Blocks((64,)), problem.loss)
    steps = []
    for clip in (None, 0.01):
        sgd = local_sgd(problem, flat, np.arange(5), batches, lr=0.5, weight_decay=0.3, clip=clip)
        sgd.all_rows, sgd.rows = (
            (sgd.all_rows.expand(2, -1), [r.expand(2, -1) for r in sgd.rows]) if together else (sgd.all_rows, sgd.rows)
        )
        steps.append(sgd(flat.x0) - flat.x0)
    norm = steps[0].norm(dim=-1, keepdim=True)
    assert (norm > 0.005).all()
    torch.testing.assert_close(steps[1], steps[0] / norm * 0.005)


# --- gradients of a client ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 2, 3, 5, 7])
def test_the_full_gradient_does_not_depend_on_the_pieces_it_is_formed_in(batch):
    problem = toy()
    flat = Flat(problem.model, Blocks((64,)), problem.loss)
    sgd = local_sgd(problem, flat, np.arange(3, 10), [np.arange(batch)], lr=0.1)
    whole = flat.gradient(flat.x0, *problem.batch(torch.arange(3, 10)))[0]
    torch.testing.assert_close(sgd.full_gradient(flat.x0), whole, rtol=1e-12, atol=1e-14)


# --- augmentation ---------------------------------------------------------------------------------------------------


class Shift:
    """inputs + draws: an augmentation that shows what was drawn."""

    DRAWS = 4

    def __call__(self, inputs, draws):
        return inputs + draws


def augmented(problem: Problem) -> Problem:
    problem.augment = Shift()
    return problem


@pytest.mark.parametrize("machine", [Machine(), Machine(workers=2), Machine(chunk=4)], ids=str)
@pytest.mark.parametrize("algorithm", [FedAvg(), FedBCGDPlus("balanced:2")], ids=str)
def test_augmentation_is_drawn_by_seed_round_and_client(algorithm, machine):
    """However clients are trained, and wherever a run was interrupted, the same numbers are drawn."""
    copies = []
    whole = run(augmented(toy()), algorithm, on_round=lambda t: copies.append(copy.deepcopy(t)))
    assert not torch.allclose(whole.x, run(toy(), algorithm).x)
    again = run(augmented(toy()), algorithm, machine=machine, resume=copies[1])
    torch.testing.assert_close(again.x, whole.x, rtol=1e-9, atol=1e-12)


def test_both_gradients_of_svrg_see_the_same_augmented_batch():
    """With one step they cancel whatever was drawn for it: x moves by the gradient at x of the drawn samples."""
    problem = augmented(toy())
    flat, rows = Flat(problem.model, partition(problem.model, "balanced:2"), problem.loss), torch.arange(5)
    draws = Draws(torch.zeros(5, 4), [torch.rand(2, 4)])
    sgd = local_sgd(problem, flat, np.arange(5), [np.arange(2)], lr=0.1, draws=draws)
    algorithm = FedBCGDPlus("balanced:2")
    server, client = algorithm.init(flat.x0, 8)
    out, _ = algorithm.train(server, client, None, sgd)
    full = flat.gradient(flat.x0, *toy().batch(rows))[0]
    torch.testing.assert_close(out["dx"], -0.1 * full, rtol=1e-12, atol=1e-14)


def test_a_task_augments_its_training_images_and_not_its_test_images():
    from fedbcgd_lite import task

    plain, drawn = (task("smoke", augment=augment).problem(0) for augment in (False, True))
    assert plain.augment is None and drawn.augment == augmentation("fmnist12k")
    rows = torch.arange(6)
    images, draws = drawn.batch(rows, torch.rand(6, 3))[0], plain.batch(rows)[0]
    assert images.shape == draws.shape and not torch.equal(images, draws)
    assert torch.equal(plain.transform(plain.test[0][:3]), drawn.transform(drawn.test[0][:3]))


def test_images_are_resized_and_cropped_for_the_model():
    from fedbcgd_lite import task

    problem = task("smoke", resize=36, crop=32).problem(0)
    assert problem.batch(torch.arange(2))[0].shape == (2, 1, 32, 32)
    assert problem.model.fc1.in_features == 4 * 5 * 5


# --- unequal clients ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", METHODS.values(), ids=METHODS.keys())
def test_clients_of_unequal_size_and_with_missing_classes_train(algorithm):
    """1 to 9 samples a client, some of one class only: every method plays its rounds, alone and together."""
    x, y = toy().train
    order = torch.argsort(y).numpy()
    sizes = np.cumsum([1, 2, 3, 5, 9, 9, 8])
    problem = Problem(toy().model, (x, y), np.split(order, sizes))
    problem.clients[-1] = problem.clients[-1][:1]
    one, many = (run(problem, algorithm, machine=machine) for machine in (Machine(), Machine(chunk=4)))
    assert one.round == TOY["rounds"] and torch.isfinite(one.x).all()
    torch.testing.assert_close(one.x, many.x, rtol=1e-9, atol=1e-11)


def test_a_client_of_another_group_each_round_keeps_the_mean():
    """Where groups are dealt by hand, so that a block is sent twice by the same client, c = mean_i c_i still holds."""

    def always_first(holders, S, blocks, seed, round):
        slots = package_select(holders, S, blocks, seed, round)
        return [blocks.slot(i, slot.block) for i, slot in enumerate(slots)]

    t = run(toy(), FedBCGDPlus("balanced:2"), select=always_first)
    torch.testing.assert_close(mean_over_clients(t, "c_i"), t.server["c"], rtol=0, atol=1e-12)
