"""A Ray cluster with several nodes on this machine, one of which can be killed."""

import os
from contextlib import contextmanager

# Ray reads these when it is imported. They go to child processes too, which so can join the cluster.
os.environ["RAY_AUTH_MODE"] = "token"
os.environ["RAY_AUTH_TOKEN"] = "0123456789abcdef" * 4

import ray
from ray.cluster_utils import Cluster

from openenv_gym.fleet.roster import NAMESPACE

CPUS = 2
"""CPUs of each node but the head."""


@contextmanager
def cluster():
    """Start the nodes, and join them."""
    # A node that doesn't answer is given up after two seconds, not after fifteen.
    patience = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 4}
    head = {"num_cpus": 0, "include_dashboard": False, "_system_config": patience}
    nodes = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(2):
            nodes.add_node(num_cpus=CPUS)
        ray.init(nodes.address, namespace=NAMESPACE, logging_level="error", log_to_driver=False)
        yield nodes
    finally:
        ray.shutdown()
        nodes.shutdown()


def node_of(cluster, actor_name):
    """The cluster's node that an actor is on."""
    for actor in ray._private.state.actors().values():
        if actor["Name"] == actor_name and actor["State"] == "ALIVE":
            id = actor["Address"]["NodeID"]
            return next(node for node in cluster.list_all_nodes() if node.node_id == id)
    raise LookupError(actor_name)
