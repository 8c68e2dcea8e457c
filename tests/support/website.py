"""A web site on this machine, which serves a directory well or badly."""

import contextlib
import socket
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Website:
    """Serves the files of `directory` at `url`.

    `manners` says how a file is served otherwise: "truncated" stops half-way, "unsized" does not
    say how long it is, "silent" stops half-way and says nothing, "rude" hangs up.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.manners: dict[str, str] = {}
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
        manner = self.site.manners.get(name)
        if manner is None:
            return super().do_GET()
        if manner == "rude":
            return self.connection.shutdown(socket.SHUT_RDWR)
        content = (self.site.directory / name).read_bytes()
        self.send_response(200)
        if manner != "unsized":
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content if manner == "unsized" else content[: len(content) // 2])
        if manner == "silent":
            self.wfile.flush()
            self.site.ended.wait(10)

    def log_message(self, *args) -> None:
        pass


@contextlib.contextmanager
def serving(directory: Path):
    """A web site of the directory, for as long as the block lasts."""
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


def nobody() -> str:
    """An address of this machine where nothing listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}/"
