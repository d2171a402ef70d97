"""Headless Chromium for tests: what a page tells of itself, what it looks like, and what is on a picture."""
import base64
import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path


def chromium():
    named = os.environ.get("FLASHSTEP_CHROMIUM")
    return named or next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def run(*arguments):
    """Chromium without a window and without a network: whatever it asks for goes to a closed port."""
    with tempfile.TemporaryDirectory() as state:
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        result = subprocess.run(
            [chromium(), "--headless", "--disable-gpu", *sandbox, f"--user-data-dir={state}", "--enable-logging=stderr",
             "--v=0", "--proxy-server=127.0.0.1:9", "--disable-background-networking", "--hide-scrollbars",
             *map(str, arguments)], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert "CONSOLE" not in result.stderr, result.stderr
    return result.stdout


# For scripts: what tell() is given is what told_by() returns. The page of a frame hands it to the page around it.
TELL = """
const put = text => { document.title = 'told ' + btoa(text); };
const tell = value => self === top ? put(JSON.stringify(value)) : parent.postMessage(JSON.stringify(value), '*');
addEventListener('message', event => put(event.data));
"""


def told_by(page):
    """What the scripts of the file `page` tell until it is loaded."""
    # A budget of virtual time is over when nothing is left to do: frames have sent their messages by then.
    told = re.search("<title>told ([^<]*)</title>", run("--virtual-time-budget=5000", "--dump-dom", page.as_uri()))
    assert told, f"{page} tells nothing"
    return json.loads(base64.b64decode(told[1]))


def framed(page, width, height, scale=1):
    """A page with `page` in it, laid out for a window of that size: Chromium's own windows are never narrow."""
    return f"""<!DOCTYPE html><title></title><script>{TELL}</script>
      <style>html, body {{ margin: 0; overflow: hidden; background: #f0f; }} iframe {{ display: block; border: 0;
      width: {width}px; height: {height}px; transform: scale({scale}); transform-origin: 0 0; }}</style>
      <iframe src="{page.name}"></iframe>"""


# Of the rectangle of an image: the share of pixels in another colour than the commonest, the ground, and of those that
# are no grey; how many colours there are.
LOOK = """
function look(image, x, y, width, height) {
  const canvas = document.createElement('canvas');
  [canvas.width, canvas.height] = [width, height];
  const context = canvas.getContext('2d', {willReadFrequently: true});
  context.drawImage(image, -x, -y);
  const counts = new Map();
  for (const pixel of new Uint32Array(context.getImageData(0, 0, width, height).data.buffer))
    counts.set(pixel, (counts.get(pixel) || 0) + 1);
  const parts = pixel => [pixel & 255, pixel >> 8 & 255, pixel >> 16 & 255];
  let ground = 0, most = 0, vivid = 0;
  for (const [pixel, count] of counts) {
    if (count > most) [ground, most] = [pixel, count];
    const rgb = parts(pixel);
    if (Math.max(...rgb) - Math.min(...rgb) > 40) vivid += count;
  }
  const all = width * height;
  return {colours: counts.size, ink: 1 - most / all, vivid: vivid / all, ground: parts(ground)};
}
"""


def looks(folder, images):
    """{file: {name: look}} of {PNG file: {name: (x, y, width, height)}}, decoded by Chromium; "" is the whole image."""
    data = [(str(file), base64.b64encode(Path(file).read_bytes()).decode(), boxes) for file, boxes in images.items()]
    tags = "".join(f'<img src="data:image/png;base64,{image}">' for _, image, _ in data)
    page = Path(folder) / "looks.html"
    page.write_text(f"""<!DOCTYPE html><title></title>{tags}<script>{TELL}{LOOK}
      const boxes = {json.dumps([boxes for _, _, boxes in data])};
      addEventListener('load', () => tell(Array.from(document.images).map((image, i) => {{
        const of = {{'': look(image, 0, 0, image.naturalWidth, image.naturalHeight)}};
        for (const [name, box] of Object.entries(boxes[i])) of[name] = look(image, ...box.map(Math.round));
        return of;
      }})));
    </script>""")
    try:
        return dict(zip(images, told_by(page)))
    finally:
        page.unlink()
