"""Payloads and codecs: what is claimed is what is packed, what is packed can be read, and the mathematics holds."""

import math

import numpy as np
import pytest
import torch

from fedbcgd_lite.codecs import QSGD, Identity, TopK
from fedbcgd_lite.payloads import PIECE, Dense, Quantized, Sparse, pack, unpack
from fedbcgd_lite.rng import global_rng, numpy_rng

SIZES = [0, 1, 7, 512, 1000]
LEVELS = [1, 2, 127, 128, 255, 256, 32767, 2**23 - 1]
BUCKETS = [1, 3, 512, 10**9]
DTYPES = [torch.float32, torch.float64, torch.bfloat16]
CODECS = [Identity(), TopK(), TopK(1.0, "log2"), QSGD(), QSGD(1, 3)]


def vector(n: int, dtype=torch.float32, seed: int = 0) -> torch.Tensor:
    """n normal numbers."""
    with global_rng(seed, "init"):
        return torch.randn(n, dtype=torch.float64).to(dtype)


def rng():
    """The same generator every time."""
    return numpy_rng(0, "noise")


def numbers(data: bytes, width: int, n: int) -> list[int]:
    """An oracle for `unpack`: the bytes as one long number."""
    bits = "".join(f"{byte:08b}" for byte in data)
    return [int(bits[i * width : (i + 1) * width] or "0", 2) for i in range(n)]


@pytest.mark.parametrize("width", [0, 1, 2, 3, 8, 9, 16, 17, 20, 31, 32])
def test_packed_numbers_are_their_bits_one_after_another(width):
    given = np.random.default_rng(0).integers(0, 2**width, 1001)
    data = pack(given, width)
    assert len(data) == math.ceil(1001 * width / 8)
    assert numbers(data, width, 1001) == given.tolist() == unpack(data, width, 1001).tolist()


@pytest.mark.parametrize("n", [PIECE - 1, PIECE, 2 * PIECE + 3])
def test_many_numbers_are_packed_piece_by_piece(n):
    given = np.random.default_rng(0).integers(0, 2**9, n)
    assert (unpack(pack(given, 9), 9, n) == given).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("codec", CODECS, ids=repr)
def test_claimed_bits_are_packed_and_the_tensor_comes_back_in_its_form(codec, n, dtype):
    payload = codec.encode(vector(n, dtype), rng())
    assert len(payload.packed()) == math.ceil(payload.bits / 8)
    sent = payload.decode()
    assert sent.shape == (n,) and sent.dtype == dtype and sent.device.type == "cpu"
    if dtype == torch.float32:
        assert payload.floats == payload.bits / 32 == pytest.approx(codec.floats_per_float(n) * n)


@pytest.mark.parametrize("bucket", BUCKETS)
@pytest.mark.parametrize("levels", LEVELS)
def test_quantised_bits_are_those_of_the_formula_and_errors_stay_below_a_level(levels, bucket):
    """n (1 + ceil(log2(s + 1))) + 32 ceil(n / b) bits; no coordinate moves by more than norm / s."""
    for n in SIZES:
        u = vector(n)
        payload = QSGD(levels, bucket).encode(u, rng())
        assert payload.bits == n * (1 + math.ceil(math.log2(levels + 1))) + 32 * math.ceil(n / bucket)
        assert len(payload.packed()) == math.ceil(payload.bits / 8)
        for piece, sent in zip(u.split(min(bucket, 512)), payload.decode().split(min(bucket, 512))):
            norm = u.norm() if bucket > 512 else piece.norm()
            assert ((sent - piece).abs() <= norm * (1 / levels + 3e-7)).all()


def test_quantised_bytes_hold_norms_and_then_sign_with_level():
    """Read by hand: norms 4 and 5, then level + s in 3 bits for s = 2; nothing here is left to chance."""
    data = QSGD(2, 2).encode(torch.tensor([0.0, -4.0, 5.0]), rng()).packed()
    assert np.frombuffer(data, "<f4", 2).tolist() == [4, 5]
    assert numbers(data[8:], 3, 3) == [2, 0, 4]


