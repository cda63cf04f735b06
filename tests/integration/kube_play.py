"""What a chart renders, run for real by ``podman kube play`` where no cluster is.

Podman takes a Pod's manifest as it is: image, command, arguments, environment, security context,
init containers, memory limits, grace. What it does not do, this does in its place, as a cluster
would:

- A Deployment, StatefulSet or Job becomes as many Pods as it asks for.
- A Service becomes its name on the network, of the pods that it selects; none may translate ports.
- ``status.podIP`` in the environment becomes the address that the pod is given.
- An ``emptyDir`` or claim becomes a folder of the test's, owned as ``fsGroup`` says; one in memory
  becomes a tmpfs of its ``sizeLimit``.
- An init container that restarts always, which runs beside the others, becomes one of them.
- A Secret's or ConfigMap's volume becomes such a folder: Podman 4.3 knows neither ``items`` nor a
  secret that does not say whether it is optional.
- ``ports`` only say what is there; Podman 4.3 would publish them on the machine. They are left out.
- Probes and ``preStop`` are run by :class:`Pod`: Podman has no timers without systemd.

What only a scheduler reads is left out: affinity, spread, tolerations, priority, service account.
NetworkPolicies are not enforced here; ``tests/unit/k8s`` works them out.
"""

from __future__ import annotations

import base64
import copy
import ipaddress
import json
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
PODMAN = str(ROOT / "scripts" / "containers" / "podman")

Object = dict[str, Any]

SCHEDULERS = (
    *("affinity", "nodeSelector", "tolerations", "topologySpreadConstraints", "priorityClassName"),
    *("serviceAccountName", "runtimeClassName", "imagePullSecrets"),
)
"""What of a pod nobody reads here."""

NOT_PLAYED = ("startupProbe", "readinessProbe", "livenessProbe", "lifecycle", "ports")
"""What of a container Podman is not given."""

FIRST_ADDRESS = 50
"""Of a network's addresses; those before it are Podman's to give."""


def podman(*arguments: str, timeout_s: float = 120.0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PODMAN, "run", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )


def said(*arguments: str, timeout_s: float = 120.0) -> str:
    """What Podman prints; AssertionError if it fails."""
    done = podman(*arguments, timeout_s=timeout_s)
    assert done.returncode == 0, f"podman {' '.join(arguments)}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


