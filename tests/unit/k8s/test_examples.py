"""The examples run what there is, and their page says what is there."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest
import yaml

from entrepot.sidecar.labels import LONGEST
from entrepot.stages.protocol import STATELESS, product_of
from k8s.build import values
from tests.unit.k8s.charts import CHART, EXAMPLES, ROOT, containers, example, pods, render
from tests.unit.k8s.test_render import EVERY, environment

PAGE = (ROOT / "k8s" / "README.md").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]


def arguments(values: dict[str, Any], part: str) -> list[str]:
    """What the last container runs of the pod whose maker has that in its name."""
    (pod,) = (pod for name, pod in pods(render(values)).items() if part in name)
    found: list[str] = containers(pod)[-1]["args"]
    return found


@pytest.mark.parametrize("values", [{}, example("minimal")], ids=["default", "minimal"])
def test_suppliers_run_what_those_of_compose_do(values: dict[str, Any]) -> None:
    assert arguments(values, "-supplier-clean") == COMPOSE["tokens"]["command"]
    assert arguments(values, "-supplier-embed") == COMPOSE["embeddings"]["command"]


def option(words: list[str], name: str) -> str:
    return words[words.index(name) + 1]


def test_clients_search_as_those_of_compose_do() -> None:
    words = arguments({}, "-client-search")
    assert words[:3] == ["python", "-m", "examples.sms_search.search"]
    told = COMPOSE["client"]["environment"]
    for name in ("study", "trials", "epochs", "messages"):
        default = re.fullmatch(r"\$\{\w+:-(.*)\}", told[f"SEARCH_{name.upper()}"])
        assert default is not None
        assert option(words, f"--{name}") == default[1]


def test_a_stage_is_scaled_by_the_class_that_it_has() -> None:
    (clean, *_) = example("keda")["suppliers"]
    patterns = [product_of("clean", verb).replace(".", r"\.") for verb in STATELESS]
    assert clean["autoscaling"]["supplierClass"] == " | ".join(patterns)
    assert len(clean["autoscaling"]["supplierClass"]) <= LONGEST


def test_production_holds_no_secret_and_is_watched() -> None:
    objects = render(example("production"))
    kinds = {each["kind"] for each in objects}
    assert kinds >= {"ServiceMonitor", "PrometheusRule", "NetworkPolicy", "PodDisruptionBudget"}
    assert not kinds & {"Secret", "StatefulSet"}
    for pod in pods(objects).values():
        for container in containers(pod):
            assert container["image"].startswith("registry.example.com/")


def test_graphics_cards_are_asked_for_where_they_are_used() -> None:
    found = {
        name: containers(pod)[0]["resources"]["limits"].get("nvidia.com/gpu", 0)
        for name, pod in pods(render(example("gpu"))).items()
        if "-supplier-" in name
    }
    assert found == {
        "entrepot-supplier-clean": 0,
        "entrepot-supplier-embed": 1,
        "entrepot-supplier-teacher": 1,
    }
    embed = pods(render(example("gpu")))["entrepot-supplier-embed"]["spec"]
    assert embed["runtimeClassName"] == "nvidia"
    assert embed["tolerations"][0]["key"] == "nvidia.com/gpu"
    assert "cuda" in embed["containers"][0]["args"]


def test_files_and_shared_memory_are_carried_as_their_examples_say() -> None:
    for name, medium in (("filesystem", "file"), ("shm", "shm")):
        objects = render(example(name))
        (search,) = (pod for maker, pod in pods(objects).items() if "-client-search-" in maker)
        (client,) = search["spec"]["containers"]
        assert environment(client)["ENTREPOT_CLIENT__MEDIUM"] == medium
        makers = (
            [search]
            if medium == "shm"
            else [pod for maker, pod in pods(objects).items() if "-supplier-" in maker]
        )
        serving = [
            environment(container)["ENTREPOT_SUPPLIER__MEDIUMS"].split(",")
            for pod in makers
            for container in containers(pod)
            if "ENTREPOT_SUPPLIER__MEDIUMS" in environment(container)
        ]
        assert len(serving) == 2
        assert all(medium in each for each in serving)


# --- the page --------------------------------------------------------------------------------


def test_every_example_is_on_the_page() -> None:
    linked = set(re.findall(r"\(entrepot/examples/(\w+)\.yaml\)", PAGE))
    assert linked == {path.stem for path in EXAMPLES.glob("*.yaml")}


def test_links_of_the_page_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", PAGE):
        assert (ROOT / "k8s" / target).exists(), target


def test_what_the_page_calls_a_value_is_one() -> None:
    known = {value.path for value in values()}
    sections = {path.rpartition(".")[0] for path in known}
    first = {path.split(".")[0] for path in known}
    named = re.findall(r"`([a-zA-Z]+(?:\.[a-zA-Z]+)+)(?:: [^`]*)?`", PAGE)
    found = {name for name in named if name.split(".")[0] in first}
    assert len(found) > 20
    assert not {name for name in found if name not in known | sections}


def test_values_on_the_page_are_taken() -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE, re.S)
    given = [yaml.safe_load(block) for block in blocks]
    ours = [each for each in given if "rules" not in each]  # the adapter's
    assert len(ours) == 2
    for each in ours:
        assert render(each)


def test_objects_that_the_page_names_are_made() -> None:
    names = {each["metadata"]["name"] for each in render()}
    named = set(re.findall(r"(?:service|deployment|secret)[/ ](entrepot-[a-z-]+)", PAGE))
    made = {*names, "entrepot-supplier-tokens", "entrepot-sidecar-token"}
    assert named
    assert named <= made


def test_the_laptop_gets_every_image_that_it_runs() -> None:
    loop = re.search(r"^for image in (.*?);", PAGE, re.M)
    built = re.search(r"^docker compose build (.*)$", PAGE, re.M)
    assert loop is not None
    assert built is not None
    loaded = {f"entrepot/{name}:dev" for name in shlex.split(loop[1])}
    images = {
        container["image"]
        for pod in pods(render(example("minimal"))).values()
        for container in containers(pod)
    }
    theirs = {each for each in images if not each.startswith("entrepot/")}
    assert images - theirs == loaded
    assert len(theirs) == 1  # MinIO's, which its node pulls
    compose = {
        COMPOSE[name]["image"].partition(":-")[2].rstrip("}") for name in shlex.split(built[1])
    }
    assert compose == loaded


def test_examples_can_be_read() -> None:
    for path in [*EXAMPLES.glob("*.yaml"), CHART / "values.yaml"]:
        assert len(path.read_text().splitlines()) <= 450
        assert max(map(len, path.read_text().splitlines())) <= 130, path


def test_rendered_pods_use_no_kind_of_volume_that_restricted_refuses() -> None:
    allowed = {
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
    }
    for values_of in EVERY.values():
        for pod in pods(render(values_of)).values():
            for volume in pod["spec"]["volumes"]:
                assert volume.keys() - {"name"} <= allowed
