#!/usr/bin/python3
"""deploy/kubernetes against what the MPI operator's v2beta1 API and Kubernetes' batch/v1 ask for, and against itself."""
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile

try:
    import yaml
except ImportError:
    print("SKIPPED: this Python has no yaml (Debian: python3-yaml)")
    sys.exit(77)

ROOT = pathlib.Path(__file__).resolve().parents[2]
MPI_MANIFEST = ROOT / "deploy/kubernetes/mpijob.yaml"
GPU_MANIFEST = ROOT / "deploy/kubernetes/gpu-job.yaml"


class Required:
    def __init__(self, kind):
        self.kind = kind


class OneOf(tuple):
    pass


QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(m|Ki|Mi|Gi|Ti|k|M|G|T)?")
DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")

# The parts of the API's documented types that a job like ours uses. A key that is not listed is a mistake.
RESOURCES = {"cpu": Required(QUANTITY), "memory": Required(QUANTITY), "nvidia.com/gpu": QUANTITY}
CONTAINER = {
    "name": Required(DNS_LABEL),
    "image": Required(str),
    "command": [str],
    "args": [str],
    "workingDir": str,
    "env": [{"name": Required(str), "value": Required(str)}],
    "readinessProbe": {"tcpSocket": Required({"port": Required(int)}), "initialDelaySeconds": int},
    "resources": Required({"requests": Required(RESOURCES), "limits": Required(RESOURCES)}),
    "volumeMounts": [{"name": Required(DNS_LABEL), "mountPath": Required(str)}],
}
VOLUME = {
    "name": Required(DNS_LABEL),
    "persistentVolumeClaim": {"claimName": Required(DNS_LABEL)},
    "emptyDir": {"medium": OneOf(["", "Memory"]), "sizeLimit": QUANTITY},
}
REPLICA = {
    "replicas": Required(int),
    "restartPolicy": OneOf(["Never", "OnFailure", "Always"]),
    "template": Required({
        "metadata": {"annotations": dict, "labels": dict},
        "spec": Required({
            "securityContext": {"runAsUser": Required(int), "fsGroup": Required(int)},
            "containers": Required([CONTAINER]),
            "volumes": [VOLUME],
        }),
    }),
}
MPI_JOB = {
    "apiVersion": Required(OneOf(["kubeflow.org/v2beta1"])),
    "kind": Required(OneOf(["MPIJob"])),
    "metadata": Required({"name": Required(DNS_LABEL), "namespace": DNS_LABEL}),
    "spec": Required({
        "slotsPerWorker": int,
        "sshAuthMountPath": str,
        "mpiImplementation": OneOf(["OpenMPI", "Intel", "MPICH"]),
        "runPolicy": {
            "cleanPodPolicy": OneOf(["None", "Running", "All"]),
            "backoffLimit": int,
            "activeDeadlineSeconds": int,
            "ttlSecondsAfterFinished": int,
        },
        "mpiReplicaSpecs": Required({"Launcher": Required(REPLICA), "Worker": REPLICA}),
    }),
}

GPU_JOB = {
    "apiVersion": Required(OneOf(["batch/v1"])),
    "kind": Required(OneOf(["Job"])),
    "metadata": Required({"name": Required(DNS_LABEL), "namespace": DNS_LABEL}),
    "spec": Required({
        "backoffLimit": int,
        "template": Required({
            "spec": Required({
                "restartPolicy": Required(OneOf(["Never", "OnFailure"])),
                "terminationGracePeriodSeconds": int,
                "containers": Required([CONTAINER]),
                "volumes": [VOLUME],
            }),
        }),
    }),
}


def faults(value, schema, where=""):
    """What stands against a value, each with the path to it."""
    if isinstance(schema, Required):
        schema = schema.kind
    if isinstance(schema, OneOf):
        return [] if value in schema else [f"{where}: {value!r} is none of {list(schema)}"]
    if isinstance(schema, re.Pattern):
        fits = isinstance(value, str) and schema.fullmatch(value)
        return [] if fits else [f"{where}: {value!r} is no text of the form {schema.pattern}"]
    if isinstance(schema, list):
        if not isinstance(value, list) or not value:
            return [f"{where}: not a list"]
        return [fault for i, item in enumerate(value) for fault in faults(item, schema[0], f"{where}[{i}]")]
    if isinstance(schema, dict):
        if not isinstance(value, dict):
            return [f"{where}: not a mapping"]
        found = [f"{where}.{key}: unknown" for key in value if key not in schema]
        for key, kind in schema.items():
            if key in value:
                found += faults(value[key], kind, f"{where}.{key}")
            elif isinstance(kind, Required):
                found.append(f"{where}.{key}: missing")
        return found
    fits = isinstance(value, schema) and not (schema is int and (isinstance(value, bool) or value < 0))
    return [] if fits else [f"{where}: {value!r} is no {schema.__name__}"]


def faults_of_config(path):
    """The config that a command names, at its place in an image: PREFIX/share/shoal/configs/NAME."""
    name = re.fullmatch(r"/usr(/local)?/share/shoal/(configs/\S+)", path)
    return [] if name and (ROOT / name.group(2)).exists() else [f"no image has {path}"]


