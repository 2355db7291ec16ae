"""The examples for clusters: what can be checked without one."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from headrace.run.config import all_keys

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_the_slurm_script_is_a_script() -> None:
    parsed = subprocess.run(["bash", "-n", EXAMPLES / "slurm.sh"], capture_output=True, text=True)
    assert (parsed.returncode, parsed.stderr) == (0, "")


def test_the_kubernetes_job_has_a_service_that_names_its_pods() -> None:
    service, job = yaml.safe_load_all((EXAMPLES / "kubernetes.yaml").read_text())
    assert (service["kind"], job["kind"]) == ("Service", "Job")
    pod = job["spec"]["template"]["spec"]
    assert pod["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"]["job-name"] == job["metadata"]["name"]
    assert f"--nnodes={job['spec']['completions']} " in pod["containers"][0]["args"][0]


@pytest.mark.parametrize("name", ["slurm.sh", "kubernetes.yaml"])
def test_every_key_of_an_example_exists(name: str) -> None:
    keys = re.findall(r"\b((?:model|training|data|run)\.\w+)=", (EXAMPLES / name).read_text())
    assert keys
    assert set(keys) <= set(all_keys())
