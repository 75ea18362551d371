"""Facts about the node that clients ask for: the roster of its cluster, and what it uses of the machine.

The shard processes are children of one supervisor: memory and processor time are summed over all of them.
"""

import os
import platform
import socket
import time
from typing import Any

import psutil

from shardsrv import __version__
from shardsrv.plane.metadata.queries import Totals
from shardsrv.roster import RosterNode
from shardsrv.shards import records
from shardsrv.shards.spawn import ShardContext
from shardsrv.wire.constants import NodeRole, NodeStatus
from shardsrv.wire.system import ClusterMetadataReply, ClusterNode, StatsReply

CLUSTER_NAME = "single-node"
NODE_NAME = "iggy-node"
"""What a node without a cluster calls itself (wire-protocol.md 6.1)."""

NO_LEADER = -1

SAMPLE_SECONDS = 1.0
"""Statistics of the machine are read at most this often: each reading costs milliseconds that the pump would miss."""


class NodeFacts:
    """Answers get_cluster_metadata and get_stats."""

    def __init__(self, data: str, addresses: dict[str, str], context: ShardContext) -> None:
        self._data = data
        cluster = context.config.cluster
        if cluster.enabled:
            self._name, self._own = cluster.name, context.node
            self.nodes = tuple(cluster_node(node, NO_LEADER, 1 << context.node) for node in cluster.roster)
        else:
            host, _, port = addresses.get("tcp", "127.0.0.1:0").rpartition(":")
            alone = ClusterNode(NODE_NAME, host.strip("[]"), int(port), 0, 0, 0, NodeRole.LEADER, NodeStatus.HEALTHY)
            self._name, self._own, self.nodes = CLUSTER_NAME, 0, (alone,)
        self.leader: int | None = None if cluster.enabled else 0
        """The node that leads the metadata; None while nobody is known to."""
        self._cluster = cluster
        self._roster = ClusterMetadataReply(self._name, self.nodes).encode()
        self._started = time.time_ns() // 1000
        self._sampled = 0.0
        self._sample: dict[str, Any] = {}
        self._supervisor = psutil.Process(os.getppid())

    def roster_told(self, head: memoryview, body: memoryview) -> None:
        """Shard 0 says who leads the metadata, and which nodes it reaches."""
        leader, reached = records.ROSTER_HEAD.unpack(head)
        reached |= 1 << self._own
        self.leader = None if leader == NO_LEADER else leader
        self.nodes = tuple(cluster_node(node, leader, reached) for node in self._cluster.roster)
        self._roster = ClusterMetadataReply(self._name, self.nodes).encode()

    def cluster_metadata(self) -> bytes:
        """Reply body of get_cluster_metadata."""
        return self._roster

    def stats(self, totals: Totals, clients: int) -> bytes:
        """Reply body of get_stats. ``totals`` are the sums over all partitions (`queries.totals`)."""
        sample = self._measure()
        now = time.time_ns() // 1000
        return StatsReply(
            process_id=self._supervisor.pid,
            cpu_usage=sample["cpu"],
            total_cpu_usage=sample["total_cpu"],
            memory_usage=sample["memory"],
            total_memory=sample["total_memory"],
            available_memory=sample["available_memory"],
            run_time=now - self._started,
            start_time=self._started,
            read_bytes=sample["read_bytes"],
            written_bytes=sample["written_bytes"],
            messages_size_bytes=totals.size,
            streams_count=totals.streams,
            topics_count=totals.topics,
            partitions_count=totals.partitions,
            segments_count=totals.segments,
            messages_count=totals.messages,
            clients_count=clients,
            consumer_groups_count=totals.consumer_groups,
            hostname=socket.gethostname(),
            os_name=platform.system(),
            os_version=platform.version(),
            kernel_version=platform.release(),
            iggy_server_version=__version__,
            iggy_server_semver=semantic_number(__version__),
            cache_metrics=(),
            threads_count=sample["threads"],
            free_disk_space=sample["free_disk"],
            total_disk_space=sample["total_disk"],
        ).encode()

    def _measure(self) -> dict[str, Any]:
        now = time.monotonic()
        if self._sample and now - self._sampled < SAMPLE_SECONDS:
            return self._sample
        memory = psutil.virtual_memory()
        disk = psutil.disk_usage(self._data)
        sample: dict[str, Any] = {
            "cpu": 0.0,
            "memory": 0,
            "threads": 0,
            "read_bytes": 0,
            "written_bytes": 0,
            "total_cpu": psutil.cpu_percent(),
            "total_memory": memory.total,
            "available_memory": memory.available,
            "free_disk": disk.free,
            "total_disk": disk.total,
        }
        for process in [self._supervisor, *self._supervisor.children()]:
            try:
                with process.oneshot():
                    sample["cpu"] += process.cpu_percent()
                    sample["memory"] += process.memory_info().rss
                    sample["threads"] += process.num_threads()
                    counters = process.io_counters()
                    sample["read_bytes"] += counters.read_bytes
                    sample["written_bytes"] += counters.write_bytes
            except psutil.NoSuchProcess:
                continue  # it ended while we looked; what it used is gone with it
        self._sample, self._sampled = sample, now
        return sample


def cluster_node(node: RosterNode, leader: int, reached: int) -> ClusterNode:
    """What clients are told of a node; ``leader``: a replica id or `NO_LEADER`; ``reached``: a bit for each node."""
    role = NodeRole.LEADER if node.replica == leader else NodeRole.FOLLOWER
    status = NodeStatus.HEALTHY if reached >> node.replica & 1 else NodeStatus.UNREACHABLE
    return ClusterNode(node.name, node.advertised, node.tcp, 0, 0, 0, role, status)


def semantic_number(version: str) -> int:
    """major * 1,000,000 + minor * 1,000 + patch (wire-messages.md 4)."""
    major, minor, patch = (int(part) for part in version.split(".")[:3])
    return major * 1_000_000 + minor * 1_000 + patch
