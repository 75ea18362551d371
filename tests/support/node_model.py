"""What a node should hold: plain dictionaries with the protocol's rules of streams, topics, partitions, groups,
offsets, users and tokens. One client is modelled: the root user, on one connection at a time.
"""

from typing import Any

from tests.support.frames import BY_OFFSET, FIRST, LAST, NEXT

Outcome = int | list[bytes] | None
"""A code (0: done), the payloads of a poll, or None: a member is told to ask for its assignment again."""


class Model:
    """What the node should hold. Every command returns its outcome and changes the model when it is done."""

    def __init__(self) -> None:
        self.streams: dict[int, dict[str, Any]] = {}
        self.users: dict[int, dict[str, Any]] = {0: {"name": "iggy", "password": "iggy", "tokens": set()}}

    @staticmethod
    def find(among: dict[int, dict[str, Any]], key: int | str) -> tuple[int, dict[str, Any]] | None:
        return next(((number, record) for number, record in among.items() if key in (number, record["name"])), None)

    @staticmethod
    def free(among: dict[int, Any]) -> int:
        return next(number for number in range(1_000_000) if number not in among)

    def topic(self, stream: int | str, topic: int | str) -> tuple[int, dict[str, Any]]:
        """(code, topic)."""
        found = self.find(self.streams, stream)
        if found is None:
            return 1009, {}
        inner = self.find(found[1]["topics"], topic)
        return (2010, {}) if inner is None else (0, inner[1])

    def create_stream(self, name: str) -> int:
        if self.find(self.streams, name) is not None and any(one["name"] == name for one in self.streams.values()):
            return 1012
        self.streams[self.free(self.streams)] = {"name": name, "topics": {}}
        return 0

    def update_stream(self, stream: int | str, name: str) -> int:
        found = self.find(self.streams, stream)
        if found is None:
            return 1009
        if any(one["name"] == name and one is not found[1] for one in self.streams.values()):
            return 1012
        found[1]["name"] = name
        return 0

    def delete_stream(self, stream: int | str) -> int:
        found = self.find(self.streams, stream)
        if found is None:
            return 1009
        del self.streams[found[0]]
        return 0

    def purge_stream(self, stream: int | str) -> int:
        found = self.find(self.streams, stream)
        if found is None:
            return 1009
        for topic in found[1]["topics"].values():
            self._purge(topic)
        return 0

    def create_topic(self, stream: int | str, name: str, partitions: int) -> int:
        found = self.find(self.streams, stream)
        if partitions > 1000:
            return 2015
        if found is None:
            return 1009
        topics = found[1]["topics"]
        if any(one["name"] == name for one in topics.values()):
            return 2013
        topics[self.free(topics)] = {
            "name": name, "partitions": [self._partition() for _ in range(partitions)], "groups": {}, "next": 0,
        }  # fmt: skip
        return 0

    def update_topic(self, stream: int | str, topic: int | str, name: str) -> int:
        code, found = self.topic(stream, topic)
        if code:
            return code
        (_, owner) = self.find(self.streams, stream) or (0, {"topics": {}})
        if any(one["name"] == name and one is not found for one in owner["topics"].values()):
            return 2013
        found["name"] = name
        return 0

    def delete_topic(self, stream: int | str, topic: int | str) -> int:
        found = self.find(self.streams, stream)
        if found is None:
            return 1009
        inner = self.find(found[1]["topics"], topic)
        if inner is None:
            return 2010
        del found[1]["topics"][inner[0]]
        return 0

    def purge_topic(self, stream: int | str, topic: int | str) -> int:
        code, found = self.topic(stream, topic)
        if not code:
            self._purge(found)
        return code

    def create_partitions(self, stream: int | str, topic: int | str, count: int) -> int:
        if not 1 <= count <= 1000:
            return 2015
        code, found = self.topic(stream, topic)
        if not code:
            found["partitions"] += [self._partition() for _ in range(count)]
            self._assign_all(found)
        return code

    def delete_partitions(self, stream: int | str, topic: int | str, count: int) -> int:
        if not 1 <= count <= 1000:
            return 2015
        code, found = self.topic(stream, topic)
        if code:
            return code
        if count > len(found["partitions"]):
            return 2019
        del found["partitions"][len(found["partitions"]) - count :]
        self._assign_all(found)
        return 0

    def send(self, stream: int | str, topic: int | str, partition: int, payloads: list[bytes]) -> int:
        code, found = self.topic(stream, topic)
        if code or partition >= len(found["partitions"]):
            return 20
        found["partitions"][partition]["messages"] += payloads
        return 0

    def store(self, stream: int | str, topic: int | str, partition: int, offset: int, consumer: int | str) -> int:
        code, found = self.topic(stream, topic)
        if code or partition >= len(found["partitions"]):
            return 20
        record = found["partitions"][partition]
        if offset >= len(record["messages"]):
            return 4100
        record["offsets"][consumer] = offset
        return 0

    def poll(
        self, stream: int | str, topic: int | str, partition: int, consumer: int | str, strategy: int, value: int,
        count: int, auto: bool,
    ) -> Outcome:  # fmt: skip
        code, found = self.topic(stream, topic)
        if code:
            return code
        if partition >= len(found["partitions"]):
            return 3007
        record = found["partitions"][partition]
        return self._poll(record["messages"], record["offsets"], consumer, strategy, value, count, auto)

    @staticmethod
    def _poll(
        messages: list[bytes],
        offsets: dict[Any, int],
        key: int | str,
        strategy: int,
        value: int,
        count: int,
        auto: bool,
    ) -> list[bytes]:
        first = {
            FIRST: 0,
            LAST: max(0, len(messages) - count),
            BY_OFFSET: value,
            NEXT: offsets[key] + 1 if key in offsets else 0,
        }[strategy]
        found = messages[first : first + count]
        if auto and found:
            # An automatic commit never lowers an offset.
            offsets[key] = max(offsets.get(key, 0), first + len(found) - 1)
        return found

    def stored(self, stream: int | str, topic: int | str, partition: int, consumer: int | str) -> Outcome:
        """The code 3007, or the stored offset as a list of its number; an empty list when nothing is stored."""
        code, found = self.topic(stream, topic)
        if code:
            return []
        if partition >= len(found["partitions"]):
            return 3007
        at = found["partitions"][partition]["offsets"].get(consumer)
        return [] if at is None else [b"%d" % at]

    def forget(self, stream: int | str, topic: int | str, partition: int, consumer: int | str) -> int:
        code, found = self.topic(stream, topic)
        if code or partition >= len(found["partitions"]):
            return 20
        if found["partitions"][partition]["offsets"].pop(consumer, None) is None:
            return 3021
        return 0

    def create_group(self, stream: int | str, topic: int | str, name: str) -> int:
        code, found = self.topic(stream, topic)
        if code:
            return code
        if any(group["name"] == name for group in found["groups"].values()):
            return 5004
        found["groups"][found["next"]] = {"name": name, "member": False, "offsets": {}}
        found["next"] += 1
        return 0

    def _group(self, stream: int | str, topic: int | str, group: int | str) -> tuple[int, dict[str, Any], Any]:
        code, found = self.topic(stream, topic)
        if code:
            return code, {}, None
        inner = self.find(found["groups"], group)
        return (5000, {}, None) if inner is None else (0, found, inner)

    def delete_group(self, stream: int | str, topic: int | str, group: int | str) -> int:
        code, found, inner = self._group(stream, topic, group)
        if not code:
            del found["groups"][inner[0]]
        return code

    def join_group(self, stream: int | str, topic: int | str, group: int | str) -> int:
        code, _, inner = self._group(stream, topic, group)
        if not code:
            inner[1]["member"] = True
        return code

    def leave_group(self, stream: int | str, topic: int | str, group: int | str) -> int:
        code, _, inner = self._group(stream, topic, group)
        if code:
            return code
        if not inner[1]["member"]:
            return 5006
        inner[1]["member"] = False
        return 0

    def store_group(self, stream: int | str, topic: int | str, group: int | str, partition: int, offset: int) -> int:
        code, found, inner = self._group(stream, topic, group)
        if code or partition >= len(found["partitions"]) or not inner[1]["member"]:
            return 20
        if offset >= len(found["partitions"][partition]["messages"]):
            return 4100
        inner[1]["offsets"][partition] = offset
        return 0

    def poll_group(
        self, stream: int | str, topic: int | str, group: int | str, partition: int, count: int, auto: bool
    ) -> Outcome:
        code, found, inner = self._group(stream, topic, group)
        if code or partition >= len(found["partitions"]) or not inner[1]["member"]:
            return None
        messages = found["partitions"][partition]["messages"]
        return self._poll(messages, inner[1]["offsets"], partition, NEXT, 0, count, auto)

    def create_user(self, name: str, password: str) -> int:
        if not 3 <= len(name.encode()) <= 50:
            return 43
        if any(user["name"] == name for user in self.users.values()):
            return 46
        self.users[self.free(self.users)] = {"name": name, "password": password, "tokens": set()}
        return 0

    def delete_user(self, user: int | str) -> int:
        found = self.find(self.users, user)
        if found is None:
            return 20
        if found[0] == 0:
            return 48
        del self.users[found[0]]
        return 0

    def change_password(self, user: int | str, current: str, new: str) -> int:
        found = self.find(self.users, user)
        if found is None:
            return 20
        if found[1]["password"] != current:
            return 42
        found[1]["password"] = new
        return 0

    def create_token(self, name: str) -> int:
        if name in self.users[0]["tokens"]:
            return 51
        self.users[0]["tokens"].add(name)
        return 0

    def delete_token(self, name: str) -> int:
        if name not in self.users[0]["tokens"]:
            return 20
        self.users[0]["tokens"].discard(name)
        return 0

    def lost(self) -> None:
        """The connection ended: its memberships end."""
        for stream in self.streams.values():
            for topic in stream["topics"].values():
                for group in topic["groups"].values():
                    group["member"] = False

    @staticmethod
    def _partition() -> dict[str, Any]:
        return {"messages": [], "offsets": {}}

    def _purge(self, topic: dict[str, Any]) -> None:
        for partition in topic["partitions"]:
            partition["messages"], partition["offsets"] = [], {}
        for group in topic["groups"].values():
            group["offsets"] = {}

    def _assign_all(self, topic: dict[str, Any]) -> None:
        for group in topic["groups"].values():
            group["offsets"] = {
                number: at for number, at in group["offsets"].items() if number < len(topic["partitions"])
            }
