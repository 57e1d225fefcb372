"""The process tier as a whole: each test runs real programs."""

# ruff: noqa: ASYNC240 (the event loop has nothing else to do meanwhile)

import asyncio
import gc
import logging
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from retool.errors import InfrastructureError, UserError
from retool.sandbox import ExecutionStatus, open_sandbox
from retool.sandbox.__main__ import main as check_main
from retool.sandbox.local import proctree

OK, ERROR = ExecutionStatus.OK, ExecutionStatus.ERROR


@pytest.fixture
async def sandbox():
    async with open_sandbox(workers=2, allow_unsafe=True) as opened:
        yield opened


def alive(pid: int) -> bool:
    task = proctree.read_task(pid)
    return task is not None and task.alive


def write_pid_and_sleep(path: Path) -> str:
    return f"import os, time\nopen({str(path)!r}, 'w').write(str(os.getpid()) + '\\n')\ntime.sleep(600)"


async def written(path: Path) -> None:
    while not path.exists() or not path.read_text().endswith("\n"):  # noqa: ASYNC110 (another process writes it)
        await asyncio.sleep(0.01)


async def test_output_errors_and_exit_codes(sandbox):
    good = await sandbox.run("import sys\nprint('out')\nprint('err', file=sys.stderr)\n6 * 7")
    assert (good.status, good.stdout, good.stderr, good.returncode) == (OK, "out\n42\n", "err\n", 0)
    bad = await sandbox.run("import os\nprint('before')\nos._exit(7)")
    assert (bad.status, bad.stdout, bad.returncode) == (ERROR, "before\n", 7)
    message = await sandbox.run("import sys\nsys.exit('bad input')")
    assert (message.status, message.returncode, message.text) == (ERROR, 1, "bad input")


async def test_traceback_has_the_codes_own_frames_with_their_lines(sandbox):
    code = "import json\n\ndef parse(text):\n    return json.loads(text)\n\nparse('{')\n"
    result = await sandbox.run(code)
    assert result.status is ERROR
    assert [line.strip() for line in result.stderr.splitlines() if not set(line) <= set(" ^")] == [
        "Traceback (most recent call last):",
        'File "program.py", line 6, in <module>',
        "parse('{')",
        'File "program.py", line 4, in parse',
        "return json.loads(text)",
        "json.decoder.JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
    ]


async def test_chained_exceptions_and_syntax_errors_are_clean(sandbox):
    chained = await sandbox.run("try:\n    int('x')\nexcept ValueError as e:\n    raise KeyError('k') from e")
    assert "direct cause" in chained.text and "line 2" in chained.text and "retool" not in chained.text
    syntax = await sandbox.run("x = 1\nx = = 2\n")
    assert "line 2" in syntax.text and "x = = 2" in syntax.text and "autoprint" not in syntax.text


async def test_broken_streams_do_not_hide_the_error(sandbox):
    result = await sandbox.run("import sys, builtins\nbuiltins.print = None\nsys.stdout = sys.stderr = None\n1 / 0")
    assert result.status is ERROR and "ZeroDivisionError" in result.text


async def test_the_environment_is_empty_and_the_source_can_be_inspected(sandbox, monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "secret")
    result = await sandbox.run(
        "import os\nprint(sorted(os.environ), os.listdir('.'), sorted(os.listdir('/proc/self/fd')))"
    )
    assert "SOME_API_KEY" not in result.stdout and "[]" in result.stdout
    assert "['0', '1', '2', '3']" in result.stdout  # 3: the directory being listed
    result = await sandbox.run("import inspect\ndef f():\n    return 1\nprint(inspect.getsource(f))")
    assert "return 1" in result.stdout


async def test_main_module_and_imports_of_own_files(sandbox):
    code = "import sys\nopen('helper.py', 'w').write('v = 3')\nimport helper\n"
    code += "(__name__, helper.v, sys.argv, 'retool' in sys.modules)"
    assert (await sandbox.run(code)).stdout == "('__main__', 3, [''], False)\n"


