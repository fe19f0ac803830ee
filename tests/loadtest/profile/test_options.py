"""Words of the command line become values, and what is wrong with one is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtest.profile.options import QUICK, Pace, ProfileOptions, Shape, emulation, shapes, times_s, whole_numbers
from serving.errors import UserError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("20ms", (0.02,)),
        ("0.02s", (0.02,)),
        (".02s", (0.02,)),
        ("50ms, 20ms,20ms", (0.02, 0.05)),
        ("500us", (0.0005,)),
        ("1s", (1.0,)),
    ],
)
def test_a_time_may_be_written_in_the_usual_ways(text: str, seconds: tuple[float, ...]) -> None:
    assert times_s(text, "--p99") == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "fast", "20 minutes", "-1", "0", "0ms", "nan", "inf", "1e9", "20ms,", "61s", "50", "20ms,50"]
)
def test_what_is_no_time_is_told_with_the_way_out(text: str) -> None:
    with pytest.raises(UserError, match="--p99"):
        times_s(text, "--p99")


@pytest.mark.parametrize("text", ["", "0", "1.5", "-8", "1,,8", "eight", "65537", "²"])
def test_what_is_no_number_of_rows_is_told(text: str) -> None:
    with pytest.raises(UserError, match=r"--batch-size.*number.*1.*65536"):
        whole_numbers(text, "--batch-size", 65536)


def test_numbers_of_rows_come_in_rising_order_and_once() -> None:
    assert whole_numbers("8,1,8", "--batch-size", 32) == (1, 8)


def test_settings_are_instances_times_threads() -> None:
    assert shapes("1x2, 2×1", "--settings") == (Shape(1, 2), Shape(2, 1))


def test_settings_may_limit_batches_and_wait_for_fuller_ones() -> None:
    both, batch, none = shapes("1x2/batch=8/delay=500us,2x1/batch=4,1x1/delay=0us", "--settings")
    assert (both, batch, none) == (Shape(1, 2, 8, 500), Shape(2, 1, 4), Shape(1, 1, None, 0))
    assert both.triton_options == ["--instances", "1", "--threads", "2", "--max-batch", "8", "--queue-delay-us", "500"]
    assert [one.words for one in (both, batch)] == ["1x2/batch=8/delay=500us", "2x1/batch=4"]


def test_settings_may_have_buffers_and_options_of_a_card() -> None:
    text = "1x1/batch=8/buckets=1+8/lengths=32/prefer_nhwc=true/cudnn_conv_algo_search=HEURISTIC"
    [one] = shapes(text, "--settings")
    assert one.tuning == ("batch_buckets=1,8", "bucket_lengths=32", "cudnn_conv_algo_search=HEURISTIC", "prefer_nhwc=1")
    buffers = ["--batch-buckets", "1,8", "--bucket-lengths", "32"]
    options = ["--cuda-option", "cudnn_conv_algo_search=HEURISTIC", "--cuda-option", "prefer_nhwc=1"]
    assert one.triton_options[6:] == [*buffers, *options]
    assert shapes(one.words, "--settings") == (one,)


@pytest.mark.parametrize("text", ["1x1/prefer_nhcw=1", "1x1/bucket=auto", "1x1/cudnn_conv_algo_search=FAST"])
def test_an_option_that_no_card_has_is_told(text: str) -> None:
    with pytest.raises(UserError, match=r"--settings.*(prefer_nhwc|unknown key|cudnn_conv_algo_search)"):
        shapes(text, "--settings")


@pytest.mark.parametrize(
    "text", ["", "2", "0x2", "2x0", "1x2x3", "ax2", "1000x1", "1x2/batch=0", "1x2/delay=5ms", "1x2/delay=1us/batch=2"]
)
def test_settings_that_are_none_are_told(text: str) -> None:
    with pytest.raises(UserError, match="INSTANCESxTHREADS"):
        shapes(text, "--settings")


@pytest.mark.parametrize("text", ["", "emulated-gpu", "=file.yaml", "emulated-gpu="])
def test_an_emulation_needs_a_name_and_a_file(text: str) -> None:
    with pytest.raises(UserError, match="NAME=FILE"):
        emulation(text, "--emulate")


def test_the_command_of_a_profile_is_the_one_that_gives_it_again() -> None:
    options = ProfileOptions(
        "digits",
        variants=("int8",),
        objectives_s=(0.02, 0.05),
        settings=(Shape(2, 1),),
        pool="emulated-gpu",
        emulate=Path("t4.yaml"),
        is_quick=True,
        seconds=3.0,
    )
    assert options.command == (
        "tandem profile digits --p99 0.02s,0.05s --settings 2x1 --emulate emulated-gpu=t4.yaml --seconds 3.0 --variant int8 --quick"
    )


def test_quick_is_quicker_in_everything_and_the_length_of_runs_can_be_named() -> None:
    for name in ("num_rounds", "slice_s", "ladder_s", "run_s", "warmup_s", "num_repeats", "max_runs", "cold_starts"):
        assert getattr(QUICK, name) < getattr(Pace(), name), name
    assert ProfileOptions("digits", is_quick=True, seconds=7.0).pace.run_s == 7.0
    assert ProfileOptions("digits").pace == Pace()
