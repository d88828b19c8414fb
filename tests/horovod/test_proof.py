import pytest

from fittrain.errors import BuildError
from fittrain.horovod.proof import prove

RANKS = [
    '{"rank": 0, "size": 2, "wrong": 0, "device": "CPU:0"}',
    '{"rank": 1, "size": 2, "wrong": 0, "device": "CPU:0"}',
]


@pytest.fixture
def fake_mpirun(add_program):
    def make(*lines, ending="exit 0"):
        said = "\n".join(f"echo 'fittrain-proof {line}'" for line in lines)
        return add_program("mpirun", f"{said}\n{ending}")

    return make


def test_two_right_answers_prove(fake_mpirun, environment, progress, tmp_path):
    proof = prove(fake_mpirun(*RANKS), environment, progress, tmp_path)
    assert proof == "2 ranks on CPU gave the known answer"


def test_nccl_that_was_not_used_is_said(fake_mpirun, environment, progress, tmp_path):
    ranks = [line.replace("}", ', "nccl": true}') for line in RANKS]
    proof = prove(fake_mpirun(*ranks), environment, progress, tmp_path)
    assert "NCCL was not used" in proof


def test_answers_of_two_ranks_on_one_line_are_told_apart(
    add_program, environment, progress, tmp_path
):
    launcher = add_program("mpirun", f"echo 'fittrain-proof {RANKS[1]}fittrain-proof {RANKS[0]}'")
    assert prove(launcher, environment, progress, tmp_path).startswith("2 ranks")


def test_wrong_sum_is_refused(fake_mpirun, environment, progress, tmp_path):
    wrong = RANKS[1].replace('"wrong": 0', '"wrong": 1000')
    with pytest.raises(BuildError, match="wrong answer"):
        prove(fake_mpirun(RANKS[0], wrong), environment, progress, tmp_path)


@pytest.mark.parametrize("lines", [[], RANKS[:1], [RANKS[0], RANKS[0]]])
def test_missing_rank_is_refused(fake_mpirun, environment, progress, tmp_path, lines):
    with pytest.raises(BuildError, match="wrong answer"):
        prove(fake_mpirun(*lines), environment, progress, tmp_path)


def test_launcher_of_another_mpi_is_recognised(fake_mpirun, environment, progress, tmp_path):
    alone = '{"rank": 0, "size": 1, "wrong": 1000, "device": "CPU:0"}'
    with pytest.raises(BuildError, match="each rank saw 1 rank"):
        prove(fake_mpirun(alone, alone), environment, progress, tmp_path)


def test_library_that_does_not_load_is_one_line(fake_mpirun, environment, progress, tmp_path):
    ending = "echo 'mpi_lib.so: undefined symbol: _ZN15stream_executor'; exit 1"
    with pytest.raises(BuildError, match=r"undefined symbol _ZN15stream_executor\)"):
        prove(fake_mpirun(ending=ending), environment, progress, tmp_path)


def test_job_that_fails_is_said(fake_mpirun, environment, progress, tmp_path):
    with pytest.raises(BuildError, match=r"The 2-rank proof failed\..*exit code 7"):
        prove(fake_mpirun(ending="exit 7"), environment, progress, tmp_path)


def test_job_that_hangs_is_ended(fake_mpirun, environment, progress, tmp_path):
    launcher = fake_mpirun(ending="sleep 300")
    with pytest.raises(BuildError, match="took too long"):
        prove(launcher, environment, progress, tmp_path, timeout_seconds=0.5)
