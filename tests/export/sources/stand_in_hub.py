"""A hub on this machine that has one model, for the hub's real client."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@contextlib.contextmanager
def serving(name: str, files: Mapping[str, bytes], asked: list[str]) -> Iterator[str]:
    """Its address. `asked` collects the files that were fetched."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer()

        def do_HEAD(self) -> None:
            self.answer()

        def log_message(self, *_: object) -> None:
            pass

        def answer(self) -> None:
            path = self.path.partition("?")[0]
            if path.startswith(f"/api/models/{name}/revision/"):
                listed = [{"rfilename": file} for file in files]
                self.send({}, json.dumps({"id": name, "sha": COMMIT, "siblings": listed}).encode())
            elif path.startswith(f"/api/models/{name}/tree/"):
                listed = [
                    {"type": "file", "path": file, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                    for file, content in files.items()
                ]
                self.send({}, json.dumps(listed).encode())
            elif path.startswith(f"/{name}/resolve/") and (file := path.split("/", 5)[5]) in files:
                asked.append(file)
                tag = hashlib.sha1(files[file]).hexdigest()
                self.send({"ETag": f'"{tag}"', "X-Repo-Commit": COMMIT}, files[file])
            else:
                self.send_response(404)
                self.send_header("X-Error-Code", "RepoNotFound")
                self.send_header("Content-Length", "0")
                self.end_headers()

        def send(self, headers: Mapping[str, str], content: bytes) -> None:
            self.send_response(200)
            for key, value in headers.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
