"""The page of the chat example in a real browser: what it shows, and what the server closes when it goes away."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from selenium.webdriver import Chrome, ChromeOptions, ChromeService
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "examples"))

import chat_app
from loopback import Server
from streamguard import guarded_stream

PATIENCE = 20
"""Seconds until something that should happen has not."""
FLAGS = [
    "--headless",
    "--no-sandbox",  # the tests may run as root
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--window-size=1100,800",
]


class Served:
    """The chat, served from a thread of its own."""

    def __init__(self, portal: BlockingPortal, server: Server, log: chat_app.Log) -> None:
        self._portal = portal
        self.url = server.url
        self.log = log

    def wait_for(self, line: str) -> list[str]:
        """The lines of the server's log up to the one that begins like this."""
        return self._portal.call(self._follow, line)

    async def _follow(self, beginning: str) -> list[str]:
        lines: list[str] = []
        with anyio.fail_after(PATIENCE):
            async with guarded_stream(self.log.follow()) as following:
                async for line in following:
                    lines.append(line)
                    if line.startswith(beginning):
                        break
        return lines


@pytest.fixture
def served() -> Iterator[Served]:
    app = chat_app.make_app()
    with start_blocking_portal() as portal:
        server = Server(app, [], lifespan="on", timeout_graceful_shutdown=0)
        with portal.wrap_async_context_manager(server.run(limit=3 * PATIENCE)):
            yield Served(portal, server, app.state.log)


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Chrome]:
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    assert chromium, "no `chromium` on the PATH; on Debian: apt-get install chromium chromium-driver"
    assert driver, "no `chromedriver` on the PATH; on Debian: apt-get install chromium-driver"
    options = ChromeOptions()
    options.binary_location = chromium
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for flag in (*FLAGS, f"--user-data-dir={tmp_path}"):
        options.add_argument(flag)
    browser = Chrome(options, ChromeService(driver))
    try:
        browser.set_page_load_timeout(PATIENCE)
        yield browser
    finally:
        browser.quit()


class Page:
    def __init__(self, browser: Chrome, url: str) -> None:
        self.browser = browser
        browser.get(url)

    def find(self, selector: str) -> WebElement:
        return self.browser.find_element(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        return "\n".join(element.text for element in self.browser.find_elements(By.CSS_SELECTOR, selector))

    def wait(self, selector: str, text: str) -> None:
        WebDriverWait(self.browser, PATIENCE, 0.02).until(lambda _: text in self.text(selector), f"{selector}: {text}")

    def errors(self) -> list[object]:
        return [entry for entry in self.browser.get_log("browser") if entry["level"] == "SEVERE"]


def ask(page: Page, until: str) -> None:
    """Send the question, and wait until the answer has come so far."""
    page.find("#send").click()
    page.wait(".answer", until)


def test_to_the_end(served: Served, browser: Chrome, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer arrives while the run goes on; then it is complete, and the page shows what the server closed."""
    page = Page(browser, served.url)
    ask(page, "the warehouse")
    assert page.text(".state") == "answering ..."
    assert "model is closed" not in page.text("#log")
    monkeypatch.setattr(chat_app, "PAUSE", 0.001)
    page.wait(".state", "complete")
    assert page.text(".answer") == chat_app.ANSWER
    lines = served.wait_for("run 1: finished")
    assert lines[1:3] == ["run 1: the tool is closed", "run 1: the model is closed"]
    assert lines[3].startswith("run 1: finished, exhausted after")
    page.wait("#log", lines[3])
    assert page.text("#log li").splitlines() == lines
    assert page.errors() == []


def test_stop(served: Served, browser: Chrome) -> None:
    """The stop button stops the run, model included; then the next question can be asked."""
    page = Page(browser, served.url)
    ask(page, "the warehouse")
    assert not page.find("#send").is_enabled()
    page.find("#stop").click()
    page.wait(".state", "stopped")
    lines = served.wait_for("run 1: finished")
    assert lines[-2] == "run 1: the model is closed"
    assert lines[-1].startswith("run 1: finished, left after")
    page.wait("#log", lines[-1])
    assert len(page.text(".answer")) < len(chat_app.ANSWER)
    assert not page.find("#stop").is_enabled()
    page.find("#send").click()
    page.wait("#log", "run 2: started")
    page.find("#stop").click()
    assert served.wait_for("run 2: finished")[-1].startswith("run 2: finished, left after")
    assert page.errors() == []


def test_closed_tab(served: Served, browser: Chrome) -> None:
    """Closing the tab stops the run."""
    first = browser.current_window_handle
    browser.switch_to.new_window("tab")
    page = Page(browser, served.url)
    ask(page, "the warehouse")
    browser.close()
    lines = served.wait_for("run 1: finished")
    assert lines[-2] == "run 1: the model is closed"
    assert lines[-1].startswith("run 1: finished, left after")
    browser.switch_to.window(first)


def test_accessible(served: Served, browser: Chrome) -> None:
    """What can be used has a name, what changes is told; the page takes nothing from elsewhere."""
    page = Page(browser, served.url)
    named = {element.accessible_name for element in browser.find_elements(By.CSS_SELECTOR, "input, button")}
    assert named == {"Your question", "Send", "Stop"}
    assert (page.find("#log").aria_role, page.find("html").get_attribute("lang")) == ("log", "en")
    ask(page, "Your")
    assert page.find(".state").aria_role == "status"
    loaded = browser.execute_script("return performance.getEntriesByType('resource').map((entry) => entry.name)")
    assert [url for url in loaded if not url.startswith(served.url)] == []
