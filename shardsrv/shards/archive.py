"""The archive of facts about the node (get_snapshot, code 11): a ZIP file with one text for each kind that is asked
for.

It is made in a thread: it reads files and asks the operating system. It never holds a secret: the configuration in it
is the written one, without them.
"""

import io
import os
import platform
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil

from shardsrv.shards.zip_methods import pack_zip
from shardsrv.wire.constants import SnapshotCompression, SnapshotKind

METHODS = {
    SnapshotCompression.STORED: zipfile.ZIP_STORED,
    SnapshotCompression.DEFLATED: zipfile.ZIP_DEFLATED,
    SnapshotCompression.BZIP2: zipfile.ZIP_BZIP2,
    SnapshotCompression.LZMA: zipfile.ZIP_LZMA,
}
"""What the standard library writes; Zstandard and XZ are written by `pack_zip`."""

FILES_MAX = 20_000
"""Lines of the overview of the file system: it must fit into one reply."""

LOG_BYTES_MAX = 8 * 1024 * 1024
"""Bytes of the newest log file, from its end."""


class Archive:
    """Makes archives for one data directory."""

    def __init__(self, data: Path, runtime: Path, logs: Path) -> None:
        self._data = data
        self._runtime = runtime
        self._logs = logs
        self._makers: dict[SnapshotKind, tuple[str, Callable[[], str]]] = {
            SnapshotKind.FILESYSTEM_OVERVIEW: ("filesystem_overview.txt", self._filesystem),
            SnapshotKind.PROCESS_LIST: ("process_list.txt", self._processes),
            SnapshotKind.RESOURCE_USAGE: ("resource_usage.txt", self._resources),
            SnapshotKind.TEST: ("test.txt", lambda: "test\n"),
            SnapshotKind.SERVER_LOGS: ("server_logs.txt", self._server_log),
            SnapshotKind.SERVER_CONFIG: ("server_config.toml", self._configuration),
        }

    def make(self, compression: SnapshotCompression, kinds: Iterable[SnapshotKind]) -> bytes:
        """The file. Blocks: call it in a thread."""
        wanted = dict.fromkeys(kinds)
        chosen = list(self._makers) if SnapshotKind.ALL in wanted else [kind for kind in self._makers if kind in wanted]
        files = [(self._makers[kind][0], self._makers[kind][1]().encode()) for kind in chosen]
        if compression not in METHODS:
            return pack_zip(files, compression)
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", METHODS[compression]) as archive:
            for name, data in files:
                archive.writestr(name, data)
        return out.getvalue()

    def _filesystem(self) -> str:
        lines = []
        for directory, _, names in sorted(os.walk(self._data)):
            for name in sorted(names):
                path = os.path.join(directory, name)
                try:
                    lines.append(f"{os.stat(path).st_size:>15} {os.path.relpath(path, self._data)}")
                except FileNotFoundError:
                    continue  # deleted while we looked
                if len(lines) == FILES_MAX:
                    return "\n".join([*lines, "..."]) + "\n"
        return "\n".join(lines) + "\n"

    def _processes(self) -> str:
        lines = ["pid ppid threads resident name"]
        for process in [psutil.Process(os.getppid()), *psutil.Process(os.getppid()).children()]:
            try:
                with process.oneshot():
                    lines.append(
                        f"{process.pid} {process.ppid()} {process.num_threads()} "
                        f"{process.memory_info().rss} {process.name()}"
                    )
            except psutil.NoSuchProcess:
                continue  # it ended while we looked
        return "\n".join(lines) + "\n"

    def _resources(self) -> str:
        memory, disk = psutil.virtual_memory(), psutil.disk_usage(str(self._data))
        return (
            f"system: {platform.platform()}\ncores: {os.cpu_count()}\nload: {os.getloadavg()}\n"
            f"memory total: {memory.total}\nmemory available: {memory.available}\n"
            f"disk total: {disk.total}\ndisk free: {disk.free}\n"
        )

    def _server_log(self) -> str:
        files = sorted((path for path in self._logs.glob("*") if path.is_file()), key=lambda path: path.stat().st_mtime)
        if not files:
            return "no log file\n"
        with files[-1].open("rb") as log:
            log.seek(max(0, files[-1].stat().st_size - LOG_BYTES_MAX))
            return log.read().decode(errors="replace")

    def _configuration(self) -> str:
        path = self._runtime / "current_config.toml"
        return path.read_text() if path.exists() else "not written yet\n"
