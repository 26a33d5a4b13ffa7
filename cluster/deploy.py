"""Puts the application on a Ray cluster and waits until it answers.

Imports Ray Serve, which reads its fast path from the environment at import: set
that first (`cluster/environment.py`).
"""

import re
import time
from collections.abc import Callable

import httpx
import ray
from ray import serve
from ray.serve.context import _get_global_client
from ray.serve.schema import ApplicationStatus, ServeDeploySchema

from cluster.app import build_app
from cluster.connection import connected
from cluster.environment import missing_fast_path
from cluster.errors import DeployFailed, FastPathMissing, PartFailed
from cluster.placement import NODE_LABEL
from cluster.serve_config import serve_config
from configs.schema import ClusterConfig

POLL_S = 0.5
ANSWER_TIMEOUT_S = 60


def deploy(config: ClusterConfig, url: str, report: Callable[[str], None]) -> None:
    """Deploys `config` and returns once the API answers at `url`.

    Raises:
        DeployFailed: A verifier could not start; carries the replica's own error.
    """
    with connected(config):
        if config.ray.address is not None:
            _require_fast_path_everywhere(config)
        report("building the application")
        # Where the application scales, Serve builds it itself: only a Serve config, as `serve
        # deploy` takes it, can name the policy of a whole application.
        application = None if config.autoscaling else build_app(config)
        report("starting HAProxy")
        try:
            serve.start(
                proxy_location="HeadOnly",
                http_options={"host": config.ports.host, "port": config.ports.http},
            )
        except ray.exceptions.RayError as error:
            raise PartFailed("HAProxy", replica_error(str(error))) from error
        if application is None:
            applications = serve_config(config)["applications"]
            schema = ServeDeploySchema.model_validate({"applications": applications})
            _get_global_client().deploy_apps(schema)
        else:
            serve.run_many(
                [serve.RunTarget(application, name=config.name, route_prefix="/")],
                wait_for_ingress_deployment_creation=False,
                wait_for_applications_running=False,
            )
        _wait_until_running(config, report)
        _wait_until_it_answers(url)


def leave(config: ClusterConfig) -> None:
    """Ends the application, and waits for its verifiers to end their streams.

    Raises:
        ConnectionError: The Ray cluster can't be reached.
    """
    with connected(config):
        serve.delete(config.name)


def _require_fast_path_everywhere(config: ClusterConfig) -> None:
    """Refuses Ray nodes that were started without the environment of the fast path.

    Raises:
        FastPathMissing: One was; names what is missing, and where.
    """
    nodes = [node for node in ray.nodes() if node["Alive"]]
    checks = [
        ray.remote(num_cpus=0, max_retries=0)(missing_fast_path)
        .options(label_selector={NODE_LABEL: node["NodeID"]})
        .remote(config.shown_header)
        for node in nodes
    ]
    for node, missing in zip(nodes, ray.get(checks), strict=True):
        if missing:
            raise FastPathMissing([*missing, f"(on the Ray node {node['NodeManagerAddress']})"])


def _wait_until_running(config: ClusterConfig, report: Callable[[str], None]) -> None:
    deadline_s = time.monotonic() + config.verifiers.start_timeout_s
    told = ""
    while True:
        application = serve.status().applications.get(config.name)
        if application is not None:
            if application.status == ApplicationStatus.RUNNING:
                return
            message = "\n".join(d.message for d in application.deployments.values() if d.message)
            if application.status in (
                ApplicationStatus.DEPLOY_FAILED,
                ApplicationStatus.UNHEALTHY,
            ):
                raise DeployFailed(replica_error(message or application.message))
            now = _progress(application, config.verifiers.replicas)
            if "to be scheduled" in message:  # waits for cores or GPUs that are not there
                now += f"; {message.splitlines()[0]}"
            if now != told:
                report(now)
                told = now
        if time.monotonic() > deadline_s:
            raise DeployFailed(
                f"not ready after verifiers.start_timeout_s={config.verifiers.start_timeout_s} s"
            )
        time.sleep(POLL_S)


def _progress(application: object, wanted: int) -> str:
    ready = sum(
        deployment.replica_states.get("RUNNING", 0)
        for name, deployment in application.deployments.items()  # type: ignore[attr-defined]
        if name.startswith("Verifier")
    )
    return f"loading the model into the verifiers ({ready} of {wanted} ready)"


def replica_error(message: str) -> str:
    """The part of Serve's message a person needs: the replica's own error.

    Serve wraps a replica's exception in a traceback; its last exception line,
    with what belongs to it, says what happened.
    """
    message = re.sub(r"\n *For further information visit .*", "", message)
    message = re.sub(r" \[type=\w+, input_value=.*", "", message)
    errors = list(re.finditer(r"^[\w.]*(?:Error|Exception|Interrupt|Exit)\b.*", message, re.M))
    if not errors:
        return message.strip()
    error = message[errors[-1].start() :].strip()
    frames = re.findall(r'^ *File "(.+)", line (\d+), in (\w+)', message, re.M)
    if not frames:
        return error
    file, line, function = frames[-1]
    return f"{error}\n(raised in {function}, {file}:{line})"


def _wait_until_it_answers(url: str) -> None:
    deadline_s = time.monotonic() + ANSWER_TIMEOUT_S
    while True:
        try:
            # 401 is an answer, too: the front door is there and wants a key.
            if httpx.get(f"{url}/v1/models", timeout=5).status_code in (200, 401):
                return
        except httpx.HTTPError:
            pass
        if time.monotonic() > deadline_s:
            raise DeployFailed(f"the verifiers are ready, but nothing answers at {url}")
        time.sleep(POLL_S)
