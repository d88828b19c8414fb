import json
import os
import subprocess
import sys

import pytest

HEAVY = {"tensorflow", "keras", "horovod", "mpi4py", "numpy", "tensorboard"}

LIGHT_IMPORTS = [
    "import fittrain",
    "import fittrain.cli",
    "import fittrain.cli.horovod",
    "import fittrain.horovod.build",
    "import fittrain.horovod.features",
    "from click.testing import CliRunner; from fittrain.cli import main; "
    "assert CliRunner().invoke(main, ['--help']).exit_code == 0",
]


@pytest.mark.parametrize("statement", LIGHT_IMPORTS)
def test_light_import_loads_nothing_heavy(statement):
    program = f"import json, sys; {statement}; print(json.dumps(sorted(sys.modules)))"
    output = subprocess.check_output([sys.executable, "-c", program], text=True)
    loaded = {name.partition(".")[0] for name in json.loads(output)}
    assert loaded & HEAVY == set()


def test_main_help_imports_no_command():
    program = (
        "import sys; from click.testing import CliRunner; from fittrain.cli import COMMANDS, main;"
        "assert CliRunner().invoke(main, ['--help']).exit_code == 0;"
        "print([m for m, _, _ in COMMANDS.values() if m in sys.modules])"
    )
    output = subprocess.check_output([sys.executable, "-c", program], text=True)
    assert output.strip() == "[]"


def test_help_takes_little_processor_time():
    # Processor time, not elapsed: other work on the machine does not count.
    process = subprocess.Popen(
        [sys.executable, "-m", "fittrain", "--help"], stdout=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    assert usage.ru_utime + usage.ru_stime < 0.4