async def test_cpu_time_is_charged_and_sleep_is_not(sandbox):
    spin = await sandbox.run("print('begun', end='')\nwhile True:\n    pass", cpu_time_s=0.3)
    assert (spin.status, spin.stdout, spin.returncode) == (ExecutionStatus.TIMEOUT, "begun", None)
    assert "time limit of 0.3 s of CPU time" in spin.text and 0.25 < spin.cpu_seconds < 5
    nap = await sandbox.run("import time\ntime.sleep(0.6)\nprint('rested')", cpu_time_s=0.5)
    assert (nap.status, nap.stdout) == (OK, "rested\n") and nap.cpu_seconds < 0.5 < nap.wall_seconds


async def test_cpu_time_of_children_is_charged(sandbox):
    code = "import os, time\nfor _ in range(2):\n    if os.fork() == 0:\n        while True: pass\ntime.sleep(60)"
    result = await sandbox.run(code, cpu_time_s=0.4, wall_time_s=50)
    assert result.status is ExecutionStatus.TIMEOUT and "CPU" in result.text


async def test_wall_time_is_a_backstop(sandbox):
    result = await sandbox.run("import time\nprint('a')\ntime.sleep(60)", wall_time_s=0.3)
    assert (result.status, result.stdout) == (ExecutionStatus.TIMEOUT, "a\n")
    assert "time limit of 0.3 s reached; the output above is partial" in result.text


async def test_code_that_ignores_signals_is_ended(sandbox):
    code = """
import signal
for n in range(1, 65):
    try:
        signal.signal(n, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
while True:
    pass
"""
    assert (await sandbox.run(code, cpu_time_s=0.3)).status is ExecutionStatus.TIMEOUT


async def test_memory_limit(sandbox):
    result = await sandbox.run("print('a')\nx = bytearray(3 << 30)")
    assert (result.status, result.stdout) == (ExecutionStatus.OUT_OF_MEMORY, "a\n")
    assert "memory limit of 1024 MB reached" in result.text
    assert (await sandbox.run("x = bytearray(600 << 20)\nprint(len(x))")).stdout == f"{600 << 20}\n"


async def test_memory_error_in_numpy_is_told_from_others(sandbox):
    result = await sandbox.run("import numpy as np\nnp.ones((200000, 200000))")
    assert result.status is ExecutionStatus.OUT_OF_MEMORY
    assert (await sandbox.run("raise ValueError('MemoryError')")).status is ERROR


async def test_segmentation_fault(sandbox):
    result = await sandbox.run("import ctypes\nctypes.string_at(0)")
    assert (result.status, result.returncode) == (ExecutionStatus.KILLED, -signal.SIGSEGV)
    assert "segmentation fault" in result.text


async def test_file_and_descriptor_limits(sandbox):
    code = "try:\n    open('f', 'wb').write(bytes(80 << 20))\nexcept OSError as e:\n    print(e.strerror)"
    assert (await sandbox.run(code)).stdout == "File too large\n"
    code = """
files = []
try:
    while True:
        files.append(open('/dev/null'))
except OSError as e:
    print(e.strerror, len(files) < 128)
"""
    assert (await sandbox.run(code)).stdout == "Too many open files True\n"


async def test_output_is_capped_and_a_flood_is_stopped():
    async with open_sandbox(workers=1, output_chars=100, output_hard_bytes=1 << 20, allow_unsafe=True) as sandbox:
        long = await sandbox.run("print('a' * 1000)\nprint('the end')")
        assert long.status is OK and long.stdout.endswith("the end\n") and len(long.text) < 200
        flood = await sandbox.run("while True: print('b' * 1000)")
        assert flood.status is ExecutionStatus.OUTPUT_LIMIT and "output limit" in flood.text
        burst = await sandbox.run("import os\nos.write(1, b'c' * (3 << 20))")
        assert burst.status is ExecutionStatus.OUTPUT_LIMIT


