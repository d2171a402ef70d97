"""`flashstep data fetch tinystories` against a local HTTP server that misbehaves in every way."""
import concurrent.futures
import hashlib
import http.server
import os
import random
import re
import resource
import signal
import socket
import subprocess
import tempfile
import threading
import time

PROGRAM = os.environ["FLASHSTEP_PROGRAM"]
TRAIN, VALID = "TinyStoriesV2-GPT4-train.txt", "TinyStoriesV2-GPT4-valid.txt"
CONTENT = {TRAIN: random.Random(1).randbytes(3_000_000), VALID: b"Once upon a time.\n<|endoftext|>\n"}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_GET(self):
        server, name = self.server, self.path.rsplit("/", 1)[-1]
        server.requests.append((name, self.headers.get("Range")))
        if self.path.startswith("/hub/") and server.linked:
            # As Hugging Face does: size and hash come with a redirect to where the bytes are.
            self.send_response(302)
            self.send_header("Location", "/files/" + name)
            self.send_header("X-Linked-Size", str(len(CONTENT[name])))
            self.send_header("X-Linked-Etag", f'"{hashlib.sha256(CONTENT[name]).hexdigest()}"')
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if server.failures:
            status = server.failures.pop(0)
            body = b"no"
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return
        content = server.content.get(name, CONTENT[name])
        begin = 0
        match = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if match and server.ranges:
            begin = int(match.group(1))
            if begin >= len(content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(content)}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(content) - begin))
        self.end_headers()
        body = content[begin:]
        if name == TRAIN and server.cuts:
            self.wfile.write(body[:server.cuts.pop(0)])
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        if name == TRAIN and server.pause:
            self.wfile.write(body[:1_000_000])
            self.wfile.flush()
            server.paused.set()
            time.sleep(server.pause)
            self.close_connection = True
            return
        self.wfile.write(body)


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests, self.failures, self.cuts, self.content = [], [], [], {}
        self.linked, self.ranges, self.pause, self.paused = True, True, 0, threading.Event()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request, client_address):
        pass  # the client hangs up in some of the tests

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}/hub"

    def ranges_asked(self, name):
        return [asked for requested, asked in self.requests if requested == name]


def start(directory, url, **options):
    environment = {**os.environ, "FLASHSTEP_TINYSTORIES_URL": url, "NO_PROXY": "127.0.0.1",
                   "no_proxy": "127.0.0.1"}
    return subprocess.Popen([PROGRAM, "data", "fetch", "tinystories", "--out", directory],
                            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            text=True, **options)


def fetch(directory, url):
    process = start(directory, url)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def read(directory, name):
    with open(os.path.join(directory, name), "rb") as file:
        return file.read()


def expect_complete(directory, result):
    code, out, err = result
    assert code == 0, (code, out, err)
    for name in (TRAIN, VALID):
        assert read(directory, name) == CONTENT[name], name
        assert os.path.join(directory, name) in out, out
    assert not [name for name in os.listdir(directory) if "partial" in name]


def expect_failure(result, code, *parts):
    assert result[0] == code, result
    sentence = result[2].rstrip("\n").split("\n")[-1]
    for part in parts:
        assert part in sentence, (part, result[2])


def test_fetches_and_then_needs_no_network(directory, server):
    result = fetch(directory, server.url)
    expect_complete(directory, result)
    assert "SHA-256" not in result[2], result
    assert server.ranges_asked(TRAIN) == [None, None]  # the hub's answer, then the file
    expect_complete(directory, fetch(directory, "http://127.0.0.1:9/nowhere"))


def test_a_cut_connection_is_taken_up_where_it_broke(directory, server):
    server.cuts = [1_000_000, 500_000]
    expect_complete(directory, fetch(directory, server.url))
    asked = server.ranges_asked(TRAIN)
    assert asked[0] is None and asked[2].startswith("bytes=") and asked[2] != "bytes=0-", asked
    assert len(asked) == 6, asked


def test_a_later_call_goes_on(directory, server):
    with open(os.path.join(directory, TRAIN + ".partial"), "wb") as file:
        file.write(CONTENT[TRAIN][:1234567])
    expect_complete(directory, fetch(directory, server.url))
    assert server.ranges_asked(TRAIN) == ["bytes=1234567-"] * 2


def test_a_whole_partial_file_is_only_checked(directory, server):
    with open(os.path.join(directory, TRAIN + ".partial"), "wb") as file:
        file.write(CONTENT[TRAIN])
    expect_complete(directory, fetch(directory, server.url))


