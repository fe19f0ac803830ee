"""What a machine is called, and what it can do."""

from __future__ import annotations

from dataclasses import replace

from serving.measure.machine import Machine, head, instruction_sets, num_cores, processor_name, this_machine

X86 = "processor\t: 0\nmodel name\t: A Xeon\nflags\t\t: sse avx2 avx512f avx512_vnni amx_int8\n\nprocessor\t: 1\nmodel name\t: B\n"
ARM = "processor\t: 0\nFeatures\t: fp asimd asimddp i8mm\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n"


def test_a_processor_is_named_by_what_it_says_and_by_what_it_can() -> None:
    assert processor_name(X86) == "A Xeon"
    assert processor_name(ARM).endswith("implementer 0x41 part 0xd40")
    assert processor_name("") == "unknown"
    assert instruction_sets(X86) == ("avx2", "avx512f", "avx512_vnni", "amx_int8")
    assert instruction_sets(ARM) == ("asimd", "asimddp", "i8mm")
    assert instruction_sets("") == ()


def test_this_machine_has_cores_and_says_how_many_of_them_this_process_may_use() -> None:
    assert this_machine().num_cores == num_cores() > 0


def test_every_bench_says_first_on_which_machine_by_which_command_and_beside_how_much_other_work() -> None:
    machine = Machine("A Processor", ("avx2", "fma"), 2.0, "Linux 6 x86_64", ())
    lines = head(machine, "2026-11-21", "python -m x --quick", "three rounds", others_ratio=0.087).splitlines()
    assert lines[:3] == [
        "A Processor (avx2 fma), 2 cores, Linux 6 x86_64",
        "2026-11-21, python -m x --quick",
        "three rounds",
    ]
    assert [line.count(" 9% ") for line in lines[3:]] == [1]
    assert "(unknown)" in head(replace(machine, instruction_sets=()), "", "", others_ratio=0.0)
