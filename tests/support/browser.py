"""A browser for tests of pages: the machine's Chromium without a window, spoken to by the Chrome DevTools Protocol.

    with browser.open_page(path) as page:
        page.evaluate("document.title")
        page.press("ArrowRight")

It speaks over two pipes (--remote-debugging-pipe): messages are JSON, each ended by a zero byte. No driver, no port.
"""

import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
from contextlib import contextmanager
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
TIMEOUT_S = 60
OPTIONS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--mute-audio",
]
KEYS = {
    " ": ("Space", 32),
    "ArrowLeft": ("ArrowLeft", 37),
    "ArrowUp": ("ArrowUp", 38),
    "ArrowRight": ("ArrowRight", 39),
}
KEYS |= {"ArrowDown": ("ArrowDown", 40), "Home": ("Home", 36), "End": ("End", 35), "Tab": ("Tab", 9)}
SHIFT = 8
TWO_FRAMES = "requestAnimationFrame(() => requestAnimationFrame(done))"
BOX_OF = """(() => {
    const one = document.querySelector(SELECTOR);
    one.scrollIntoView({block: "center"});
    const {x, y, width, height} = one.getBoundingClientRect();
    return {x, y, width, height};
})()"""


def find():
    """The path of a Chromium; None where there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Page:
    """A page in a running browser.

    Attributes:
        complaints: what its console said, exceptions that nobody caught, and requests that leave the file.
    """

    def __init__(self, to_browser, from_browser):
        self._to, self._from, self._rest, self._number, self._session = to_browser, from_browser, b"", 0, None
        self._done = set()  # methods of events that came
        self.complaints = []

    def open(self, path, width, height):
        """Load a file."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self._done.clear()
        self.call("Page.navigate", url=Path(path).resolve().as_uri())
        while "Page.loadEventFired" not in self._done:
            self._receive()

    def call(self, method, **parameters):
        """A method of the protocol; what it returns."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        message |= {"sessionId": self._session} if self._session else {}
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def _receive(self):
        """The next message."""
        silent = 0  # seconds; counted, not measured: whoever stops this process for a while makes no time-out of it
        while b"\0" not in self._rest:
            if not select.select([self._from], [], [], 1.0)[0]:
                silent += 1
                if silent > TIMEOUT_S:
                    raise TimeoutError(f"the browser said nothing for {TIMEOUT_S} s")
                continue
            part = os.read(self._from, 1 << 16)
            if not part:
                raise RuntimeError("the browser has ended")
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        message = json.loads(message)
        self._notice(message.get("method"), message.get("params", {}))
        return message

    def _notice(self, method, about):
        """Keep what an event tells."""
        self._done.add(method)
        if method == "Runtime.exceptionThrown":
            self.complaints.append(about["exceptionDetails"].get("exception", {}).get("description", "exception"))
        elif method == "Runtime.consoleAPICalled":
            self.complaints.append(" ".join(str(part.get("value")) for part in about["args"]))
        elif method == "Log.entryAdded":
            self.complaints.append(about["entry"]["text"])
        elif method == "Network.requestWillBeSent" and not about["request"]["url"].startswith(("file:", "data:")):
            self.complaints.append(f"asks for {about['request']['url']}")

    def evaluate(self, expression):
        """The value of a JavaScript expression; a promise is waited for."""
        said = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in said:
            raise RuntimeError(f"{expression}: {said['exceptionDetails']}")
        return said["result"].get("value")

    def wait_until(self, condition, seconds=30):
        """Wait until a function without arguments returns something true; returns whether it ever did."""
        return any(condition() or self.pause(0.05) for _ in range(20 * seconds))

    def pause(self, seconds):
        """Let the page go on for a while."""
        self.evaluate(f"new Promise(done => setTimeout(done, {1000 * seconds}))")

    def press(self, key, shift=False):
        """Press a key, as somebody at the keyboard does."""
        code, number = KEYS[key]
        about = {"key": key, "code": code, "windowsVirtualKeyCode": number, "modifiers": SHIFT * shift}
        text = {"text": key} if key == " " else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", **about, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **about)

    def point(self, selector, click=False, share=0.5):
        """Move the mouse to an element, `share` of its width from its left; and click."""
        box = self.evaluate(BOX_OF.replace("SELECTOR", json.dumps(selector)))
        at = {"x": box["x"] + share * box["width"], "y": box["y"] + box["height"] / 2}
        self.call("Input.dispatchMouseEvent", type="mouseMoved", **at)
        for kind in ("mousePressed", "mouseReleased") if click else ():
            self.call("Input.dispatchMouseEvent", type=kind, **at, button="left", clickCount=1)

    def prefer(self, scheme):
        """Let the system's theme be "light" or "dark"."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.evaluate(f"new Promise(done => {TWO_FRAMES})")  # the page is told with the next frame


@contextmanager
def open_page(path, width=1280, height=900):
    """A Page with that file, in a browser of its own."""
    pipes = [*os.pipe(), *os.pipe()]
    # 3 and 4 are the browser's ends: none of ours may be one of these, or it would be overwritten on the way.
    theirs_in, ours_out, ours_in, theirs_out = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in pipes)
    for end in pipes:
        os.close(end)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        command = [find(), *OPTIONS, "--remote-debugging-pipe", f"--user-data-dir={home}", "about:blank"]
        quiet = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (1, 2)]
        places = [(os.POSIX_SPAWN_DUP2, theirs_in, 3), (os.POSIX_SPAWN_DUP2, theirs_out, 4)]
        process = os.posix_spawn(
            command[0], command, os.environ | {"HOME": home}, file_actions=quiet + places, setsid=True
        )
        os.close(theirs_in)
        os.close(theirs_out)
        try:
            page = Page(ours_out, ours_in)
            page.open(path, width, height)
            yield page
        finally:
            os.killpg(process, signal.SIGKILL)
            os.waitpid(process, 0)
            os.close(ours_out)
            os.close(ours_in)
