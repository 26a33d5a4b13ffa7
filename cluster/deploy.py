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
from ray.serve.schema import ApplicationStatus

from cluster.app import build_app
from cluster.connection import connected
from cluster.errors import DeployFailed, PartFailed
from configs.schema import ClusterConfig

POLL_S = 0.5
ANSWER_TIMEOUT_S = 60


def deploy(config: ClusterConfig, url: str, report: Callable[[str], None]) -> None:
    """Deploys `config` and returns once the API answers at `url`.

    Raises:
        DeployFailed: A verifier could not start; carries the replica's own error.
    """
    with connected(config):
        report("building the application")
        application = build_app(config)
        report("starting HAProxy")
        try:
            serve.start(
                proxy_location="HeadOnly",
                http_options={"host": config.ports.host, "port": config.ports.http},
            )
        except ray.exceptions.RayError as error:
            raise PartFailed("HAProxy", replica_error(str(error))) from error
        serve.run_many(
            [serve.RunTarget(application, name=config.name, route_prefix="/")],
            wait_for_ingress_deployment_creation=False,
            wait_for_applications_running=False,
        )
        _wait_until_running(config, report)
        _wait_until_it_answers(url)


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