@pytest.mark.parametrize("dtype", DTYPES)
def test_bytes_and_constants_are_all_that_is_decoded(dtype):
    u, cpu = vector(100, dtype), torch.device("cpu")
    quantised = QSGD(5, 30).encode(u, rng())
    again = Quantized(bytes(bytearray(quantised.packed())), 100, dtype, cpu, 5, 30)
    assert torch.equal(again.decode(), quantised.decode())
    sparse = TopK(13, "log2").encode(u)
    again = Sparse(bytes(bytearray(sparse.packed())), 100, dtype, cpu, 13, 7)
    assert torch.equal(again.decode(), sparse.decode())
    read = torch.frombuffer(bytearray(Dense(u).packed()), dtype=dtype)
    assert torch.equal(read, u)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("levels", [1, 4, 127])
def test_quantisation_is_unbiased_within_5_sigma(levels, dtype):
    """20 000 draws of the same bucket; a coordinate's standard deviation is norm / s sqrt(p (1 - p))."""
    u, draws = vector(16, dtype), 20_000
    sent = QSGD(levels, 16).encode(u.repeat(draws), rng()).decode().view(draws, 16).double()
    norm = u.double().norm()
    p = (levels * u.double().abs() / norm).frac()
    sigma = norm / levels * (p * (1 - p) / draws).sqrt()
    assert ((sent.mean(0) - u.double()).abs() <= 5 * sigma + 3e-7 * norm).all()


@pytest.mark.parametrize("levels", [1, 4, 127])
@pytest.mark.parametrize("b", [1, 16, 512])
def test_variance_of_quantisation_is_bounded(levels, b):
    """E |Q(u) - u|^2 <= min(b / s^2, sqrt(b) / s) |u|^2, measured over 1 000 draws of one bucket."""
    u = vector(b)
    sent = QSGD(levels, b).encode(u.repeat(1000), rng()).decode().view(1000, b)
    squares = (sent - u).square().sum(1)
    error, sigma = squares.mean(), squares.std() / 1000**0.5
    assert error <= min(b / levels**2, b**0.5 / levels) * u.norm() ** 2 + 5 * sigma


@pytest.mark.parametrize("index_bits", [32, "log2"])
@pytest.mark.parametrize("n, k, kept", [(1, 1, 1), (10, 3, 3), (10, 0.25, 2), (3, 0.1, 1), (64, 1.0, 64), (65, 64, 64)])
def test_top_k_keeps_the_largest_and_contracts(n, k, kept, index_bits):
    """|u - s|^2 <= (1 - k / n) |u|^2, and k (32 + b_idx) bits."""
    u = vector(n)
    payload = TopK(k, index_bits).encode(u)
    sent = payload.decode()
    largest = sorted(range(n), key=lambda i: -abs(u[i].item()))[:kept]
    assert torch.equal(sent, torch.zeros(n).index_copy(0, torch.tensor(largest), u[largest]))
    assert (u - sent).norm() ** 2 <= (1 - kept / n) * u.norm() ** 2
    assert payload.bits == kept * (32 + (32 if index_bits == 32 else math.ceil(math.log2(n))))


def test_top_k_of_everything_is_everything():
    u = vector(1000)
    assert torch.equal(TopK(1.0).encode(u).decode(), u)


def test_of_equal_numbers_top_k_keeps_the_first():
    u = torch.tensor([1.0, -2.0, 1.0, -1.0, 1.0, 3.0])
    assert TopK(4).encode(u).decode().tolist() == [1, -2, 1, 0, 0, 3]


@pytest.mark.parametrize("codec", CODECS, ids=repr)
def test_zero_stays_zero(codec):
    assert torch.equal(codec.encode(torch.zeros(700), rng()).decode(), torch.zeros(700))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("codec", CODECS, ids=repr)
