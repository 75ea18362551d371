"""Where configuration comes from: embedded defaults, a file, the environment, options of the command line.

Owns the merge: tables by key, arrays as a whole, later sources win. Invariants: the embedded ``config.toml`` is the
list of known keys; an unknown or removed key in a file is refused by name, an unknown ``IGGY_*`` variable is a
warning; every value remembers its origin, so that an error can say where to change it. Values are not interpreted
here.
Format: the names and typing rules of the protocol's reference server, so that its tools can drive this one.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from shardsrv.errors import ConfigurationError

Tree = dict[str, Any]
"""Nested tables as TOML has them; a path is the dotted names, an array index in it is ``*``."""

EMBEDDED = Path(__file__).with_name("config.toml")

OPTIONAL_KEYS = (
    *(f"websocket.{name}" for name in ("read_buffer_size", "write_buffer_size", "max_write_buffer_size")),
    *(f"websocket.{name}" for name in ("max_message_size", "max_frame_size")),
    *(f"http.jwt.trusted_issuers.*.{name}" for name in ("issuer", "audience", "jwks_url", "user_id")),
    *(f"cluster.nodes.*.{name}" for name in ("name", "ip", "advertised_address", "replica_id")),
    *(f"cluster.nodes.*.advertised_addresses.*.{name}" for name in ("client_cidr", "address")),
    *(f"cluster.nodes.*.ports.{name}" for name in ("tcp", "quic", "http", "websocket", "tcp_replica")),
)
"""Known keys without a default."""

_PER_TOPIC = "it is an option of each topic now; the default for new topics is {}"
REMOVED_KEYS = {
    "system.topic.max_size": _PER_TOPIC.format("topic.max_size"),
    "system.topic.message_expiry": _PER_TOPIC.format("topic.message_expiry"),
    "system.partition.enforce_fsync": _PER_TOPIC.format("topic.durability"),
    "system.partition.messages_required_to_save": _PER_TOPIC.format("topic.messages_required_to_save"),
    "system.partition.size_of_messages_required_to_save": _PER_TOPIC.format("topic.size_of_messages_required_to_save"),
    "system.segment.size": _PER_TOPIC.format("topic.segment_size"),
    "system.segment.preallocate": _PER_TOPIC.format("topic.preallocate_segments"),
    "system.message_deduplication": "partitions recognise repeated requests (partition.deduplication_window_ops)",
    "message_saver": "writing and syncing are set by partition.sync_interval and partition.sync_bytes",
    "extra": "nothing replaces it",
}
"""Keys of earlier servers that would be misunderstood if they were ignored: they refuse to start."""

OTHER_VARIABLES = (
    "IGGY_CONFIG_PATH",
    "IGGY_ENV_PATH",
    "IGGY_ROOT_USERNAME",
    "IGGY_ROOT_PASSWORD",
    "IGGY_USERNAME",
    "IGGY_PASSWORD",
    "IGGY_DISPLAY_CONFIG",
    "IGGY_SHARD_RUNTIME_CAPACITY",
    "IGGY_SHARD_EVENT_INTERVAL",
    "IGGY_CI_BUILD",
    "IGGY_CONNECTORS_CONFIG_PATH",
    "IGGY_MCP_CONFIG_PATH",
    "IGGY_TEST_CLUSTER_NODES",
    "IGGY_TEST_CLEANUP_DISABLED",
    "IGGY_TEST_VERBOSE",
)
"""Names that are no keys and no mistakes."""
OTHER_PREFIXES = ("IGGY_CONNECTORS_SINK_", "IGGY_CONNECTORS_SOURCE_")


@attrs.frozen
class Notice:
    """Something worth a log line that was met before logs were open: `level` is ``info`` or ``warning``."""

    level: str
    event: str
    fields: Mapping[str, object] = attrs.field(factory=dict)


@attrs.define
class Merged:
    """The tree of all sources, the origin of each path that a source has set, and what to tell the operator."""

    tree: Tree
    origins: dict[str, str] = attrs.field(factory=dict)
    notices: list[Notice] = attrs.field(factory=list)

    def put(self, path: str, value: object, origin: str) -> None:
        """Set one leaf."""
        table = self.tree
        *sections, name = path.split(".")
        for section in sections:
            table = table.setdefault(section, {})
        table[name] = value
        self.origins[path] = origin

    def origin(self, path: str) -> str:
        """Where the value of `path` was set, as text for an error."""
        return self.origins.get(path, "the embedded defaults")


def leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every (path, value) that is not a table; arrays of tables are walked with ``*`` for the index."""
    for name, value in tree.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping):
            yield from leaves(value, f"{path}.")
        elif isinstance(value, list) and value and all(isinstance(row, Mapping) for row in value):
            for row in value:
                yield from leaves(row, f"{path}.*.")
        else:
            yield path, value


