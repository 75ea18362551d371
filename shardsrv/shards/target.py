"""A partition as a request named it: resolved once, then found again by the bytes that named it. Compiled, since
every send looks here."""

from typing import Any

from shardsrv.plane.metadata.state import PartitionIdentity


class Target:
    """A resolved partition, good while the shard's metadata stands at op ``epoch``.

    ``group`` is its consensus group, ``owner`` the shard that owns it; the durabilities are those of messages and of
    offsets, with the floor of the configuration. ``holder`` is the `PartitionGroup` when it is of this shard and was
    looked up before.
    """

    __slots__ = ("durability", "epoch", "group", "holder", "identity", "offset_durability", "owner")

    def __init__(
        self, identity: PartitionIdentity, group: int, owner: int, epoch: int, durability: int, offset_durability: int
    ) -> None:
        self.identity = identity
        self.group = group
        self.owner = owner
        self.epoch = epoch
        self.durability = durability
        self.offset_durability = offset_durability
        self.holder: Any = None