def test_what_is_not_finite_is_never_hidden(codec, bad):
    for places in ([0], [3, 699], range(700)):
        u = vector(700)
        u[list(places)] = bad
        assert not codec.encode(u, rng()).decode().isfinite().all()


@pytest.mark.parametrize("scale", [1e-300, 1e-40, 1e-25, 1e25, 1e37])
def test_very_small_and_very_large_numbers_are_quantised_like_others(scale):
    """Squares that no float32 holds; what a float32 norm cannot resolve is below its smallest number, 1.4e-45."""
    for dtype in (torch.float32, torch.float64):
        u = (vector(40, torch.float64) * scale).to(dtype)
        sent = QSGD(127, 16).encode(u, rng()).decode()
        assert ((sent - u).abs() <= u.double().norm() / 127 * (1 + 1e-3) + 1.4e-45).all()


def test_a_norm_beyond_float32_is_no_finite_number():
    assert not QSGD().encode(torch.full((512,), 3e38), rng()).decode().isfinite().any()


def test_one_coordinate_a_bucket_is_sent_exactly():
    u = vector(100)
    assert torch.equal(QSGD(1, 1).encode(u, rng()).decode(), u)


def test_a_norm_is_rounded_up_and_the_level_never_exceeds_s():
    """In float64: one number a bucket, and two whose squares are below all numbers, so that their norm is 0."""
    u = vector(10_000, torch.float64)
    norms = np.frombuffer(QSGD(127, 1).encode(u, rng()).packed(), "<f4", 10_000).astype(np.float64)
    assert (norms >= u.abs().numpy()).all() and np.allclose(norms, u.abs().numpy(), rtol=1.2e-7)
    payload = QSGD(127, 2).encode(torch.tensor([1e-300, -1e-300], dtype=torch.float64), rng())
    assert list(payload.packed()) == [0, 0, 0, 0, 254, 0] and not payload.decode().any()


@pytest.mark.parametrize("codec", CODECS[1:], ids=repr)
def test_the_same_generator_sends_the_same_bytes(codec):
    u = vector(1000)
    assert codec.encode(u, rng()) == codec.encode(u, rng())


def test_another_generator_sends_other_bytes():
    u = vector(1000)
    assert QSGD().encode(u, rng()) != QSGD().encode(u, numpy_rng(1, "noise"))


@pytest.mark.parametrize("codec", CODECS, ids=repr)
def test_a_cut_or_a_stride_of_a_tensor_is_sent_like_a_copy(codec):
    for u in (vector(1000)[3:700], vector(1000)[::2]):
        sent, copy = codec.encode(u, rng()), codec.encode(u.clone(), rng())
        assert sent.packed() == copy.packed() and torch.equal(sent.decode(), copy.decode())


def test_encoding_leaves_the_tensor_alone():
    for codec in CODECS:
        u = vector(1024)
        codec.encode(u, rng())
        assert torch.equal(u, vector(1024))


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: QSGD(levels=0), "levels = 0 was given"),
        (lambda: QSGD(levels=2.5), "levels = 2.5 was given"),
        (lambda: QSGD(levels=2**23), "levels = 8388608 was given"),
        (lambda: QSGD(bucket=0), "bucket = 0 was given"),
        (lambda: TopK(0), "k = 0 was given"),
        (lambda: TopK(-0.5), "k = -0.5 was given"),
        (lambda: TopK(12.0), "k = 12.0 was given"),
        (lambda: TopK(True), "k = True was given"),
        (lambda: TopK(math.nan), "k = nan was given"),
        (lambda: TopK("many"), "k = 'many' was given"),
        (lambda: TopK(index_bits=16), "index_bits = 16 was given"),
        (lambda: TopK(error_feedback=1), "error_feedback = 1 was given"),
        (lambda: TopK(12).encode(torch.zeros(10)), "k = 12 was given for a tensor of 10 numbers"),
    ],
)
def test_what_no_codec_can_do_is_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()
