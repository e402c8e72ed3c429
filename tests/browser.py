"""Headless Chromium, driven through its debugging pipe."""

import base64
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
WIDTHS, THEMES = (1280, 390), ("light", "dark")
HEIGHT = 900
SETTLED = """(async () => {
    await window.MathJax?.startup?.promise;
    await document.fonts.ready;
    await new Promise(done => setTimeout(done, 50));
})()"""
STILL = """{
    const sheet = document.createElement('style');
    sheet.textContent = '* { transition: none !important; animation: none !important }';
    document.head.append(sheet);
}"""


class Browser:
    """One tab of Chromium. Use it as a context manager."""

    def __init__(self, program: str) -> None:
        ours, its_output = os.pipe()
        its_input, ours_too = os.pipe()
        start = f'exec "$0" "$@" 3<&{its_input} 4>&{its_output}'  # numbers that --remote-debugging-pipe expects
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe"]
        self.process = subprocess.Popen(
            ["bash", "-c", start, program, *flags],
            pass_fds=(its_input, its_output),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(its_input), os.close(its_output)
        self.read, self.write = os.fdopen(ours, "rb"), os.fdopen(ours_too, "wb", buffering=0)
        self.asked, self.session, self.rest = 0, None, b""
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.ask("Page.enable")

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: object) -> None:
        self.session = None
        self.ask("Browser.close")
        self.process.wait(timeout=30)
        self.read.close(), self.write.close()

    def message(self) -> dict:
        """Wait for the next message, which ends with a null byte."""
        while b"\0" not in self.rest:
            part = self.read.read1(1 << 20)
            if not part:
                raise EOFError("Chromium has ended")
            self.rest += part
        message, _, self.rest = self.rest.partition(b"\0")
        return json.loads(message)

    def ask(self, method: str, **parameters: Any) -> dict:
        """Send a command of the DevTools protocol, and return its result."""
        self.asked += 1
        sent = {"id": self.asked, "method": method, "params": parameters}
        sent |= {} if self.session is None else {"sessionId": self.session}
        self.write.write(json.dumps(sent).encode() + b"\0")
        while (answer := self.message()).get("id") != self.asked:
            pass
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def value(self, script: str) -> Any:
        """Value of a script in the page, also of a promise."""
        result = self.ask("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in result:
            raise RuntimeError(result["exceptionDetails"]["exception"]["description"])
        return result["result"].get("value")

    def open(self, page: Path) -> None:
        """Open a file, and wait until its formulas and fonts are there."""
        self.ask("Page.navigate", url=page.resolve().as_uri())
        while self.message().get("method") != "Page.loadEventFired":
            pass
        self.value(STILL)
        self.value(SETTLED)

    def show(self, width: int, theme: str) -> None:
        """Show the page with a width in pixels, and with the colours of a theme."""
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=HEIGHT, deviceScaleFactor=1, mobile=False)
        self.value(SETTLED)

    def picture(self, height: int = HEIGHT, top: int = 0) -> bytes:
        """Picture of a part of the page, as PNG."""
        width = self.value("window.innerWidth")
        clip = {"x": 0, "y": top, "width": width, "height": height, "scale": 1}
        return base64.b64decode(self.ask("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)["data"])
