# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""A Hub on the loopback for the unmodified client of huggingface_hub: as much of its HTTP as models need, no Xet."""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

import yaml


TOKEN, USER = "hf_" + "a" * 34, "me"


@dataclass
class Repository:
    """A repository: branches point to commits, commits hold the bytes of files by their paths."""

    private: bool = False
    branches: dict[str, str] = field(default_factory=dict)
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)

    def commit(self, branch: str, files: dict[str, bytes]) -> str:
        sha = hashlib.sha1(repr((branch, len(self.commits), sorted(files))).encode()).hexdigest()
        self.commits[sha], self.branches[branch] = files, sha
        return sha

    def files(self, branch: str = "main") -> dict[str, bytes]:
        return self.commits[self.branches[branch]]


class Answer(Exception):
    """What ends the handling of a request: a status, headers and a body."""

    def __init__(self, status: int, body: object = b"", **headers: str):
        self.status, self.headers = status, {name.replace("_", "-"): value for name, value in headers.items()}
        self.body = body if isinstance(body, bytes) else json.dumps(body).encode()


class HubServer(ThreadingHTTPServer):
    """Serves `repositories` (by "OWNER/NAME") and notes `requests`; calls `before_answering(method, path)`.
    `default_visibility` is that of new repositories for which none is asked, as organizations set it."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.repositories: dict[str, Repository] = {}
        self.objects: dict[str, bytes] = {}
        self.requests: list[tuple[str, str]] = []
        self.before_answering: Callable[[str, str], None] = lambda method, path: None
        self.default_visibility = "public"
        self.url = f"http://127.0.0.1:{self.server_port}"

    def __enter__(self):
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *args):
        self.shutdown()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: HubServer

    def log_message(self, *args):
        pass

    def handle_request(self):
        path = unquote(urlsplit(self.path).path)
        self.server.requests.append((self.command, path))
        self.__dict__.pop("body", None)
        self.server.before_answering(self.command, path)
        try:
            for pattern, handle in ROUTES:
                if match := re.fullmatch(pattern, f"{self.command} {path}"):
                    handle(self, *match.groups())
            raise Answer(404, {"error": f"no route {self.command} {path}"})
        except Answer as answer:
            _ = self.body  # a request is read to its end
            self.send_response(answer.status)
            for name, value in {"Content-Length": str(len(answer.body)), **answer.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.body)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = handle_request

    @cached_property
    def body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            chunks = []
            while size := int(self.rfile.readline(), 16):
                chunks.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(chunks)
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def authorize(self) -> None:
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            raise Answer(401, {"error": "Invalid username or password."}, X_Error_Message="Invalid credentials")

    def repository(self, name: str) -> Repository:
        repository = self.server.repositories.get(name)
        if repository is None or repository.private:
            self.authorize()
        if repository is None:
            raise Answer(404, X_Error_Code="RepoNotFound", X_Error_Message="Repository not found")
        return repository

    def revision(self, name: str, revision: str | None) -> tuple[Repository, str, dict[str, bytes]]:
        repository = self.repository(name)
        sha = repository.branches.get(revision or "main", revision)
        if sha not in repository.commits:
            raise Answer(404, X_Error_Code="RevisionNotFound", X_Error_Message=f"Invalid rev id: {revision}")
        return repository, sha, repository.commits[sha]

    def who_am_i(self):
        self.authorize()
        raise Answer(200, {"type": "user", "name": USER, "auth": {"accessToken": {"role": "write"}}, "orgs": []})

    def create(self):
        self.authorize()
        values = json.loads(self.body)
        name = f"{values.get('organization') or USER}/{values['name']}"
        if name.partition("/")[0] != USER:
            raise Answer(403, {"error": f"You don't have the rights to create a model under {name!r}"})
        if name in self.server.repositories:
            raise Answer(409, {"error": "You already created this model repo", "url": f"{self.server.url}/{name}"})
        visibility = values.get("visibility", self.server.default_visibility)
        repository = self.server.repositories[name] = Repository(visibility == "private")
        repository.commit("main", {".gitattributes": b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n"})
        raise Answer(200, {"url": f"{self.server.url}/{name}", "id": name, "name": name})

    def validate_yaml(self):
        metadata = yaml.safe_load(json.loads(self.body)["content"].split("---")[1])
        raise Answer(200 if isinstance(metadata, dict) else 400, {"errors": [], "warnings": []})

    def info(self, name, revision=None):
        repository, sha, files = self.revision(name, revision)
        siblings = [{"rfilename": path} for path in files]
        values = {"id": name, "modelId": name, "sha": sha, "private": repository.private, "siblings": siblings}
        raise Answer(200, values | {"tags": [], "downloads": 0, "likes": 0})

    def tree(self, name, revision):
        _, _, files = self.revision(name, revision)
        listed = [{"type": "file", "path": path, "size": len(data), "oid": path} for path, data in files.items()]
        raise Answer(200, listed)

    def preupload(self, name, revision):
        self.authorize()
        self.revision(name, revision)
        paths = [file["path"] for file in json.loads(self.body)["files"]]
        modes = {path: "lfs" if path.endswith(".safetensors") else "regular" for path in paths}
        files = [{"path": path, "uploadMode": mode, "shouldIgnore": False} for path, mode in modes.items()]
        raise Answer(200, {"files": files})

    def lfs_batch(self, name):
        self.authorize()
        objects = [
            each | {"actions": {"upload": {"href": f"{self.server.url}/lfs/{each['oid']}"}}}
            for each in json.loads(self.body)["objects"]
        ]
        raise Answer(200, {"transfer": "basic", "objects": objects}, Content_Type="application/vnd.git-lfs+json")

    def lfs_put(self, oid):
        if hashlib.sha256(self.body).hexdigest() != oid:
            raise Answer(400, {"error": "other bytes than announced"})
        self.server.objects[oid] = self.body
        raise Answer(200)

    def commit(self, name, revision):
        self.authorize()
        repository, sha, files = self.revision(name, revision)
        lines = [json.loads(line) for line in self.body.splitlines()]
        files = dict(files)
        for line in lines:
            value = line["value"]
            if line["key"] == "header" and value.get("parentCommit") not in (None, sha):
                raise Answer(412, {"error": "The expected parent commit is not the branch's last one"})
            elif line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.server.objects[value["oid"]]
            elif line["key"] == "deletedFile":
                del files[value["path"]]
        sha = repository.commit(revision, files)
        raise Answer(200, {"commitUrl": f"{self.server.url}/{name}/commit/{sha}", "commitOid": sha, "hookOutput": ""})

    def resolve(self, name, revision, path):
        _, sha, files = self.revision(name, revision)
        if path not in files:
            raise Answer(404, X_Error_Code="EntryNotFound", X_Error_Message="Entry not found", X_Repo_Commit=sha)
        raise Answer(200, files[path], ETag=f'"{hashlib.sha1(files[path]).hexdigest()}"', X_Repo_Commit=sha)


NAME = r"([\w.-]+/[\w.-]+)"
ROUTES = (
    (r"GET /api/whoami-v2", Handler.who_am_i),
    (r"POST /api/repos/create", Handler.create),
    (r"POST /api/validate-yaml", Handler.validate_yaml),
    (rf"GET /api/models/{NAME}", Handler.info),
    (rf"GET /api/models/{NAME}/revision/(.+)", Handler.info),
    (rf"GET /api/models/{NAME}/tree/([^/]+)", Handler.tree),
    (rf"POST /api/models/{NAME}/preupload/(.+)", Handler.preupload),
    (rf"POST /api/models/{NAME}/commit/(.+)", Handler.commit),
    (rf"POST /{NAME}\.git/info/lfs/objects/batch", Handler.lfs_batch),
    (r"PUT /lfs/(\w+)", Handler.lfs_put),
    (rf"(?:GET|HEAD) /{NAME}/resolve/([^/]+)/(.+)", Handler.resolve),
)
