#!/usr/bin/python3
"""deploy/kubernetes/mpijob.yaml against what the MPI operator's v2beta1 API asks for, and against itself."""
import pathlib
import re
import sys

try:
    import yaml
except ImportError:
    print("SKIPPED: this Python has no yaml (Debian: python3-yaml)")
    sys.exit(77)

ROOT = pathlib.Path(__file__).resolve().parents[2]
MANIFEST = ROOT / "deploy/kubernetes/mpijob.yaml"


class Required:
    def __init__(self, kind):
        self.kind = kind


class OneOf(tuple):
    pass


QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(m|Ki|Mi|Gi|Ti|k|M|G|T)?")
DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")

# The parts of the API's documented types that a job like ours uses. A key that is not listed is a mistake.
RESOURCES = {"cpu": Required(QUANTITY), "memory": Required(QUANTITY)}
CONTAINER = {
    "name": Required(DNS_LABEL),
    "image": Required(str),
    "command": [str],
    "args": [str],
    "workingDir": str,
    "env": [{"name": Required(str), "value": Required(str)}],
    "securityContext": {"runAsUser": int},
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
        "spec": Required({"containers": Required([CONTAINER]), "volumes": [VOLUME]}),
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


def contradictions(job):
    """Where the manifest does not agree with itself, or with the repository."""
    found = []
    spec = job["spec"]
    launcher, worker = (spec["mpiReplicaSpecs"][role] for role in ("Launcher", "Worker"))
    script = " ".join(launcher["template"]["spec"]["containers"][0]["command"])

    if launcher["replicas"] != 1:
        found.append("there is one launcher")
    ranks = int(re.search(r"shoal launch -n (\d+)", script).group(1))
    if ranks != worker["replicas"] * spec["slotsPerWorker"]:
        found.append(f"-n {ranks}, but {worker['replicas']} workers have {spec['slotsPerWorker']} slots each")
    config = re.search(r"train /opt/shoal/(\S+)", script).group(1)
    if not (ROOT / config).exists():
        found.append(f"there is no {config}")
    if "init.from=auto" not in script.split():
        found.append("the launcher's successor does not go on from the run's checkpoint")

    images = set()
    for role in (launcher, worker):
        pod = role["template"]["spec"]
        volumes = {volume["name"] for volume in pod["volumes"]}
        for container in pod["containers"]:
            images.add(container["image"])
            for mount in container["volumeMounts"]:
                if mount["name"] not in volumes:
                    found.append(f"no volume {mount['name']}")
            if container["resources"]["requests"] != container["resources"]["limits"]:
                found.append(f"{container['name']}: what is requested is not what it may take")
    if len(images) != 1:
        found.append("launcher and workers run different images")
    return found


def main():
    job = yaml.safe_load(MANIFEST.read_text())
    found = faults(job, MPI_JOB, "job") or contradictions(job)

    # The check itself can fail.
    for path, value in [("slotsPerWorker", "four"), ("mpiReplicaSpecs", {}), ("slots", 4)]:
        broken = yaml.safe_load(MANIFEST.read_text())
        broken["spec"][path] = value
        assert faults(broken, MPI_JOB, "job"), f"spec.{path} = {value!r} went unnoticed"
    broken = yaml.safe_load(MANIFEST.read_text())
    broken["spec"]["slotsPerWorker"] += 1
    assert contradictions(broken), "a wrong number of ranks went unnoticed"

    for fault in found:
        print(f"{MANIFEST.name}: {fault}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