async def test_large_and_odd_code(sandbox):
    assert (await sandbox.run("#" * 300_000 + "\nprint('ok')")).stdout == "ok\n"
    assert (await sandbox.run("print('a\ud800')")).status is ERROR
    assert (await sandbox.run("print(1)\0")).status is ERROR
    assert (await sandbox.run("print('x\\ud800y')")).stdout == "x\\ud800y\n"
    assert (await sandbox.run("len(str(7 ** 20000))")).stdout == "16902\n"
    assert "EOFError" in (await sandbox.run("input()")).text
    assert (await sandbox.run("")).text == "[no output; use print() to see a result]"


ESCAPE = """
import os, time
r, w = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.setsid()
        os.write(w, str(os.getpid()).encode())
        for fd in range(3): os.close(fd)
        time.sleep(600)
    os._exit(0)
print(os.read(r, 20).decode())
"""


async def test_escapees_end_with_the_call(sandbox):
    result = await sandbox.run(ESCAPE)
    assert result.status is OK and not alive(int(result.stdout))
    result = await sandbox.run(ESCAPE + "while True: pass", cpu_time_s=0.3)
    assert result.status is ExecutionStatus.TIMEOUT and not alive(int(result.stdout))


async def test_code_that_kills_or_stops_its_supervisor_gains_nothing(sandbox):
    killed = await sandbox.run("import os, time\nos.kill(os.getppid(), 9)\ntime.sleep(60)")
    assert killed.status is ExecutionStatus.KILLED
    code = (
        "import os, signal, time\nprint(os.getpid(), flush=True)\nos.kill(os.getppid(), signal.SIGSTOP)\ntime.sleep(60)"
    )
    stopped = await sandbox.run(code, wall_time_s=0.2)
    assert stopped.status is ExecutionStatus.TIMEOUT and not alive(int(stopped.stdout))
    assert (await sandbox.run("print(1)")).status is OK


async def test_scratch_directories_are_removed_and_links_not_followed(sandbox, tmp_path):
    kept = tmp_path / "kept"
    kept.write_text("kept")
    code = f"import os\nos.makedirs('a/b')\nopen('a/b/c', 'w').close()\nos.symlink({str(tmp_path)!r}, 'a/link')\n"
    result = await sandbox.run(code + "print(os.getcwd())")
    assert result.status is OK and kept.exists()
    assert not os.path.lexists(result.stdout.strip())


async def test_a_cancelled_call_leaves_nothing(sandbox, tmp_path):
    mark = tmp_path / "pid"
    code = write_pid_and_sleep(mark)
    call = asyncio.create_task(sandbox.run(code))
    await written(mark)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert not alive(int(mark.read_text()))
    results = await asyncio.gather(*[sandbox.run("print(1)") for _ in range(4)])
    assert [result.stdout for result in results] == ["1\n"] * 4


async def test_waiting_calls_run_in_order_and_waiting_is_not_charged():
    async with open_sandbox(workers=1, allow_unsafe=True) as sandbox:
        order: list[int] = []

        async def one(number: int) -> None:
            await sandbox.run(f"import time\ntime.sleep({0.3 if number == 0 else 0})", wall_time_s=5)
            order.append(number)

        await asyncio.gather(*[one(number) for number in range(6)])
        assert order == list(range(6))
        figures = sandbox.metrics()
        assert (figures["sandbox/calls"], figures["sandbox/ok"]) == (6, 6)
        assert figures["time/sandbox_queue_p50"] > 0


async def test_descriptors_and_processes_do_not_grow(sandbox):
    async def mixed() -> None:
        codes = ["print(1)", "1 / 0", "import os; os._exit(3)", "import os\nif os.fork() == 0: os.setsid(); input()"]
        await asyncio.gather(*[sandbox.run(code) for code in codes])

    await mixed()
    gc.collect()
    before = len(list(Path("/proc/self/fd").iterdir())), len(proctree.descendants(os.getpid()))
    await mixed()
    gc.collect()
    assert (len(list(Path("/proc/self/fd").iterdir())), len(proctree.descendants(os.getpid()))) == before