def test_a_partial_file_of_something_else_is_started_over(directory, server):
    for wrong in (b"x" * 1000, b"x" * len(CONTENT[TRAIN]), b"x" * (len(CONTENT[TRAIN]) + 5)):
        with tempfile.TemporaryDirectory() as fresh:
            with open(os.path.join(fresh, TRAIN + ".partial"), "wb") as file:
                file.write(wrong)
            expect_complete(fresh, fetch(fresh, server.url))


def test_a_server_without_ranges(directory, server):
    server.ranges = False
    server.cuts = [1_000_000]
    expect_complete(directory, fetch(directory, server.url))


def test_a_server_without_checksums(directory, server):
    server.linked = False
    server.cuts = [2_999_999]
    result = fetch(directory, server.url)
    expect_complete(directory, result)
    said = [line for line in result[2].splitlines() if "without a SHA-256" in line]
    assert len(said) == 2 and TRAIN in said[1], result


def test_a_busy_server_is_asked_again(directory, server):
    server.failures = [503, 429]
    expect_complete(directory, fetch(directory, server.url))


def test_a_missing_file_is_not(directory, server):
    server.failures = [404]
    expect_failure(fetch(directory, server.url), 1, "HTTP status 404", VALID)
    assert len(server.requests) == 2, server.requests


def test_a_wrong_checksum(directory, server):
    server.content = {TRAIN: CONTENT[TRAIN][:-1] + b"x"}
    digest = hashlib.sha256(CONTENT[TRAIN]).hexdigest()
    expect_failure(fetch(directory, server.url), 1, "expected SHA-256 " + digest)
    assert not os.path.exists(os.path.join(directory, TRAIN))
    server.content = {}
    expect_complete(directory, fetch(directory, server.url))


def test_a_wrong_size(directory, server):
    server.content = {TRAIN: CONTENT[TRAIN][:-1]}
    expect_failure(fetch(directory, server.url), 1, "expected 3,000,000 bytes", "got 2,999,999")
    assert not os.path.exists(os.path.join(directory, TRAIN))


def test_offline(directory, server):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        begin = time.monotonic()
        expect_failure(fetch(directory, f"http://127.0.0.1:{port}/x"), 1,
                       f"cannot reach 127.0.0.1:{port}", "offline", VALID)
        assert time.monotonic() - begin < 20  # no second attempt
        assert os.listdir(directory) == []
    expect_failure(fetch(directory, "ftp://127.0.0.1/x"), 2, "expected an http or https address")


def test_an_interrupt_keeps_what_came(directory, server):
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        server.pause = 60
        server.paused.clear()
        process = start(directory, server.url)
        assert server.paused.wait(30)
        time.sleep(0.3)
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
        expect_failure((process.returncode, out, err), code, "the next call goes on")
        assert os.path.getsize(os.path.join(directory, TRAIN + ".partial")) > 0
    server.pause = 0
    expect_complete(directory, fetch(directory, server.url))


def test_a_changed_file_is_not_overwritten(directory, server):
    expect_complete(directory, fetch(directory, server.url))
    with open(os.path.join(directory, VALID), "wb") as file:
        file.write(b"mine now")
    expect_failure(fetch(directory, server.url), 2, VALID, "8 bytes", "remove it")
    assert read(directory, VALID) == b"mine now"


def test_a_forbidden_directory(directory, server):
    blocked = os.path.join(directory, "file")
    open(blocked, "w").close()
    expect_failure(fetch(os.path.join(blocked, "sub"), server.url), 1, "cannot create")


def test_a_full_disk_keeps_what_fits(directory, server):
    def limit_files():  # stands for a disk: writing fails in the same way
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, 2_000_000))

    process = start(directory, server.url, preexec_fn=limit_files)
    out, err = process.communicate(timeout=60)
    expect_failure((process.returncode, out, err), 1, "cannot write", "File too large")
    expect_complete(directory, fetch(directory, server.url))
    assert server.ranges_asked(TRAIN)[-1] == "bytes=2000000-", server.requests


def run(item):
    name, test = item
    with tempfile.TemporaryDirectory() as directory:
        begin = time.monotonic()
        server = Server()
        test(directory, server)
        server.shutdown()
        print(f"passed {name} ({time.monotonic() - begin:.1f} s)", flush=True)


# At once, because most of them wait.
with concurrent.futures.ThreadPoolExecutor(8) as pool:
    list(pool.map(run, [item for item in globals().items() if item[0].startswith("test_")]))
