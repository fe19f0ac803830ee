"""One process of a load test in the cluster: waits until there is something to ask, runs Locust, and says what came of it.

    loadtest.py WAIT_S FOLDER WARMUP_S [--then-reach HOST:PORT] GATEWAY MODEL -- LOCUST'S OPTIONS

Master and workers run the same; `--then-reach` is a worker's, which starts when its master listens. Runs in the load test's image by
`python -c`, so that nobody has to know where the locustfile lies. Exit code is Locust's. What is printed is about the time after the
warm-up: of rows in FOLDER, which are a worker's own or, on a volume that all share, everybody's; of latencies at the master, all.
"""

import argparse
import collections
import csv
import importlib.util
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

PAUSE_S = 1


def options():
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("wait_s", type=float)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("warmup_s", type=float)
    parser.add_argument("gateway")
    parser.add_argument("model")
    parser.add_argument("--then-reach", default="")
    parser.add_argument("locust", nargs="*")
    return parser.parse_args()


def is_served(gateway, model):
    """None where the model answers, else why not. Ends the process where waiting would not help."""
    key = os.environ.get("TANDEM_API_KEY")
    request = urllib.request.Request(f"{gateway}/v2/models/{model}/ready")
    if key:
        request.add_header("Authorization", f"Bearer {key}")
    try:
        with urllib.request.urlopen(request, timeout=10):
            return None
    except urllib.error.HTTPError as error:
        why = f"{error.code} {error.read().decode(errors='replace').strip()}"
        if error.code in (401, 403):
            sys.exit(f"{gateway}: {why}")
        return why
    except OSError as error:
        return str(getattr(error, "reason", error))


def is_there(address):
    """None where somebody listens, else why not."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except OSError as error:
        return str(error)
    return None


def wait(what, give_up, why_not):
    while (why := why_not()) is not None:
        if time.monotonic() > give_up:
            sys.exit(f"{what} is not there: {why}")
        time.sleep(PAUSE_S)


def run(arguments):
    """Locust's exit code. A signal goes on to it: the first process of a container gets none by itself."""
    locustfile = importlib.util.find_spec("loadtest.locustfile").origin
    came = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda got, _: came.append(got))
    process = subprocess.Popen([sys.executable, "-m", "locust", "-f", locustfile, *arguments])
    # Not process.wait(): a signal that comes just before it would be handled only when Locust has ended.
    while (code := process.poll()) is None:
        while came:
            process.send_signal(came.pop(0))
        time.sleep(0.1)
    return code


def latencies(files, key):
    """The histograms of these files, added up."""
    from loadtest.sending.generator import histogram  # not before Locust is over: it is not small

    total, num_files = histogram(), 0
    for name in files:
        total.decode_and_add(json.loads(name.read_text())[key].encode("ascii"))
        num_files += 1
    return total if num_files else None


def summary(folder, warmup_s):
    """Lines about a run; none for a process that has neither rows nor a histogram."""
    rows = sorted(folder.glob("rows*.csv"))
    answers, late_s = collections.Counter(), 0.0
    for name in rows:
        with name.open(newline="") as file:
            for row in csv.DictReader(file):  # one after the other: a long run has millions
                if float(row["start_s"]) >= warmup_s:
                    place = " ".join(filter(None, (row["pool"], row["variant"])))
                    answers[row["error"] or f"ok {place}"] += 1
                    late_s = max(late_s, float(row["lag_s"]))
    if answers:
        yield f"{sum(answers.values())} requests: " + ", ".join(f"{n} {what}" for what, n in answers.most_common())
        yield f"sent at most {late_s * 1e3:.1f} ms after they were due"
    together = sorted(folder.glob("rows.together.json"))
    found = latencies(together or sorted(folder.glob("rows*.generator.json")), "latencies_us")
    if found is not None and found.total_count:
        shares = "  ".join(f"p{p:g} {found.get_value_at_percentile(p) / 1e3:.2f} ms" for p in (50, 95, 99, 99.9))
        yield f"{found.total_count} good answers: {shares}"


def main():
    given = options()
    give_up = time.monotonic() + given.wait_s
    given.folder.mkdir(parents=True, exist_ok=True)
    wait(f"model {given.model} at {given.gateway}", give_up, lambda: is_served(given.gateway, given.model))
    if not given.then_reach and any(given.folder.glob("rows*")):
        sys.exit(f"{given.folder} has the rows of a run before, which these would be added to: move them away")
    if given.then_reach:
        wait(f"the master at {given.then_reach}", give_up, lambda: is_there(given.then_reach))
    code = run(given.locust)
    for line in summary(given.folder, given.warmup_s):
        print(line, flush=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
