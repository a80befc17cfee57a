"""Runs three replicas and one agent on a host with a real GPU, and checks what workers see of it.

    check.py PROGRAMS    the directory of muster and muster-shim

Each check prints a line that begins with `ok` or `FAILED`; the exit code is the number of failures.
"""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
PATIENCE_S = 60
NODE = "gpu-host"
# Where the driver's libraries are is the host's matter; a worker gets what is named here.
LIBRARIES = ["--env", "LD_LIBRARY_PATH"] if "LD_LIBRARY_PATH" in os.environ else []
ON_THE_HOST = ["--region", "gpu", "--directory", "/", "--cpu", "500m", "--memory", "1Gi", *LIBRARIES]


def open_python():
    """A Python that other users may run, as workers do."""
    for path in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        program = pathlib.Path(path).resolve()
        if program.is_file() and all(part.stat().st_mode & 0o005 for part in (program, *program.parents)):
            return str(program)
    raise SystemExit("skipped: a real GPU (there is no python3 that every user may run)")


class Check:
    """Counts what held."""

    def __init__(self):
        self.failures = 0

    def __call__(self, what, holds, seen=""):
        self.failures += not holds
        print(f"{'ok    ' if holds else 'FAILED'} {what}{f': {seen}' if seen != '' else ''}", flush=True)


def smi(query, kind="gpu"):
    """What nvidia-smi answers, a list of columns for each line."""
    ran = subprocess.run(
        ["nvidia-smi", f"--query-{kind}={query}", "--format=csv,noheader,nounits"],
        check=True, capture_output=True, text=True,
    )
    return [[cell.strip() for cell in line.split(",")] for line in ran.stdout.splitlines() if line.strip()]


def eventually(what, look):
    """Looks until the answer is true; the answer."""
    end = time.monotonic() + PATIENCE_S
    while True:
        answer = look()
        if answer:
            return answer
        if time.monotonic() > end:
            raise SystemExit(f"FAILED {what}: not within {PATIENCE_S} s")
        time.sleep(0.05)


