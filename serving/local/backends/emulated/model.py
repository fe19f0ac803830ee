"""The Triton backend `emulated`, a test tool: the real answer of `onnxruntime`, held until a service-time curve says so.

Answers: when does an execution on the emulated device begin and end? One device per tritonserver: the executions of all
its models follow one another on one timeline, which the stubs share in a few bytes of shared memory. Waiting is sleeping,
so that several such devices fit on few cores. Not here: the curve's file, which `tandem triton --emulate` reads and
hands over in the configuration. Keep: a model whose real run could not keep up with the curve is refused, because its
times would be this machine's and not the curve's.
"""

import contextlib
import fcntl
import importlib.util
import json
import os
import pathlib
import queue
import struct
import sys
import threading
import time

import numpy as np
import triton_python_backend_utils as pb

MAX_REAL_RATIO = 0.2  # of the emulated time: what the real run may take, so that holding decides and not this machine
# The fastest real run counts, because the others were disturbed. There are at least so many, and more for so long (guesses): on a busy
# machine each of seven may be disturbed.
NUM_RUNS, RUNS_S = 7, 1.0
# The next batch is asked for this long before the device comes free, because Triton needs time to hand it over: the device loses
# none by it. About ten times what that takes on idle cores, so that it mostly does on busy ones too.
LEAD_S = 0.002
COMPLAIN_EVERY_S = 10.0
SHARED = pathlib.Path("/dev/shm")
FREE_AT = struct.Struct("d")  # CLOCK_MONOTONIC, which all processes of a machine share


def beside(name):
    """The backend of that name in the directory that this one lies in."""
    spec = importlib.util.spec_from_file_location(
        f"tandem_{name}", pathlib.Path(__file__).parents[1] / name / "model.py"
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


real = beside("onnxruntime")


class Device:
    """When the device of this server comes free: read and set by every stub of the server, one at a time.

    Who uses it holds a shared lock (flock), so that the last one knows that it is; turns are taken with another lock (lockf).
    """

    def __init__(self, path):
        self.path = path
        self.file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self.file, fcntl.LOCK_SH)

    def use(self, asked, seconds):
        """When an execution that was asked for at `asked` and takes so long ends (CLOCK_MONOTONIC)."""
        fcntl.lockf(self.file, fcntl.LOCK_EX)
        try:
            before = os.pread(self.file, FREE_AT.size, 0)
            free = FREE_AT.unpack(before)[0] if len(before) == FREE_AT.size else 0.0
            end = max(free, asked) + seconds
            os.pwrite(self.file, FREE_AT.pack(end), 0)
        finally:
            fcntl.lockf(self.file, fcntl.LOCK_UN)
        return end

    def leave(self):
        """The last one takes the file away: a server whose supervisor was killed has nobody else to do it."""
        with contextlib.suppress(OSError):
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.path.unlink(missing_ok=True)
        os.close(self.file)


def device_file():
    """Named as the server's other shared memory is, so that the supervisor removes it with the rest."""
    return SHARED / f"{os.environ['TANDEM_REGION_PREFIX']}device"


def leave_with_parent(parent):
    """As in `onnxruntime`, and the device's file goes too."""
    while os.getppid() == parent:
        time.sleep(real.PARENT_POLL_S)
    with contextlib.suppress(OSError):
        device_file().unlink(missing_ok=True)
    leave(parent)


leave, real.leave_with_parent = real.leave_with_parent, leave_with_parent


def wait_until(end):
    while (left := end - time.monotonic()) > 0:
        time.sleep(left)


def empty(entry, rows, is_batched):
    """Zeros for a configured input; a dimension of any length is 1, as in the generated warm-up."""
    dims = entry["reshape"]["shape"] if entry.get("reshape") else entry["dims"]
    shape = [rows] * is_batched + [max(1, int(size)) for size in dims]
    if entry["data_type"] == "TYPE_STRING":
        return np.full(shape, "", np.object_)
    return np.zeros(shape, pb.triton_string_to_numpy(entry["data_type"]))


class TritonPythonModel(real.TritonPythonModel):
    def initialize(self, args):
        super().initialize(args)
        config = json.loads(args["model_config"])
        curve = json.loads(config["parameters"]["tandem_emulated_curve"]["string_value"])
        self.name, self.seconds = args["model_name"], curve["seconds"]  # of 1, 2, 3 … rows
        self.complained = float("-inf")
        for rows in curve["check_rows"]:
            self.require_quick(config, rows)
        self.device = Device(device_file())
        self.held = queue.SimpleQueue()
        self.sender = threading.Thread(target=self.let_go, daemon=True)
        self.sender.start()
        emulated = config["parameters"]["tandem_emulated"]["string_value"]
        pb.Logger.log_info(
            f"{args['model_instance_name']}: emulates {emulated}; its times are a file's, not a device's"
        )

    def require_quick(self, config, rows):
        """Refuses the load where the real run takes too much of the emulated time."""
        feed = {entry["name"]: empty(entry, rows, self.is_batched) for entry in config["input"]}
        emulated, fastest = self.seconds[rows - 1], float("inf")
        num_runs, until = 0, time.monotonic() + RUNS_S
        while fastest > MAX_REAL_RATIO * emulated and (num_runs < NUM_RUNS or time.monotonic() < until):
            began = time.monotonic()
            self.session.run(self.output_names, feed, self.run_options)
            fastest, num_runs = min(fastest, time.monotonic() - began), num_runs + 1
        if fastest > MAX_REAL_RATIO * emulated:
            raise real.refuse(
                f"the real run of {rows} rows takes {fastest * 1000:.2f} ms, which is more than {MAX_REAL_RATIO:.0%} of the "
                f"emulated {emulated * 1000:.2f} ms: emulate a slower device, or take a smaller model"
            )

    def execute(self, requests):
        """Answers when the device has done; Triton may hand over the next batch a little before."""
        senders = [request.get_response_sender() for request in requests]
        self.end = 0.0
        responses = super().execute(requests)
        self.held.put((self.end, senders, responses))
        wait_until(self.end - LEAD_S)

    def run(self, members):
        asked = time.monotonic()
        answers = super().run(members)
        self.end = self.device.use(asked, self.seconds[(sum(m.rows for m in members) if self.is_batched else 1) - 1])
        late = time.monotonic() - self.end
        if late > 0:
            self.complain(late)
        return answers

    def let_go(self):
        """Sends what is held, each answer when its execution ends, until None comes."""
        while (held := self.held.get()) is not None:
            end, senders, responses = held
            wait_until(end)
            for sender, response in zip(senders, responses, strict=True):
                sender.send(response, flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def finalize(self):
        super().finalize()
        self.held.put(None)
        self.sender.join()
        self.device.leave()

    def complain(self, late):
        """Whoever measures must know that this machine was too busy for it."""
        now = time.monotonic()
        if now - self.complained > COMPLAIN_EVERY_S:
            self.complained = now
            pb.Logger.log_warn(
                f"{self.name}: a real run ended {late * 1000:.2f} ms after the emulated one: the machine is too busy"
            )
