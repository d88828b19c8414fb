import pytest

from fittrain.errors import MissingDependencyError
from fittrain.horovod import gpu
from fittrain.horovod.gpu import architectures, find_nccl_toolkit
from fittrain.horovod.requirements import Package

TENSORFLOW = Package("tensorflow", "2.21.0")
HEADER = "#define NCCL_MAJOR 2\n#define NCCL_MINOR 27\n#define NCCL_PATCH 7\n"


@pytest.fixture(autouse=True)
def no_system_toolkit(monkeypatch, tmp_path):
    """The machine that runs the tests may have CUDA and NCCL; these tests bring their own."""
    monkeypatch.setattr(gpu, "_SYSTEM_CUDA", tmp_path / "no-cuda")
    monkeypatch.setattr(gpu, "_SYSTEM_PREFIX", tmp_path / "no-prefix")
    monkeypatch.setattr(gpu.sysconfig, "get_path", lambda name: str(tmp_path / "site"))


@pytest.fixture
def cuda_home(tmp_path, add_program):
    home = tmp_path / "cuda"
    (home / "bin").mkdir(parents=True)
    (home / "include").mkdir()
    (home / "include" / "cuda_runtime.h").write_text("")
    text = "echo 'Cuda compilation tools, release 12.9, V12.9.86'"
    (home / "bin" / "nvcc").symlink_to(add_program("hidden-nvcc", text))
    return home


@pytest.fixture
def nccl_wheel(tmp_path):
    home = tmp_path / "site" / "nvidia" / "nccl"
    for name in ("include", "lib"):
        (home / name).mkdir(parents=True)
    (home / "include" / "nccl.h").write_text(HEADER)
    (home / "lib" / "libnccl.so.2").write_bytes(b"")
    return home


def test_tensorflow_without_cuda_is_refused_with_all_that_is_needed(environment):
    with pytest.raises(MissingDependencyError) as raised:
        find_nccl_toolkit(environment, Package("tensorflow-cpu", "2.21.0"))
    message = str(raised.value)
    assert message.startswith("tensorflow-cpu 2.21.0 has no CUDA.")
    for need in ("nvcc", "nccl.h", "fittrain[gpu]", "HOROVOD_CUDA_HOME", "HOROVOD_NCCL_HOME"):
        assert need in message


def test_machine_without_nvcc_is_told_what_it_needs(environment, nccl_wheel):
    with pytest.raises(MissingDependencyError, match="No `nvcc` found. A build with NCCL needs"):
        find_nccl_toolkit(environment, TENSORFLOW)


def test_machine_without_nccl_is_told_what_it_needs(environment, cuda_home):
    variables = {**environment, "HOROVOD_CUDA_HOME": str(cuda_home)}
    with pytest.raises(MissingDependencyError, match=r"No NCCL .* found. A build with NCCL needs"):
        find_nccl_toolkit(variables, TENSORFLOW)


def test_header_without_library_is_no_nccl(environment, cuda_home, nccl_wheel):
    (nccl_wheel / "lib" / "libnccl.so.2").unlink()
    variables = {**environment, "CUDA_HOME": str(cuda_home)}
    with pytest.raises(MissingDependencyError, match="No NCCL"):
        find_nccl_toolkit(variables, TENSORFLOW)


@pytest.mark.parametrize("variable", ["HOROVOD_CUDA_HOME", "CUDA_HOME", "CUDA_PATH"])
def test_toolkit_is_found_with_its_versions(environment, cuda_home, nccl_wheel, variable):
    toolkit = find_nccl_toolkit({**environment, variable: str(cuda_home)}, TENSORFLOW)
    assert str(toolkit) == "NCCL 2.27.7, CUDA 12.9"
    assert toolkit.cuda_home == cuda_home


def test_nvcc_in_path_is_found(environment, cuda_home, nccl_wheel):
    real = cuda_home / "bin" / "real"
    (cuda_home / "bin" / "nvcc").rename(real)
    (cuda_home / "bin" / "nvcc").write_text(real.read_text())
    (cuda_home / "bin" / "nvcc").chmod(0o755)
    path = f"{cuda_home / 'bin'}:{environment['PATH']}"
    assert find_nccl_toolkit({**environment, "PATH": path}, TENSORFLOW).cuda_home == cuda_home


def test_wrapper_script_in_path_is_no_toolkit(environment, nccl_wheel, add_program):
    add_program("nvcc")
    with pytest.raises(MissingDependencyError, match="No `nvcc` found"):
        find_nccl_toolkit(environment, TENSORFLOW)


def test_links_give_the_linker_the_name_that_the_wheel_lacks(
    environment, cuda_home, nccl_wheel, tmp_path
):
    toolkit = find_nccl_toolkit({**environment, "CUDA_HOME": str(cuda_home)}, TENSORFLOW)
    variables = toolkit.variables(tmp_path)
    home = tmp_path / "nccl"
    assert variables["HOROVOD_NCCL_HOME"] == str(home)
    assert (home / "lib" / "libnccl.so").resolve() == nccl_wheel / "lib" / "libnccl.so.2"
    assert (home / "include" / "nccl.h").read_text() == HEADER
    assert variables["HOROVOD_GPU_OPERATIONS"] == "NCCL"
    assert variables["HOROVOD_NCCL_LINK"] == "SHARED"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("echo 9.0; echo 9.0", "90"),
        ("echo 9.0; echo 8.0", "80,90"),
        ("echo no devices were found", None),
        ("exit 9", None),
    ],
)
def test_gpu_generations_of_this_machine(add_program, environment, text, found):
    add_program("nvidia-smi", text)
    assert architectures(environment) == found


def test_no_gpu_means_no_generations(environment):
    assert architectures({**environment, "PATH": "/nowhere"}) is None
