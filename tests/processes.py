# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""Processes that tests start, without the seconds that imports take in each of them.

Forks of the tests' process have the package and all else that the tests have imported. Programs that must not find the
package are run by forks of a process that has imported PyTorch and transformers, and nothing else: this file, run as
a script."""

import contextlib
import functools
import gc
import json
import logging
import os
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path


# Before tests change it.
ENVIRONMENT = dict(os.environ)


def fork(call: Callable[[], object], folder: Path, output: Path, environment: dict[str, str]) -> int:
    """Starts a process that calls `call` in `folder`. Its output is in the files `output` with the suffixes .out and
    .err. Returns its id; its status is 1 after an error."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        for descriptor, suffix in ((1, ".out"), (2, ".err")):
            os.dup2(os.open(output.with_suffix(suffix), os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
        sys.stdout, sys.stderr = (open(descriptor, "w", closefd=False) for descriptor in (1, 2))
        logging.getLogger().handlers.clear()  # of the tests
        call()
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def wait(child: int, output: Path) -> subprocess.CompletedProcess:
    """What came of a process that `fork` started."""
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return subprocess.CompletedProcess([], status, *texts_of(output))


def texts_of(output: Path) -> list[str]:
    return [output.with_suffix(suffix).read_text() for suffix in (".out", ".err")]


def serve() -> None:
    """Runs the programs that are asked for, each in a fork, and answers with its status."""
    sys.path[0] = ""
    # transformers imports torchao where it is installed, and that prints.
    sys.modules["torchao"] = None
    import torch  # noqa: F401
    from huggingface_hub import constants
    from transformers import dynamic_module_utils, modeling_utils, pipelines  # noqa: F401

    def run(program, arguments, modules, cache):
        warnings.filterwarnings("error", category=DeprecationWarning, module=r"modeling_ode_transformer\Z")
        # What the libraries take from the environment when they are imported.
        dynamic_module_utils.HF_MODULES_CACHE = modules
        constants.HF_HUB_CACHE = cache or constants.HF_HUB_CACHE
        sys.argv = ["-c", *arguments]
        exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})

    gc.freeze()
    for line in sys.stdin:
        program, arguments, folder, environment, output = json.loads(line)
        caches = environment["HF_MODULES_CACHE"], environment.get("HF_HUB_CACHE")
        call = functools.partial(run, program, arguments, *caches)
        child = fork(call, folder, Path(output), environment)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


@functools.cache
def server() -> subprocess.Popen:
    """It ends with the tests' process, when its input does."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    return subprocess.Popen([sys.executable, __file__], cwd=tempfile.gettempdir(), env=ENVIRONMENT, **pipes)


def run_clean(command: list, cwd: Path, env: dict[str, str], **kwargs) -> subprocess.CompletedProcess:
    """`subprocess.run` for a command `python -c PROGRAM ARGUMENTS`, whose process cannot have imported the package."""
    _, option, program, *arguments = map(str, command)
    assert option == "-c"
    with tempfile.TemporaryDirectory() as work:
        output = Path(work) / "output"
        print(json.dumps([program, arguments, str(cwd), env, str(output)]), file=server().stdin, flush=True)
        status = int(server().stdout.readline())
        return subprocess.CompletedProcess(command, status, *texts_of(output))


def run_python(program: str, folder: Path, *arguments: str, run: Callable = run_clean) -> str:
    """Runs a program in a process that has imported PyTorch and transformers only (with `subprocess.run`: nothing),
    with an empty cache of remote code, and returns what it prints."""
    environment = {**os.environ, "HF_MODULES_CACHE": str(folder / "modules"), "HF_HUB_OFFLINE": "1"}
    program = f"import sys; sys.modules['torchao'] = None\n{program}"
    command = [sys.executable, "-W", "error::DeprecationWarning:modeling_ode_transformer", "-c", program, *arguments]
    if run is run_clean:
        del command[1:3]  # as it has them in any case
    result = run(command, capture_output=True, text=True, cwd=folder, env=environment)
    assert result.returncode == 0, result.stderr
    return result.stdout + result.stderr


if __name__ == "__main__":
    serve()