class Cluster:
    """Replicas by `muster dev` with a host that has no accelerators of this kind, and an agent of the real host."""

    def __init__(self, programs, root):
        self.muster, self.root, self.processes = programs / "muster", root, []
        self.log = (root / "dev.log").open("w")
        self.start([self.muster, "dev", "--replicas", "3", "--hosts", "1", "--accelerators", "v5e:1", "--dir", root / "dev"], self.log)
        text = eventually("replicas", self.endpoints)
        self.environment = {**os.environ, "MUSTER_ENDPOINTS": text}
        config = root / "agent.toml"
        endpoints = ", ".join(f'"{endpoint}"' for endpoint in text.split(","))
        config.write_text(
            f'state_dir = "{root}/agent"\nendpoints = [{endpoints}]\nhttp_listen = "127.0.0.1:0"\n'
            "[node]\n"
            f'name = "{NODE}"\nregion = "gpu"\ncluster = "gpu-1"\naddress = "127.0.0.1"\ncpu = 4\nmemory = "8Gi"\n'
            'accelerators = "discover"\n'
            "[workers]\nuid_range = { first = 2000000, count = 100000 }\n"
        )
        self.agent_log = root / "agent.log"
        self.agent = self.start([self.muster, "agent", "--config", config], self.agent_log.open("w"))

    def start(self, command, log):
        process = subprocess.Popen([str(word) for word in command], stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        self.processes.append(process)
        return process

    def endpoints(self):
        if self.processes[0].poll() is not None:
            raise SystemExit(f"FAILED the replicas ended: {(self.root / 'dev.log').read_text()}")
        found = re.search(r"^  endpoints (\S+)$", (self.root / "dev.log").read_text(), re.MULTILINE)
        return found and found.group(1)

    def call(self, *words):
        """A command of the tool: exit code, output, errors."""
        ran = subprocess.run(
            [str(self.muster), *map(str, words)], env=self.environment, capture_output=True, text=True, timeout=120
        )
        return ran.returncode, ran.stdout, ran.stderr

    def node(self):
        code, out, _ = self.call("node", "show", NODE, "-o", "json")
        return json.loads(out) if code == 0 else None

    def run(self, accelerators, *command):
        """Runs a command as a job on the host and waits for its end."""
        wanted = ["--accelerators", accelerators] if accelerators else []
        return self.call("run", *ON_THE_HOST, *wanted, "--", *command)

    def detached(self, accelerators, *command):
        code, out, errors = self.call("run", "--detach", *ON_THE_HOST, "--accelerators", accelerators, "--", *command)
        if code != 0:
            raise SystemExit(f"FAILED a job is refused: {errors}")
        return out.split()[0]

    def logs(self, job):
        return self.call("job", "logs", job)[1]

    def stop(self):
        """Ends everything; shims go on without their agent, and with them the workers, so those are killed."""
        for process in reversed(self.processes):
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
        subprocess.run(["pkill", "-KILL", "-f", f"muster-shim wait {self.root}/"], check=False)


def checks(cluster, check):
    """What has to hold on a host with a GPU."""
    name, memory_mib, driver = smi("name,memory.total,driver_version")[0]
    uuids = sorted(uuid for [uuid] in smi("uuid"))
    print(f"host: {len(uuids)} x {name}, {memory_mib} MiB, driver {driver}", flush=True)
    node = eventually("the host joins", cluster.node)
    text = json.dumps(node)
    labels = node.get("labels") or node.get("spec", {}).get("labels", {})
    kind = next((word.lower() for word in re.split(r"[ -]", name) if re.search(r"\d", word)), "?")
    check("the host offers its devices by their type", f'"{kind}"' in text.lower(), kind)
    check("labels name model and driver", (labels.get("gpu.model"), labels.get("gpu.driver")) == (name, driver), labels)
    check("devices are kept apart", labels.get("isolation.devices") in ("filtered", "hidden"), labels.get("isolation.devices"))

    python, cuda = open_python(), str(cluster.root / "cuda.py")
    begun = time.monotonic()
    code, out, errors = cluster.run(f"{kind}:1", python, cuda, "devices")
    seen = [line for line in out.splitlines() if line.startswith("GPU-")]
    check("a worker with one device sees one, and it is this host's", code == 0 and len(seen) == 1 and seen[0] in uuids, (seen, errors[-300:]))
    print(f"      it took {time.monotonic() - begun:.2f} s from the command to its end", flush=True)
    code, out, errors = cluster.run(f"{kind}:1", python, cuda, "compute")
    check("a kernel of a worker computes", code == 0 and "42" in out.split(), (code, out[-100:], errors[-300:]))
    code, out, errors = cluster.run(None, python, cuda, "devices")
    check("a worker without devices sees none", code != 0 and "GPU-" not in out, (code, errors[-200:]))
    opens = "import os; os.environ.pop('CUDA_VISIBLE_DEVICES', None); os.open('/dev/nvidia0', os.O_RDWR)"
    code, _, errors = cluster.run(None, python, "-c", opens)
    check("it cannot open a device either", code != 0 and re.search("PermissionError|FileNotFoundError", errors + _) is not None, (code, (errors + _)[-160:]))

    shares(cluster, check, kind)
    killed_guard(cluster, check, kind)
    faults(cluster, check, kind)
    code, out, _ = cluster.call("node", "show", NODE)
    print(out)
    address = re.search(r"http=(127\.0\.0\.1:\d+)", cluster.agent_log.read_text())
    if address:
        with urllib.request.urlopen(f"http://{address.group(1)}/metrics", timeout=10) as answer:
            page = answer.read().decode()
        print("\n".join(line for line in page.splitlines() if "device" in line or "accelerator" in line or "nvml" in line))


def shares(cluster, check, kind):
    """Two workers with half a device each hold memory of the same device at once; a cancelled one leaves nothing there."""
    python, cuda = open_python(), str(cluster.root / "cuda.py")
    used = lambda: sum(int(mib) for [mib] in smi("memory.used"))
    before = used()
    jobs = [cluster.detached(f"{kind}:0.5", python, cuda, "hold", 512) for _ in range(2)]
    for job in jobs:
        eventually("a share of a device runs", lambda job=job: "holding" in cluster.logs(job))
    during = used()
    check("two halves of one device run beside each other", during - before >= 1024, f"{before} -> {during} MiB")
    if len(smi("uuid")) == 1:
        jobs.append(cluster.detached(f"{kind}:0.5", python, cuda, "devices"))
        code, out, _ = cluster.call("job", "explain", jobs[-1])
        check("a third half waits, and the reason is told", code == 0 and out.strip() != "", out.strip()[:300])
    for job in jobs:
        cluster.call("job", "cancel", job)
    eventually("memory of the device comes back", lambda: used() <= before + 16)
    check("cancelled workers leave no memory of the device behind", True, f"{used()} MiB")


def parent(pid):
    """The parent of a process."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"^PPid:\s*(\d+)", status, re.MULTILINE).group(1))


def killed_guard(cluster, check, kind):
    """The kernel ends what holds the device when the process ends that guards it."""
    job = cluster.detached(f"{kind}:1", open_python(), str(cluster.root / "cuda.py"), "hold", 512)
    eventually("the device is held", lambda: "holding" in cluster.logs(job))
    [worker] = [int(pid) for [pid] in smi("pid", "compute-apps")]
    # Its parent is the first process of its namespace, whose parent is the shim.
    shim = parent(parent(worker))
    os.kill(shim, signal.SIGKILL)
    # Its job may be tried again, and hold the device once more, before one looks.
    eventually("the device is given up", lambda: [str(worker)] not in smi("pid", "compute-apps"))
    check("a worker whose guard was killed gives the device up", True)
    cluster.call("job", "cancel", job)


def faults(cluster, check, kind):
    """What a program does wrong on a device ends that program, and the host goes on."""
    python, cuda = open_python(), str(cluster.root / "cuda.py")
    code, out, errors = cluster.run(f"{kind}:1", python, cuda, "fault")
    told = re.search(r"failed: (.*)", errors)
    check("a program that writes where nothing is fails, and the driver's word for it is told", code != 0 and "xid-31" in errors, told and told.group(1)[:120])
    text = json.dumps(cluster.node().get("restriction") or {})
    check("the host is not blamed for it", "cordon" not in text and "quarantin" not in text, text[:300])
    code, out, errors = cluster.run(f"{kind}:1", python, cuda, "compute")
    check("the next program computes on the same device", code == 0 and "42" in out.split(), (code, errors[-300:]))


def main():
    check = Check()
    # Not below /tmp, which is private to each worker, and open to the users that workers run as.
    with tempfile.TemporaryDirectory(prefix="muster-gpus-", dir="/var/lib") as directory:
        root = pathlib.Path(directory)
        root.chmod(0o755)
        shutil.copyfile(HERE / "cuda.py", root / "cuda.py")
        cluster = Cluster(pathlib.Path(sys.argv[1]), root)
        try:
            checks(cluster, check)
        finally:
            cluster.stop()
            if check.failures:
                print(cluster.agent_log.read_text()[-6000:])
    print(f"{check.failures} failed")
    return min(check.failures, 100)


if __name__ == "__main__":
    sys.exit(main())