def contradictions_of_pod(pod):
    found = []
    volumes = {volume["name"] for volume in pod["volumes"]}
    for container in pod["containers"]:
        for mount in container["volumeMounts"]:
            if mount["name"] not in volumes:
                found.append(f"no volume {mount['name']}")
        if container["resources"]["requests"] != container["resources"]["limits"]:
            found.append(f"{container['name']}: requests and limits differ")
    return found


def exit_code(container, run, stop):
    """Of the container's command, with a shell script in the place of shoal; `stop` sends it SIGTERM first."""
    with tempfile.TemporaryDirectory() as folder:
        program = pathlib.Path(folder, "shoal")
        program.write_text("#!/bin/sh\n" + run)
        program.chmod(0o755)
        path = f"{folder}:{os.environ['PATH']}"
        process = subprocess.Popen(container["command"] + container["args"], env={**os.environ, "PATH": path},
                                   stdout=subprocess.PIPE, text=True, start_new_session=True)
        try:
            process.stdout.readline()  # the program runs
            if stop:
                process.send_signal(signal.SIGTERM)
            return process.wait(timeout=60)
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)  # what a command left running would hold the test's output open
            except ProcessLookupError:
                pass


def contradictions_of_exit(container):
    """A pod that is stopped saves and ends with 143; else it ends with the program's own code."""
    saves = "trap 'sleep 0.2; exit 0' TERM; echo runs; while :; do sleep 0.01; done"
    own = f"echo; [ $1 = {container['args'][0]} ]"
    cases = ((saves, True, 143), (own, False, 0), ("echo; exit 2", False, 2))
    return [f"{container['name']} ends with {got}, not {code}: {run}" for run, stop, code in cases
            if (got := exit_code(container, run, stop)) != code]


def gpu_contradictions(job):
    """Where the job on GPUs does not agree with itself, or with the repository."""
    pod = job["spec"]["template"]["spec"]
    container = pod["containers"][0]
    arguments = container["args"]
    found = contradictions_of_pod(pod) + faults_of_config(arguments[arguments.index("train") + 1])
    if int(container["resources"]["limits"].get("nvidia.com/gpu", "0")) < 1:
        found.append("the pod asks for no GPU (nvidia.com/gpu)")
    for argument in ("train.backend=cuda", "init.from=auto", "--ranks"):
        if argument not in arguments:
            found.append(f"the command lacks {argument}")
    return found + contradictions_of_exit(container)


def contradictions(job):
    """Where the manifest does not agree with itself, or with the repository."""
    found = []
    spec = job["spec"]
    launcher, worker = (spec["mpiReplicaSpecs"][role] for role in ("Launcher", "Worker"))
    container = launcher["template"]["spec"]["containers"][0]
    arguments = container["args"]

    if launcher["replicas"] != 1:
        found.append("there is one launcher")
    ranks = int(arguments[arguments.index("-n") + 1])
    if ranks != worker["replicas"] * spec["slotsPerWorker"]:
        found.append(f"-n {ranks}, but {worker['replicas']} workers have {spec['slotsPerWorker']} slots each")
    found += faults_of_config(arguments[arguments.index("train") + 1])
    if "init.from=auto" not in arguments:
        found.append("the launcher's successor does not go on from the run's checkpoint")

    images = set()
    for role in (launcher, worker):
        pod = role["template"]["spec"]
        images.update(container["image"] for container in pod["containers"])
        found += contradictions_of_pod(pod)
    if len(images) != 1:
        found.append("launcher and workers run different images")
    return found + contradictions_of_exit(container)


def check(manifest, schema, contradict, breaks):
    """Faults of a manifest. Each of `breaks` changes it in place into one that has some: the check itself can fail."""
    for change in breaks:
        broken = yaml.safe_load(manifest.read_text())
        change(broken["spec"])
        assert faults(broken, schema, "job") or contradict(broken), f"{manifest.name}: a broken one went unnoticed"
    job = yaml.safe_load(manifest.read_text())
    return [f"{manifest.name}: {fault}" for fault in faults(job, schema, "job") or contradict(job)]


def main():
    def pod(spec):
        return spec["template"]["spec"]

    found = check(MPI_MANIFEST, MPI_JOB, contradictions, [
        lambda spec: spec.update(slotsPerWorker="four"),
        lambda spec: spec.update(mpiReplicaSpecs={}),
        lambda spec: spec.update(slots=4),
        lambda spec: spec.update(slotsPerWorker=spec["slotsPerWorker"] + 1),
        lambda spec: pod(spec["mpiReplicaSpecs"]["Launcher"])["containers"][0].update(command=["shoal"]),
    ])
    found += check(GPU_MANIFEST, GPU_JOB, gpu_contradictions, [
        lambda spec: spec.update(backoffLimit="ten"),
        lambda spec: pod(spec).update(restartPolicy="Always"),
        lambda spec: pod(spec)["containers"][0]["resources"]["limits"].update({"nvidia.com/gpu": "4"}),
        lambda spec: pod(spec)["containers"][0]["args"].remove("train.backend=cuda"),
        lambda spec: pod(spec)["volumes"].pop(),
        lambda spec: pod(spec)["containers"][0].update(command=["shoal"]),
    ])
    for fault in found:
        print(fault, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
