"""The sidecar's page in a real browser, and its API under whatever may be asked."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import schemathesis
import uvicorn
from axe_playwright_python.sync_playwright import Axe
from hypothesis import HealthCheck, Phase, given, settings
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, sync_playwright

from entrepot.market.broker import Broker
from entrepot.market.client import Client
from entrepot.market.supplier import Supplier
from entrepot.mediums.shm import ShmMedium
from entrepot.settings import ClientSettings, Settings, SidecarSettings
from entrepot.sidecar.app import create_app
from entrepot.store import Store
from entrepot.study import Space, report, take
from tests.integration.needs import lacking
from tests.peer.waiting import until
from tests.ports import Ports

SPACE = Space().real("lr", 0.0, 1.0)
SIZES = (1280, 390)
SCHEMES = ("light", "dark")


@contextmanager
def served(made: Settings) -> Iterator[str]:
    """The sidecar in a thread of its own; where it is."""
    config = uvicorn.Config(create_app(made), port=0, log_level="error", lifespan="on")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        until(lambda: server.started)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


class Scene:
    """A broker with a supplier, and a store with a study, that the sidecar shows."""

    def __init__(self, folder: Path) -> None:
        self.go = threading.Event()
        self.go.set()
        self.store = Store(folder / "store", durable=False)
        self.ports = Ports(2)
        self.broker = Broker(*self.ports.endpoints)
        self.broker.start()
        self.client = Client(self.broker.frontend, ShmMedium.create(64, 64))
        self.supplier = Supplier(self.broker.backend, {r"layer_\d+": self.make}, name="teacher")
        self.supplier.start()
        self.supplier.wait_registered(20)
        self.settings = Settings(
            client=ClientSettings(endpoint=self.broker.frontend),
            sidecar=SidecarSettings(
                store=str(folder / "store"), store_every_s=0.1, market_every_s=0.1, stale_s=0.5
            ),
        )

    def make(self, name: str) -> bytes:
        self.go.wait(60)
        return name.encode()

    def trial(self, number: int, state: str = "done", study: str = "spam") -> None:
        point = SPACE.point(lr=number / 10)
        assert take(self.store, point, study=study, trial=number, me="gpu-7", goal="min")
        if state != "running":
            report(
                self.store,
                point,
                [1.0, 0.5 + number],
                study=study,
                trial=number,
                me="gpu-7",
                state=state,
            )

    def close(self) -> None:
        self.go.set()
        self.supplier.stop()
        self.client.close()
        self.broker.stop()
        self.ports.close()
        self.store.close()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        lacking("needs chromium")
    with sync_playwright() as driver:
        made = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield made
        made.close()


@contextmanager
def opened(browser: Browser, url: str, width: int = 1280, scheme: Any = "light") -> Iterator[Page]:
    """A page; whatever it asks of another host, or complains of, is an error at the end."""
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    strange: list[str] = []
    host = "/".join(url.split("/")[:3])

    def asked(request: Request) -> None:
        if not request.url.startswith(host):
            strange.append(request.url)

    def said(message: ConsoleMessage) -> None:
        if message.type == "error" and "404 (Not Found)" not in message.text:
            strange.append(message.text)

    page.on("request", asked)
    page.on("pageerror", lambda fault: strange.append(str(fault)))
    page.on("console", said)
    try:
        page.goto(url, wait_until="domcontentloaded")
        page.get_by_text("live", exact=True).wait_for()
        yield page
    finally:
        page.close()
    assert strange == []


def test_a_queue_grows_while_suppliers_are_held_and_the_page_shows_it(
    browser: Browser, scene: Scene
) -> None:
    with served(scene.settings) as url, opened(browser, url) as page:
        scene.go.clear()
        orders = [scene.client.order("layer_3") for _ in range(12)]
        queued = page.locator(".figures div", has_text="queued").locator("dd")
        until(lambda: queued.text_content() == "11")
        assert "layer_3" in page.locator("#market table").first.inner_text()
        scene.go.set()
        for order in orders:
            order.result(20).bytes()
        until(lambda: queued.text_content() == "0")


def test_the_page_follows_a_study_to_its_abandoned_trial(browser: Browser, scene: Scene) -> None:
    scene.trial(0)
    with served(scene.settings) as url:
        with opened(browser, url) as page:
            page.get_by_text("1 done").wait_for()
            scene.trial(1)
            scene.trial(2, "running")
            page.get_by_text("2 done").wait_for()
            page.get_by_text("1 abandoned").first.wait_for()
            said = page.locator(".commands code").first.inner_text()
            assert said.endswith("spam --trial 2")
            page.get_by_role("link", name="spam").click()
            page.get_by_role("heading", name="spam").wait_for()
            rows = page.locator("tbody tr").all_inner_texts()
            assert [row.split()[0] for row in rows] == ["0", "1", "2"]
        scene.trial(0, study="team/<b>odd</b> ñ")
        with opened(browser, url) as page:
            page.get_by_role("link", name="team/<b>odd</b> ñ").click()
            page.get_by_role("heading", name="team/<b>odd</b> ñ").wait_for()


def test_a_broker_that_is_gone_is_said_and_comes_back(browser: Browser, scene: Scene) -> None:
    with served(scene.settings) as url, opened(browser, url) as page:
        page.get_by_text("answers.").wait_for()
        scene.broker.stop()
        page.get_by_role("alert").get_by_text("does not answer").wait_for()
        scene.broker = Broker(*scene.ports.endpoints)
        scene.broker.start()
        page.get_by_text("answers.").wait_for()


@pytest.mark.parametrize("path", ["/", "/studies?name=spam", "/docs", "/studies?name=none"])
def test_it_is_for_everybody_and_every_screen(browser: Browser, scene: Scene, path: str) -> None:
    """No violation that axe-core knows of, and nothing wider than the screen."""
    for number, state in enumerate(("done", "pruned", "failed", "released", "running")):
        scene.trial(number, state)
    scene.client.order("layer_9").result(20).bytes()
    with served(scene.settings) as url:
        for width in SIZES:
            for scheme in SCHEMES:
                with opened(browser, url, width, scheme) as page:
                    page.get_by_text("1 abandoned").first.wait_for()
                    page.goto(url + path, wait_until="domcontentloaded")
                    found = Axe().run(page)
                    assert found.violations_count == 0, found.generate_report()
                    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_whatever_is_asked_of_the_api_is_no_fault_of_the_server(scene: Scene) -> None:
    scene.trial(0)
    with served(scene.settings) as url:
        schema = schemathesis.openapi.from_url(f"{url}/api/v1/openapi.json")
        until(lambda: schema.get_all_operations() is not None)
        for found in schema.get_all_operations():
            operation: Any = found.ok()  # type: ignore[union-attr]  # else it raises
            if operation.path.endswith("/events"):
                continue  # it never ends

            @given(case=operation.as_strategy())
            @settings(
                max_examples=40,
                phases=[Phase.explicit, Phase.generate],
                suppress_health_check=list(HealthCheck),
                deadline=None,
            )
            def asked(case: Any) -> None:
                answer = case.call(base_url=url, timeout=20)
                assert answer.status_code < 500 or answer.status_code == 503, answer.text
                case.validate_response(answer)

            asked()
