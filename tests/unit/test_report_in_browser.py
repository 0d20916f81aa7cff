"""The report in a real browser: no message on its console, nothing wider than the window, wide or narrow.

The page lies in frames of 400 and 1400 pixels; a script around it, not in it, measures them, and ``--dump-dom`` gives
what it found. Without Chromium this is skipped.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import numpy as np
import pytest

import nmf_zoo as nz

pytest.importorskip("matplotlib")

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
WIDTHS = (400, 1400)
SECONDS = 90
MEASURE = """<!DOCTYPE html><html><head><title>measure</title></head><body>
<pre id="found"></pre>
{frames}
<script>
addEventListener("load", () => {{
  const found = [...document.querySelectorAll("iframe")].map(frame => {{
    const page = frame.contentDocument, images = [...page.images];
    return {{width: frame.contentWindow.innerWidth, content: page.documentElement.scrollWidth,
             sections: page.querySelectorAll("section").length, images: images.length,
             broken: images.filter(image => !image.complete || !image.naturalWidth).length,
             clipped: [...page.querySelectorAll("h1, h2, p, dd, pre")].filter(
               each => each.scrollWidth > each.clientWidth + 1).length}};
  }});
  document.getElementById("found").textContent = JSON.stringify(found);
}});
</script></body></html>"""


def find_browser() -> str | None:
    """Chromium on the path, or the one that playwright keeps."""
    on_path = (shutil.which(name) for name in NAMES)
    kept = Path(os.environ.get("PLAYWRIGHT_BROWSERS_PATH", Path.home() / ".cache/ms-playwright"))
    of_playwright = sorted(kept.glob("chromium*/chrome-*/*")) if kept.is_dir() else []
    found = (str(path) for path in of_playwright if path.name in ("chrome", "headless_shell", "chrome-headless-shell"))
    return next((path for path in (*on_path, *found) if path), None)


BROWSER = find_browser()
pytestmark = pytest.mark.skipif(BROWSER is None, reason=f"no browser: none of {', '.join(NAMES)} on the path")


def opened(path: Path, folder: Path) -> tuple[list[dict[str, int]], list[str]]:
    """What each frame measured, and the messages on the console."""
    frames = "\n".join(f'<iframe src="{path.name}" style="width:{w}px;height:900px;border:0"></iframe>' for w in WIDTHS)
    around = path.with_name("measure.html")
    around.write_text(MEASURE.format(frames=frames))
    # Files are origins of their own to each other unless told otherwise; as root there is no sandbox.
    flags = ["--headless", "--disable-gpu", "--no-first-run", "--allow-file-access-from-files", "--no-sandbox"]
    flags += ["--enable-logging=stderr", f"--user-data-dir={folder}", "--window-size=1600,1000", "--dump-dom"]
    done = subprocess.run([str(BROWSER), *flags, around.as_uri()], capture_output=True, text=True, timeout=SECONDS)
    found = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found is not None, done.stderr[-2000:]
    return json.loads(unescape(found[1])), re.findall(r"CONSOLE.*", done.stderr)


def write_reports(folder: Path) -> list[Path]:
    """One of draws with its model and long labels, one of a fit alone."""
    X = np.random.default_rng(0).poisson(6.0, (14, 40))
    labels = ["a very long name of a feature " * 4, "averylongword" * 10, *(f"<i>{n}</i>" for n in range(12))]
    model = nz.gamma_nmf(X, rank=5, alpha_w=nz.free(tie="component"), exposure=2.0, coords={"feature": labels})
    drawn = nz.sample(
        model=nz.gamma_nmf(X, rank=3, coords={"feature": labels}),
        draws=50,
        tune=20,
        chains=2,
        random_seed=1,
        quiet=True,
    )
    fitted = nz.fit(model=model, engine="vb", max_iter=20, restarts=2, random_seed=1, quiet=True)
    alone = nz.report(drawn, folder / "draws.html", title="Averylongtitle" * 10)
    return [alone, nz.report(fitted, folder / "fit.html", model)]


def test_nothing_is_wider_than_the_window(tmp_path):
    for path in write_reports(tmp_path):
        frames, messages = opened(path, tmp_path / "profile")
        assert messages == []
        assert [frame["width"] for frame in frames] == list(WIDTHS)
        for frame in frames:
            assert frame["content"] <= frame["width"]
            assert frame["sections"] == 8
            assert frame["images"] == 4
            assert frame["broken"] == frame["clipped"] == 0


@pytest.mark.parametrize(
    ("body", "sees"),
    [
        ('<p style="width:600px">wide</p>', lambda frame, _: frame["content"] > frame["width"]),
        ('<img src="data:image/png;base64,AA" alt="">', lambda frame, _: frame["broken"] == 1),
        ('<script>console.error("wrong")</script>', lambda _, messages: "wrong" in messages[0]),
    ],
)
def test_the_check_sees_what_is_wrong(tmp_path, body, sees):
    path = tmp_path / "page.html"
    path.write_text(f"<!DOCTYPE html><html><body>{body}</body></html>")
    frames, messages = opened(path, tmp_path / "profile")
    assert sees(frames[0], messages)
