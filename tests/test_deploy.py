"""What `deploy/` says of the server is true of it: metrics, options, paths and times."""

from __future__ import annotations

import json
import os
import re
from dataclasses import fields
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from phloem.server.cli.serve import command
from phloem.server.http_config import HttpArgs

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"


def load(path):
    return yaml.safe_load((DEPLOY / path).read_text(encoding="utf-8"))


def exported():
    """All series that the page on operations has, which another test compares with a server's."""
    text = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
    series = set()
    for name, kind in re.findall(r"^\| `(phloem_\w+)` \|[^|]*\| (\w+) \|", text, re.MULTILINE):
        parts = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
        series |= {name + part for part in parts}
    return series


@pytest.mark.parametrize(
    "path",
    [
        "grafana/dashboards/phloem.json",
        "prometheus/alerts.yml",
        "kubernetes/optional/hpa.yaml",
    ],
)
def test_metrics_that_are_named_are_exported(path):
    named = set(re.findall(r"phloem_\w+", (DEPLOY / path).read_text(encoding="utf-8")))
    assert named
    assert named <= exported()


def test_the_dashboard_s_panels_are_many_and_do_not_cover_one_another():
    panels = json.loads((DEPLOY / "grafana/dashboards/phloem.json").read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (column, line)
        for panel in panels
        for at in [panel["gridPos"]]
        for column in range(at["x"], at["x"] + at["w"])
        for line in range(at["y"], at["y"] + at["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(column for column, _ in cells) < 24


def test_alerts_say_what_to_do():
    (group,) = load("prometheus/alerts.yml")["groups"]
    names = [rule["alert"] for rule in group["rules"]]
    assert len(names) == len(set(names))
    for rule in group["rules"]:
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert set(rule["annotations"]) == {"summary", "action"}


def container():
    (found,) = load("kubernetes/deployment.yaml")["spec"]["template"]["spec"]["containers"]
    return found


def commands():
    yield "kubernetes", container()["args"]
    yield "compose", load("compose.yaml")["services"]["phloem"]["command"]
    for name in ("Dockerfile", "Dockerfile.cuda"):
        text = (DEPLOY / "docker" / name).read_text(encoding="utf-8")
        yield name, json.loads(re.search(r"^CMD (.*)$", text, re.MULTILINE)[1])


@pytest.mark.parametrize(("where", "line"), list(commands()))
def test_command_lines_are_taken_by_the_command(where, line):
    name, *options = line
    assert name == "serve"
    context = command.make_context("serve", list(options))
    http = {key: context.params[key] for key in ("host", "port", "log_format", "drain_seconds")}
    made = HttpArgs(**{key: value for key, value in http.items() if value is not None})
    assert (made.host, made.port, made.log_format) == ("0.0.0.0", 30000, "json")


def test_actions_of_alerts_name_options_that_exist():
    help = CliRunner().invoke(command, ["--help"]).output
    pages = ("deploy/prometheus/alerts.yml", "deploy/README.md", "docs/operations.md")
    for page in pages:
        text = (ROOT / page).read_text(encoding="utf-8")
        # Those of Docker and kubectl stand in blocks of their own, or are named here.
        named = set(re.findall(r"--[a-z]+(?:-[a-z]+)*", re.sub(r"```.*?```", "", text, flags=re.S)))
        assert {option for option in named - {"--gpus"} if option not in help} == set(), page


def test_there_is_time_to_drain_before_the_end():
    pod = load("kubernetes/deployment.yaml")["spec"]["template"]["spec"]
    args = container()["args"]
    drain = float(args[args.index("--drain-seconds") + 1])
    pause = float(container()["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pause + drain + 10 <= pod["terminationGracePeriodSeconds"]
    service = load("compose.yaml")["services"]["phloem"]
    drain = float(service["command"][service["command"].index("--drain-seconds") + 1])
    assert drain + 10 <= float(service["stop_grace_period"].removesuffix("s"))


def documents(path):
    return list(yaml.safe_load_all((DEPLOY / path).read_text(encoding="utf-8")))


def test_keys_reach_the_server_where_there_are_any(monkeypatch):
    keys, metrics = documents("kubernetes/optional/keys.yaml")
    (source,) = container()["envFrom"]
    assert source["secretRef"] == {"name": keys["metadata"]["name"], "optional": True}
    compose = load("compose.yaml")["services"]["phloem"]["environment"]
    known = {
        field.metadata["secret_env"] for field in fields(HttpArgs) if field.metadata["secret_env"]
    }
    assert set(keys["stringData"]) == set(compose) == known
    # As they are here, and as compose has them where there are none, they are no keys.
    for name in known:
        assert keys["stringData"][name] == ""
        assert compose[name] == f"${{{name}:-}}"
        monkeypatch.setenv(name, "")
    params = command.make_context("serve", ["--model", "m"]).params
    assert not params["api_key"]
    assert not params["admin_api_key"]
    (endpoint,) = load("kubernetes/optional/servicemonitor.yaml")["spec"]["endpoints"]
    credentials = endpoint["authorization"]["credentials"]
    assert credentials["name"] == metrics["metadata"]["name"]
    assert credentials["key"] in metrics["stringData"]


def test_prometheus_beside_a_server_with_keys_is_let_in():
    line = load("compose.yaml")["services"]["phloem"]["command"]
    context = command.make_context("serve", line[1:])
    assert context.params["metrics_access"] == "open"
    assert "authorization" not in load("prometheus/prometheus.yml")["scrape_configs"][0]


def test_probes_ask_for_what_there_is(serve, write_script):
    server = serve(write_script([]))
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        probe = container()[name]
        assert server.http.get(probe["httpGet"]["path"]).status_code == 200


def test_a_pod_writes_nowhere_but_to_its_volumes_and_is_nobody():
    pod = load("kubernetes/deployment.yaml")["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert container()["securityContext"]["readOnlyRootFilesystem"]
    assert {mount["mountPath"] for mount in container()["volumeMounts"]} == {"/cache", "/tmp"}
    assert {volume["name"] for volume in pod["volumes"]} == {"cache", "tmp"}


@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.cuda"])
def test_an_image_has_every_package_and_another_user(name):
    text = (DEPLOY / "docker" / name).read_text(encoding="utf-8")
    copied = set(re.findall(r"/src/packages/(\w+)", text))
    assert copied == {path.parent.name for path in ROOT.glob("packages/*/pyproject.toml")}
    assert re.search(r"^USER 10001$", text, re.MULTILINE)
    assert "useradd --uid 10001" in text


def test_what_compose_mounts_is_there():
    services = load("compose.yaml")["services"]
    for service in services.values():
        for mount in service["volumes"]:
            source = mount.split(":")[0]
            assert not source.startswith(".") or (DEPLOY / source).exists()
    dashboards = load("grafana/provisioning/dashboards/phloem.yaml")["providers"][0]
    mounts = [mount.split(":")[1] for mount in services["grafana"]["volumes"]]
    assert dashboards["options"]["path"] in mounts
    assert (ROOT / "deploy" / services["phloem"]["build"]["context"]).resolve() == ROOT
    assert (ROOT / services["phloem"]["build"]["dockerfile"]).is_file()


def test_kustomize_names_files_that_exist():
    for name in load("kubernetes/kustomization.yaml")["resources"]:
        assert (KUBERNETES / name).is_file()


def test_keys_are_not_left_in_the_environment_of_what_the_server_starts(monkeypatch):
    for name in ("PHLOEM_API_KEYS", "PHLOEM_ADMIN_API_KEY"):
        monkeypatch.setenv(name, "one")
    monkeypatch.setenv("PHLOEM_ADMIN_API_KEY", "boss")
    done = CliRunner().invoke(command, ["--model", "m", "--print-config"])
    assert done.exit_code == 0, done.output
    assert not {"PHLOEM_API_KEYS", "PHLOEM_ADMIN_API_KEY"} & set(os.environ)