class Cluster:
    """A network with pods on it, which bear its name.

    :param name: nobody else's.
    :param folder: for volumes and manifests; it has to be empty.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self._folder = folder
        self._objects: list[Object] = []
        self._mounts: list[Path] = []
        self.pods: dict[str, Pod] = {}
        said("network", "create", name)
        (network,) = json.loads(said("network", "inspect", name))
        subnet = ipaddress.ip_network(network["subnets"][0]["subnet"])
        self._addresses = iter(list(subnet.hosts())[FIRST_ADDRESS:])

    def play(self, objects: Iterable[Object], among: Iterable[Object]) -> list[Pod]:
        """Start the pods of these; it returns when their init containers have ended.

        :param among: all objects of the release: what volumes and services refer to.
        """
        self._objects = [*among]
        plays = [self._made(manifest) for each in objects for manifest in pods_of(each)]
        with ThreadPoolExecutor(max(1, len(plays))) as at_once:
            for _ in at_once.map(lambda play: play.start(), plays):
                pass
        return plays

    def down(self) -> None:
        with ThreadPoolExecutor(4) as at_once:
            for _ in at_once.map(Pod.remove, self.pods.values()):
                pass
        podman("network", "rm", "--force", self.name)
        while self._mounts:
            subprocess.run(["umount", str(self._mounts.pop())], check=True)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _made(self, manifest: Object) -> Pod:
        name = manifest["metadata"]["name"]
        address = str(next(self._addresses))
        aliases = [
            alias for service in self._services(manifest) for alias in service_names(service)
        ]
        folder = self._folder / name
        folder.mkdir(parents=True)
        translated = self._translated(manifest, address, folder)
        self.pods[name] = pod = Pod(name, manifest, translated, address, aliases, self.name, folder)
        return pod

    def _services(self, pod: Object) -> list[Object]:
        labels = pod["metadata"].get("labels", {})
        found = []
        for each in self._objects:
            if each["kind"] != "Service":
                continue
            wanted = each["spec"].get("selector")
            if wanted and wanted.items() <= labels.items():
                check_ports(each, pod)
                found.append(each)
        return found

    def _translated(self, manifest: Object, address: str, folder: Path) -> Object:
        pod = copy.deepcopy(manifest)
        spec = pod["spec"]
        for name in SCHEDULERS:
            spec.pop(name, None)
        group = spec.get("securityContext", {}).get("fsGroup", 0)
        spec["volumes"] = [
            {
                "name": volume["name"],
                "hostPath": {"path": str(self._volume(volume, folder / volume["name"], group))},
            }
            for volume in spec.get("volumes", [])
        ]
        for container in containers_of(spec):
            for name in NOT_PLAYED:
                container.pop(name, None)
            for variable in container.get("env", []):
                source = variable.get("valueFrom", {})
                if source.get("fieldRef", {}).get("fieldPath") == "status.podIP":
                    del variable["valueFrom"]
                    variable["value"] = address
        spec["containers"] = beside(spec) + spec["containers"]
        spec["initContainers"] = [each for each in first(spec) if each not in beside(spec)]
        return pod

    def _volume(self, volume: Object, folder: Path, group: int) -> Path:
        """A folder that holds what the volume holds."""
        if "hostPath" in volume:
            return Path(volume["hostPath"]["path"])
        if "persistentVolumeClaim" in volume:
            # One folder for all who claim it, and it stays for the next of them.
            folder = self._folder / "claims" / volume["persistentVolumeClaim"]["claimName"]
        folder.mkdir(parents=True, exist_ok=True)
        if volume.get("emptyDir", {}).get("medium") == "Memory":
            size = volume["emptyDir"]["sizeLimit"].rstrip("i").lower()  # 64Mi is tmpfs's 64m
            command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
            subprocess.run(command, check=True)
            self._mounts.append(folder)
        for source, name in (("secret", "secretName"), ("configMap", "name")):
            if source in volume:
                self._fill(folder, volume[source], source, volume[source][name])
        for path in (folder, *folder.rglob("*")):
            os.chown(path, 0, group)
        folder.chmod(0o2775)
        return folder

    def _fill(self, folder: Path, volume: Object, kind: str, name: str) -> None:
        found = next(
            each
            for each in self._objects
            if each["kind"].lower() == kind.lower() and each["metadata"]["name"] == name
        )
        texts = {**found.get("data", {}), **found.get("stringData", {})}
        encoded = found.get("data", {}) if kind == "secret" else found.get("binaryData", {})
        data = {key: text.encode() for key, text in texts.items()}
        data |= {key: base64.b64decode(text) for key, text in encoded.items()}
        wanted = volume.get("items") or [{"key": key, "path": key} for key in data]
        for item in wanted:
            file = folder / item["path"]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data[item["key"]])
            file.chmod(item.get("mode", volume.get("defaultMode", 0o644)))


class Pod:
    """A pod that runs, and what a kubelet would do for it."""

    def __init__(
        self,
        name: str,
        manifest: Object,
        translated: Object,
        address: str,
        aliases: list[str],
        network: str,
        folder: Path,
    ) -> None:
        self.name = name
        self.manifest = manifest
        self.spec: Object = manifest["spec"]
        self.containers: list[Object] = beside(self.spec) + self.spec["containers"]
        self.address = address
        self._folder = folder
        self._file = folder / "pod.yaml"
        self._file.write_text(yaml.safe_dump(translated))
        words = "".join(f",alias={alias}" for alias in aliases)
        self._network = f"{network}:ip={address}{words}"

    def start(self) -> None:
        said("kube", "play", "--network", self._network, str(self._file), timeout_s=180)

    def folder(self, volume: str) -> Path:
        """Where one of its volumes is on this machine."""
        return self._folder / volume

    def container(self, name: str = "") -> str:
        """What Podman calls a container of it, the first by default."""
        return f"{self.name}-{name or self.spec['containers'][0]['name']}"

    def state(self, name: str = "") -> Object:
        """Podman's word on a container: ``Status``, ``ExitCode``, ``OOMKilled``, ..."""
        return self.inspected(name)["State"]  # type: ignore[no-any-return]

    def inspected(self, name: str = "") -> Object:
        (found,) = json.loads(said("container", "inspect", self.container(name)))
        return found  # type: ignore[no-any-return]

    def log(self, name: str = "") -> str:
        done = podman("logs", self.container(name))
        return done.stdout + done.stderr

    def tried(self, *command: str, name: str = "") -> subprocess.CompletedProcess[str]:
        return podman("exec", self.container(name), *command)

    def done(self, *command: str, name: str = "") -> str:
        """What a command in a container prints; AssertionError if it fails."""
        return said("exec", self.container(name), *command)

    def exit_codes(self) -> list[int | None]:
        """Of each of its containers, none of those beside them; None while it runs."""
        states = [self.state(each["name"]) for each in self.spec["containers"]]
        return [
            each["ExitCode"] if each["Status"] in ("exited", "stopped") else None for each in states
        ]

    # --- what a kubelet does ---------------------------------------------------------------

    def failing(self, *kinds: str) -> list[str]:
        """The probes of these kinds that do not pass now, with what they say."""
        found = []
        for container in self.containers:
            for kind in kinds:
                if kind in container and (why := self._probed(container, container[kind])):
                    found.append(f"{container['name']}: {kind}: {why}")
        return found

    def unready(self) -> list[str]:
        return self.failing("startupProbe", "readinessProbe")

    def _probed(self, container: Object, probe: Object) -> str:
        if "exec" in probe:
            done = self.tried(*probe["exec"]["command"], name=container["name"])
            return "" if done.returncode == 0 else done.stdout + done.stderr or "failed"
        asked = probe["httpGet"]
        url = f"http://{self.address}:{number(asked['port'], container)}{asked.get('path', '/')}"
        headers = {each["name"]: each["value"] for each in asked.get("httpHeaders", [])}
        try:
            request = urllib.request.Request(url, headers=headers)
            with urllib.request.urlopen(request, timeout=probe.get("timeoutSeconds", 1)):
                return ""
        except (urllib.error.URLError, OSError) as fault:
            return f"{url}: {fault}"

    def stop(self) -> float:
        """As a cluster stops it: ``preStop``, then SIGTERM, and SIGKILL at the grace's end.

        :returns: seconds that it took.
        """
        began = time.monotonic()
        grace = self.spec.get("terminationGracePeriodSeconds", 30)
        for container in self.containers:
            hook = container.get("lifecycle", {}).get("preStop", {})
            if "exec" in hook:
                self.tried(*hook["exec"]["command"], name=container["name"])
            elif "sleep" in hook:
                time.sleep(hook["sleep"]["seconds"])
        left = max(1, int(grace - (time.monotonic() - began)))
        # Not `pod stop`, which takes the network from them at once.
        names = [self.container(each["name"]) for each in self.containers]
        said("stop", "--time", str(left), *names, timeout_s=left + 60)
        return time.monotonic() - began

    def remove(self) -> None:
        podman("pod", "rm", "--force", "--time", "0", self.name)