async def test_spawn_failures_are_retried_then_infrastructure(sandbox, monkeypatch):
    attempts = 0
    popen = subprocess.Popen

    def flaky(*args, **kwargs):
        nonlocal attempts
        attempts += 1
        if attempts <= failures:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return popen(*args, **kwargs)

    monkeypatch.setattr("retool.sandbox.local.call.subprocess.Popen", flaky)
    failures = 2
    assert (await sandbox.run("print(1)")).status is OK
    attempts, failures = 0, 1000
    result = await sandbox.run("print(1)")
    assert result.status is ExecutionStatus.INFRASTRUCTURE and "temporarily unavailable" in result.stderr
    assert attempts == 4 and sandbox.metrics()["sandbox/infrastructure"] == 1


async def test_closing_ends_running_calls(tmp_path):
    mark = tmp_path / "pid"
    async with open_sandbox(workers=1, allow_unsafe=True) as sandbox:
        code = write_pid_and_sleep(mark)
        calls = [asyncio.create_task(sandbox.run(code)) for _ in range(2)]
        await written(mark)
    assert [(await call).status for call in calls] == [ExecutionStatus.INFRASTRUCTURE] * 2
    assert not alive(int(mark.read_text()))


def test_nothing_survives_a_killed_trainer(tmp_path):
    mark = tmp_path / "pid"
    code = f"""
import os, time
if os.fork() == 0:
    os.setsid()
open({str(mark)!r} + str(os.getpid()), 'w').close()
time.sleep(600)
"""
    trainer = textwrap.dedent(f"""
        import asyncio
        from retool.sandbox import open_sandbox
        async def main():
            async with open_sandbox(allow_unsafe=True) as sandbox:
                await sandbox.run({code!r})
        asyncio.run(main())
    """)
    process = subprocess.Popen([sys.executable, "-c", trainer], cwd=Path(__file__).parents[2])
    try:
        while len(marks := list(tmp_path.iterdir())) < 2:
            assert process.poll() is None
            time.sleep(0.02)
    finally:
        process.kill()
        process.wait()
    pids = [int(path.name.removeprefix("pid")) for path in marks]
    deadline = time.monotonic() + 10
    while any(alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(alive(pid) for pid in pids)


async def test_canary_failure_says_why():
    with pytest.raises(InfrastructureError, match=r"cannot run print\(1 \+ 1\) with /bin/false"):
        async with open_sandbox(python="/bin/false", allow_unsafe=True):
            pass


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("backend", "docker"),
        ("workers", 0),
        ("cpu_time_s", -1.0),
        ("memory_mb", float("nan")),
        ("python", "/no/python"),
    ],
)
async def test_user_mistakes_name_the_key(key, value):
    with pytest.raises(UserError, match=f"sandbox.{key}"):
        async with open_sandbox(**{key: value}):
            pass


async def test_one_warning_unless_the_risk_is_accepted(caplog):
    caplog.set_level(logging.WARNING, "retool.sandbox")
    async with open_sandbox(workers=1, allow_unsafe=True):
        pass
    assert not caplog.records
    async with open_sandbox(workers=1, backend="auto") as sandbox:
        await sandbox.run("1")
        assert sandbox.tier == "process"
    assert len(caplog.records) == 1 and "isolates nothing" in caplog.text


def test_check_says_what_the_tier_is_worth(capsys):
    assert check_main(["--check"]) == 0
    output = capsys.readouterr().out
    assert "tier: process" in output and "does not keep from model code" in output and "the network" in output
    assert check_main(["--python", "/bin/false"]) == 1


@pytest.mark.parametrize("backend", ["namespace", "landlock"])
async def test_an_isolation_that_is_asked_for_is_never_replaced_by_none(backend):
    with pytest.raises(UserError, match=f"sandbox.backend='{backend}' cannot be opened"):
        async with open_sandbox(backend=backend):
            pass