def embedded() -> Tree:
    """The defaults that ship with the program."""
    return tomllib.loads(EMBEDDED.read_text(encoding="utf-8"))


def known_keys(defaults: Mapping[str, Any]) -> tuple[str, ...]:
    """Every path that a source may set."""
    return tuple(path for path, _ in leaves(defaults)) + OPTIONAL_KEYS


def merge(
    file: Path | None,
    environment: Mapping[str, str],
    options: Mapping[str, tuple[object, str]],
) -> Merged:
    """Defaults, then the file, then the environment, then options (path -> (value, name of the option)).

    Raises:
        ConfigurationError: the file cannot be read, or names an unknown or removed key.
    """
    merged = Merged(embedded())
    known = known_keys(merged.tree)
    if file is not None:
        _merge_file(merged, file, known)
    _merge_environment(merged, environment, known)
    for path, (value, option) in options.items():
        merged.put(path, value, f"option {option}")
    return merged


def find_file(given: str) -> Path:
    """The file at `given`; a relative path is looked for in the working directory and then in every parent.

    Raises:
        ConfigurationError: there is none. A file that was named and is missing is never replaced by defaults.
    """
    path = Path(given)
    candidates = [path] if path.is_absolute() else [folder / path for folder in (Path.cwd(), *Path.cwd().parents)]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise ConfigurationError(
        "--config", given, "there is no such file; correct the path, or leave it out for the defaults"
    )


def _merge_file(merged: Merged, file: Path, known: tuple[str, ...]) -> None:
    try:
        tree = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError("--config", str(file), f"the file cannot be read: {error}") from error
    origin = f"file {file}"
    for path, value in leaves(tree):
        _refuse_removed(path, value, origin)
        if path not in known and not (value == {} or value == []):
            raise ConfigurationError(path, value, f"this key is unknown{_nearest(path, known)} ({origin})")
    _overlay(merged, tree, "", origin)


def _overlay(merged: Merged, tree: Mapping[str, Any], prefix: str, origin: str) -> None:
    for name, value in tree.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping):
            _overlay(merged, value, f"{path}.", origin)
        elif isinstance(_get(merged.tree, path), Mapping):
            raise ConfigurationError(path, value, f"this is a section with keys of its own, not a value ({origin})")
        else:
            merged.put(path, value, origin)


def _get(tree: Tree, path: str) -> Any:
    found: Any = tree
    for name in path.split("."):
        if not isinstance(found, Mapping):
            return None
        found = found.get(name)
    return found


def _refuse_removed(path: str, value: object, origin: str) -> None:
    for removed, instead in REMOVED_KEYS.items():
        if path == removed or path.startswith(f"{removed}."):
            raise ConfigurationError(
                path, value, f"this key no longer exists: {instead}; remove it to start ({origin})"
            )


def _nearest(word: str, known: tuple[str, ...]) -> str:
    found = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"; did you mean {found[0]}?" if found else ""


# --- environment -----------------------------------------------------------------------------------------------------


def variable_name(path: str) -> str:
    """The environment variable of a path: ``tcp.address`` is ``IGGY_TCP_ADDRESS``."""
    return "IGGY_" + path.replace(".", "_").upper()