# --- pure ---------------------------------------------------------------------------------


def pods_of(maker: Object) -> list[Object]:
    """The Pods that a controller would make; none of what is no such thing."""
    kind, spec = maker["kind"], maker.get("spec", {})
    name = maker["metadata"]["name"]
    if kind == "Pod":
        return [copy.deepcopy(maker)]
    if kind in ("Deployment", "StatefulSet"):
        count = spec.get("replicas", 1)
    elif kind == "Job":
        count = min(spec.get("parallelism", 1), spec.get("completions", 1))
    else:
        return []
    made = [copy.deepcopy(spec["template"]) for _ in range(count)]
    for place, pod in enumerate(made):
        pod |= {"apiVersion": "v1", "kind": "Pod"}
        pod["metadata"]["name"] = f"{name}-{place}"
        claims = [each["metadata"]["name"] for each in spec.get("volumeClaimTemplates", [])]
        pod["spec"].setdefault("volumes", []).extend(
            {"name": claim, "persistentVolumeClaim": {"claimName": f"{claim}-{name}-{place}"}}
            for claim in claims
        )
    return made


def first(spec: Object) -> list[Object]:
    """The init containers of a pod."""
    return [*spec.get("initContainers", [])]


def beside(spec: Object) -> list[Object]:
    """Those of them that run beside the others, and end with these."""
    return [each for each in first(spec) if each.get("restartPolicy") == "Always"]


def containers_of(spec: Object) -> list[Object]:
    return [*first(spec), *spec["containers"]]


def number(port: int | str, container: Object) -> int:
    """A port that may be named."""
    named = {each.get("name"): each["containerPort"] for each in container.get("ports", [])}
    found = named[port] if isinstance(port, str) else port
    return int(found)


def check_ports(service: Object, pod: Object) -> None:
    """A name on a network leads to every port as it is: a service that translates is none."""
    named: Mapping[str, int] = {
        port["name"]: port["containerPort"]
        for container in pod["spec"]["containers"]
        for port in container.get("ports", [])
        if "name" in port
    }
    for port in service["spec"]["ports"]:
        target = port.get("targetPort", port["port"])
        target = named[target] if isinstance(target, str) else target
        assert target == port["port"], f"{service['metadata']['name']} translates {port}"


def service_names(service: Object) -> list[str]:
    """What the cluster's DNS would call it."""
    name = service["metadata"]["name"]
    namespace = service["metadata"].get("namespace", "default")
    within = f"{name}.{namespace}"
    return [name, within, f"{within}.svc", f"{within}.svc.cluster.local"]
