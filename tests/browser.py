"""The browser that looks at pages: a Chromium of the machine, or Playwright's own where it has downloaded one.

`python -m tests.browser` installs one: Debian's package where this is root on Debian, else Playwright's.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Playwright, sync_playwright

from tests.servers import ServerUnavailableError

NAMES = ("chromium", "chromium-browser", "google-chrome")
PACKAGES = ("chromium", "fonts-dejavu-core")
INSTALL_SECONDS = 600


def find(playwright: Playwright) -> str:
    """The program's path. Raises: ServerUnavailableError."""
    own = Path(playwright.chromium.executable_path)
    found = next((path for name in NAMES if (path := shutil.which(name))), str(own) if own.exists() else None)
    if found is None:
        raise ServerUnavailableError("Browser: chromium is not installed, `make servers` does it")
    return found


@contextmanager
def started() -> Iterator[Browser]:
    """A headless browser. Raises: ServerUnavailableError."""
    with sync_playwright() as playwright:
        # Its sandbox needs rights that containers and root do not have; it only opens pages that tests made.
        browser = playwright.chromium.launch(executable_path=find(playwright), args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


def install() -> None:
    """Install one, unless it is there."""
    with sync_playwright() as playwright:
        try:
            find(playwright)
        except ServerUnavailableError:
            print("Installing chromium", flush=True)
        else:
            return
    commands = [[sys.executable, "-m", "playwright", "install", "chromium"]]
    if os.geteuid() == 0 and shutil.which("apt-get"):
        apt = ["apt-get", "-qq", "-o", "Acquire::Retries=3"]
        commands = [[*apt, "update"], [*apt, "install", "--no-install-recommends", *PACKAGES]]
    for command in commands:
        subprocess.run(
            command,
            env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            timeout=INSTALL_SECONDS,
            check=False,
        )


def main() -> int:
    try:
        install()
        with started():
            return 0
    except Exception as error:
        print(f"{error}; the tests of pages cannot run", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
