"""Crops, flips and sizes of images, against slow loops over single images."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fedbcgd_lite.augment import Augment, Resize

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.fixture
def rng():
    return torch.Generator().manual_seed(0)


def one_by_one(images, draws, pad, flip):
    """The same crops and flips with NumPy, an image at a time."""
    found = []
    for image, (row, column, side) in zip(images.numpy(), draws.double().numpy()):
        padded = np.pad(image, ((0, 0), (pad, pad), (pad, pad)))
        top, left = int(row * (2 * pad + 1)), int(column * (2 * pad + 1))
        crop = padded[:, top : top + image.shape[1], left : left + image.shape[2]]
        found.append(crop[:, :, ::-1] if flip and side < 0.5 else crop)
    return torch.from_numpy(np.stack(found))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32], ids=str)
@pytest.mark.parametrize("pad, flip", [(4, True), (2, False), (0, True), (9, True)])
def test_each_image_is_cropped_and_flipped_as_its_draws_say(pad, flip, dtype, device, rng):
    """Equal to the loop to the last bit, on images that are not square; bytes stay bytes, where they were."""
    images = torch.randint(1, 256, (50, 3, 7, 5), generator=rng).to(dtype)
    draws = torch.rand(50, Augment.DRAWS, generator=rng)
    found = Augment(pad, flip)(images.to(device), draws.to(device))
    assert found.dtype == dtype and found.device.type == device
    assert torch.equal(found.cpu(), one_by_one(images, draws, pad, flip))


@pytest.mark.parametrize("augment", [Augment(), Augment(2, False), Augment(0)], ids=str)
def test_draws_in_the_middle_change_nothing(augment, rng):
    """0.5 is the middle one of an odd number of offsets, and is not below 0.5."""
    images = torch.randint(0, 256, (4, 3, 8, 8), generator=rng).byte()
    assert torch.equal(augment(images, torch.full((4, 3), 0.5)), images)


def test_the_smallest_and_the_largest_draw_stay_inside(rng):
    """Draws of 0 show the upper left end of the padded image, the float below 1 the lower right end."""
    images = torch.randint(1, 256, (2, 1, 8, 8), generator=rng).byte()
    last = torch.nextafter(torch.tensor(1.0), torch.tensor(0.0))
    first, second = Augment(3, False)(images, torch.stack([torch.zeros(3), last.expand(3)]))
    assert torch.equal(first, F.pad(images[0, :, :5, :5], (3, 0, 3, 0)))
    assert torch.equal(second, F.pad(images[1, :, 3:, 3:], (0, 3, 0, 3)))
    assert Augment(1000, False)(images, last.expand(2, 3)).count_nonzero() == 0


def test_offsets_are_uniform_and_half_of_the_images_are_flipped(rng):
    """An image with one bright pixel shows its offset: each of the 5 x 5 x 2 outcomes within 5 standard deviations."""
    n, outcomes = 50_000, 50
    images = torch.zeros(1, 1, 9, 11, dtype=torch.uint8)
    images[0, 0, 4, 3] = 1  # 3 columns from the left edge, or 7 once flipped
    found = Augment(2)(images.expand(n, -1, -1, -1), torch.rand(n, 3, generator=rng)).flatten(1)
    assert found.sum(1).eq(1).all()
    times = torch.bincount(found.argmax(1), minlength=99).view(9, 11)[2:7, 1:10]
    assert times.sum() == n
    expected = torch.full((5, 9), n / outcomes)
    expected[:, 4] *= 2  # the last column of the one side is the first of the other
    assert ((times - expected).abs() < 5 * expected.sqrt()).all()


def test_the_same_draws_give_the_same_images(rng):
    """A function of its arguments alone, which it leaves as they were."""
    images, draws = torch.randint(0, 256, (9, 3, 8, 8), generator=rng).byte(), torch.rand(9, 3, generator=rng)
    before = images.clone(), draws.clone()
    assert torch.equal(Augment()(images, draws), Augment()(images, draws))
    assert torch.equal(images, before[0]) and torch.equal(draws, before[1])


@pytest.mark.parametrize("pad", [-1, 1.5, None])
def test_a_pad_that_is_no_number_of_pixels_is_refused(pad):
    with pytest.raises(ValueError, match=f"pad = {pad} was given: expected a whole number of at least 0"):
        Augment(pad)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("height, width, resize, crop", [(8, 8, 8, 6), (9, 15, 6, 4), (15, 9, 6, 6), (4, 4, 10, 7)])
def test_the_middle_of_the_resized_image_is_cut_out(height, width, resize, crop, device, rng):
    """Against a loop of tent-shaped weighted means over rows, then columns, an image at a time."""
    images = torch.rand(3, 2, height, width, generator=rng)
    found = Resize(resize, crop)(images.to(device))
    assert found.shape == (3, 2, crop, crop)
    scale = resize / min(height, width)
    rows, columns = (tents(pixels, round(pixels * scale), crop) for pixels in (height, width))
    for image, wanted in zip(found.cpu(), images):
        for channel, pixels in zip(image, wanted):
            assert torch.allclose(channel.double(), rows @ pixels.double() @ columns.T, atol=1e-5)


def tents(n, wanted, crop):
    """(crop, n): the weights of n pixels in the `crop` middle ones of `wanted` pixels, which cover the same length."""
    ratio = n / wanted
    reach = max(ratio, 1)  # half the width of a tent, in pixels of the original
    weights = torch.zeros(wanted, n, dtype=torch.float64)
    for i in range(wanted):
        for j in range(n):
            weights[i, j] = max(0, 1 - abs((i + 0.5) * ratio - (j + 0.5)) / reach)
    start = (wanted - crop) // 2
    return (weights / weights.sum(1, keepdim=True))[start : start + crop]


def test_an_image_of_the_wanted_size_stays_as_it_is(rng):
    images = torch.rand(2, 3, 8, 8, generator=rng)
    assert torch.allclose(Resize(8, 8)(images), images, atol=1e-6)


@pytest.mark.parametrize(
    "resize, crop, words",
    [
        (8, 9, "crop = 9 was given: expected at most resize = 8"),
        (8, 0, "crop = 0"),
        (0, 0, "resize = 0"),
        (8.0, 4, "8.0"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(resize, crop, words):
    with pytest.raises(ValueError, match=words):
        Resize(resize, crop)
