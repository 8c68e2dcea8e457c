"""A web server on this machine, with errors on demand."""

import contextlib
import socket
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Website:
    """Serves the files of `directory` at `url`, and lists the requests in `asked`.

    `faults` of files by name: "truncated" closes the connection half-way, "unsized" sends no
    length, "silent" stops half-way and keeps the connection open, "closed" sends nothing.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.faults: dict[str, str] = {}
        self.asked: list[str] = []
        self.ended = threading.Event()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, site=self))
        self.url = f"http://127.0.0.1:{self.server.server_port}/"


class Handler(SimpleHTTPRequestHandler):
    def __init__(self, *args, site: Website) -> None:
        self.site = site
        super().__init__(*args, directory=str(site.directory))

    def do_GET(self) -> None:
        name = self.path.strip("/")
        self.site.asked.append(name)
        fault = self.site.faults.get(name)
        if fault is None:
            return super().do_GET()
        if fault == "closed":
            return self.connection.shutdown(socket.SHUT_RDWR)
        content = (self.site.directory / name).read_bytes()
        self.send_response(200)
        if fault != "unsized":
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content if fault == "unsized" else content[: len(content) // 2])
        if fault == "silent":
            self.wfile.flush()
            self.site.ended.wait(10)

    def log_message(self, *args) -> None:
        pass


@contextlib.contextmanager
def serving(directory: Path):
    """A web server for the directory, until the block ends."""
    site = Website(directory)
    thread = threading.Thread(target=site.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield site
    finally:
        site.ended.set()
        site.server.shutdown()
        site.server.server_close()
        thread.join()


def no_server() -> str:
    """An address of this machine without a server."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}/"