def typed(text: str) -> object:
    """The value that the text of a variable stands for: array, bool, integer, float, else the text itself."""
    stripped = text.strip()
    if stripped.startswith("[") and stripped.endswith("]"):
        items = (item.strip() for item in stripped[1:-1].split(","))
        return [item[1:-1] if len(item) > 1 and item[0] == item[-1] in "\"'" else typed(item) for item in items if item]
    if stripped.lower() in ("true", "false"):
        return stripped.lower() == "true"
    if re.fullmatch(r"[+-]?\d+", stripped):
        return int(stripped)
    if re.fullmatch(r"[+-]?(\d+\.\d*|\.\d+)([eE][+-]?\d+)?", stripped):
        return float(stripped)
    return text


def _merge_environment(merged: Merged, environment: Mapping[str, str], known: tuple[str, ...]) -> None:
    names = {variable_name(path): path for path in known if "*" not in path}
    rows = [(re.compile(variable_name(path).replace("*", r"(\d{1,3})")), path) for path in known if "*" in path]
    indexed: dict[str, dict[tuple[int, ...], object]] = {}
    for name in sorted(name for name in environment if name.startswith("IGGY_") and environment[name] != ""):
        value, origin = typed(environment[name]), f"environment variable {name}"
        for removed in REMOVED_KEYS:
            if name == variable_name(removed) or name.startswith(variable_name(removed) + "_"):
                _refuse_removed(removed, value, origin)
        if name in names:
            merged.put(names[name], value, origin)
        elif not _indexed(name, value, rows, indexed) and not _expected(name):
            near = difflib.get_close_matches(name, [*names, *OTHER_VARIABLES], n=3, cutoff=0.7)
            merged.notices.append(
                Notice(
                    "warning", f"Unknown environment variable '{name}' will be ignored", {"similar": ", ".join(near)}
                )
            )
    for path, values in indexed.items():
        _put_rows(merged, path, values)


def _expected(name: str) -> bool:
    return name in OTHER_VARIABLES or name.startswith(OTHER_PREFIXES)


def _indexed(
    name: str,
    value: object,
    rows: list[tuple[re.Pattern[str], str]],
    indexed: dict[str, dict[tuple[int, ...], object]],
) -> bool:
    for pattern, path in rows:
        match = pattern.fullmatch(name)
        if match is not None and int(match[1]) < 256:
            indexed.setdefault(path, {})[tuple(int(index) for index in match.groups())] = value
            return True
    return False


def _put_rows(merged: Merged, path: str, values: dict[tuple[int, ...], object]) -> None:
    """Build arrays of tables; an index from the environment replaces the whole array, holes become empty tables."""
    for indices, value in sorted(values.items()):
        pieces = path.split(".*.")
        rows = _rows(merged, pieces[0])
        for index, piece in zip(indices, pieces[1:], strict=True):
            while len(rows) <= index:
                rows.append({})
            *sections, last = piece.split(".")
            table = rows[index]
            for section in sections:
                table = table.setdefault(section, {})
            if piece is pieces[-1]:
                table[last] = value
            else:
                rows = table.setdefault(last, [])


def _rows(merged: Merged, path: str) -> list[Tree]:
    if merged.origin(path) != "the environment":
        merged.put(path, [], "the environment")
    rows: list[Tree] = _get(merged.tree, path)
    return rows


def dot_env(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables of the file named by IGGY_ENV_PATH, or of ``.env`` in the working directory or a parent.

    Lines are ``NAME=value``, optionally quoted or after ``export``; others are skipped, a missing file is no error.
    """
    given = environment.get("IGGY_ENV_PATH", "")
    folders = (Path.cwd(), *Path.cwd().parents)
    for candidate in [Path(given)] if given else [folder / ".env" for folder in folders]:
        try:
            text = candidate.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        lines = re.findall(r"^\s*(?:export\s+)?([A-Za-z_]\w*)\s*=\s*(.*?)\s*$", text, re.MULTILINE)
        return {name: value.strip("\"'") for name, value in lines}
    return {}
