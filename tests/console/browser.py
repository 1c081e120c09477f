"""A real browser, driven over its DevTools protocol: just what the tests of the console need."""

from __future__ import annotations

import base64
import itertools
import json
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import anyio.to_thread

from tests.support.waiting import PATIENCE_S, eventually

#: Keys that do something by themselves: their numbers, and what they type.
_KEYS = {"Tab": (9, ""), "Enter": (13, "\r"), "Escape": (27, "")}
_NAMES = ("chromium", "chromium-browser", "google-chrome")


def browser_program() -> str | None:
    """The browser on the PATH, if there is one."""
    return next((path for name in _NAMES if (path := shutil.which(name))), None)


class Page:
    """One open page."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self.complaints: list[str] = []

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One command of the protocol and its result; complaints of the page are kept."""
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": params})
        while True:
            answer = json.loads((await self._socket.receive(timeout=150)).data)
            if answer.get("method") == "Runtime.exceptionThrown":
                self.complaints.append(str(answer["params"]["exceptionDetails"]))
            if answer.get("method") == "Log.entryAdded":
                self.complaints.append(str(answer["params"]["entry"]["text"]))
            if answer.get("id") == number:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']}")
                return dict(answer["result"])

    async def value(self, expression: str) -> Any:
        """What a JavaScript expression gives; a promise is awaited."""
        result = await self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in result:
            raise AssertionError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    async def until(self, expression: str, seconds: float = PATIENCE_S) -> Any:
        """Wait until an expression is true; its value. What throws is not true yet."""
        attempt = f"(() => {{ try {{ return {expression}; }} catch {{ return false; }} }})()"
        with anyio.move_on_after(seconds):
            while True:
                if found := await self.value(attempt):
                    return found
                await anyio.sleep(0.05)
        text = await self.value("document.body.innerText")
        raise AssertionError(f"{expression} did not become true; the page says: {text}")

    async def press(self, *keys: str) -> None:
        """Press keys, one after the other, as a person does."""
        for key in keys:
            code, text = _KEYS.get(key, (0, key if len(key) == 1 else ""))
            names = {"key": key, "windowsVirtualKeyCode": code}
            await self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **names)
            await self.call("Input.dispatchKeyEvent", type="keyUp", **names)

    async def look(self, width: int, *, dark: bool, picture: Path | None = None) -> None:
        """Show the page in a window of that width; ``picture`` keeps what it looks like."""
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1,
            mobile=width < 600,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])
        if picture is not None:
            shot = await self.call("Page.captureScreenshot", format=picture.suffix[1:])
            await anyio.to_thread.run_sync(picture.write_bytes, base64.b64decode(shot["data"]))


@asynccontextmanager
async def open_page(url: str) -> AsyncIterator[Page]:
    """A page in a browser of its own, which ends with the block."""
    with _browser() as port:
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                targets = await answer.json()
            address = next(t["webSocketDebuggerUrl"] for t in targets if t["type"] == "page")
            async with session.ws_connect(address, max_msg_size=0) as socket:
                page = Page(socket)
                for domain in ("Page", "Runtime", "Log"):
                    await page.call(f"{domain}.enable")
                await page.call("Page.navigate", url=url)
                yield page


@contextmanager
def _browser() -> Iterator[int]:
    """A browser; the port that it takes commands on."""
    program = browser_program()
    assert program is not None
    with tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True) as profile:
        command = [
            program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
            "--no-first-run", "--remote-debugging-port=0", f"--user-data-dir={profile}",
            "about:blank",
        ]  # fmt: skip
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            try:
                yield _debugging_port(Path(profile) / "DevToolsActivePort")
            finally:
                process.kill()


def _debugging_port(file: Path) -> int:
    text = eventually(
        lambda: file.exists() and file.read_text().strip(), why="the browser starts", pause_s=0.05
    )
    return int(str(text).splitlines()[0])
