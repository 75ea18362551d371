"""`shardsrv inspect DIR`: what lies in a data directory, as text or as one JSON document. Changes nothing."""

from __future__ import annotations

import json
import sys
from typing import Any, Final, TextIO

from shardsrv.store.survey import Survey, Surveyor, is_data_directory

NOT_A_DATA_DIRECTORY: Final = 3


def inspect(path: str, as_json: bool, out: TextIO | None = None) -> int:
    """Print what is there. Returns 0, or 3 when ``path`` is no data directory."""
    out = out or sys.stdout
    if not is_data_directory(path):
        print(f"{path}: not a data directory", file=sys.stderr)
        return NOT_A_DATA_DIRECTORY
    survey = Surveyor(path, deep=False).run()
    if as_json:
        print(json.dumps(document(survey), indent=2), file=out)
    else:
        for line in lines(survey):
            print(line, file=out)
    return 0


def document(survey: Survey) -> dict[str, Any]:
    """The survey as plain values."""
    findings = [
        {"weight": finding.weight.name.lower(), "path": finding.path, "text": finding.text}
        for finding in survey.findings
    ]
    return {"directory": survey.root, "lock_held": survey.lock_held, **survey.facts, "findings": findings}


def lines(survey: Survey) -> list[str]:
    """The survey for people."""
    facts = survey.facts
    text = [f"directory  {survey.root}"]
    if survey.lock_held:
        text.append("in use     another process holds the lock; what follows may be half written")
    if "description" in facts:
        text.append(f"identity   {facts['description']}")
    for shard, boot in facts["boot"].items():
        mark = "clean stop" if boot["clean"] else "no clean stop"
        text.append(
            f"boot {shard:<5} {mark}, generation {boot['generation']}, {boot['entries']} logs, kernel {boot['boot_id']}"
        )
        text += [f"           fenced: {key}" for key in boot["fenced"]]
    metadata = facts["metadata"]
    text.append(f"metadata   superblock {slot_text(metadata['superblock'])}")
    if "snapshot" in metadata:
        snapshot = metadata["snapshot"]
        text.append(
            f"           snapshot op {snapshot['op']}, {snapshot['bytes']} bytes, checksum {snapshot['checksum']}"
        )
        text += [f"             section {number}: {section}" for number, section in enumerate(snapshot["sections"])]
    text.append(f"           log {log_text(metadata['log'])}")
    for shard, table in facts["groups"].items():
        text.append(f"groups {shard:<3} {table['records']} records")
    for partition in facts["partitions"]:
        stream, topic, number, revision = partition["key"]
        text.append(f"partition  {stream}/{topic}/{number} revision {revision}")
        if "superblock" in partition:
            text.append(f"           superblock {slot_text(partition['superblock'])}")
        text.append(f"           checkpoint {slot_text(partition['checkpoint'])}")
        text.append(f"           log {log_text(partition['log'])}")
    text += [f"{finding.weight.name.lower():<10} {finding.path}: {finding.text}" for finding in survey.findings]
    return text


def slot_text(facts: dict[str, Any]) -> str:
    """One line about a pair of slots."""
    if facts["outcome"] == "unreadable":
        return f"unreadable (slot {facts['slot']}: {facts['reason']})"
    if facts["outcome"] == "empty":
        return "empty"
    text = f"sequence {facts['sequence']} in slot {facts['slot']}"
    state = facts.get("state")
    if state:
        text += f", view {state['view']}, log view {state['log_view']}, commit at least {state['commit_max']}"
        text += f", checkpoint op {state['checkpoint_op']}, replica {state['replica_id']} of {state['replica_count']}"
    fields = facts.get("fields")
    if fields:
        text += f", op {fields['op']}, offsets {fields['first_offset']}..{fields['next_offset']}"
        text += f", {fields['messages']} messages"
    return text


def log_text(facts: dict[str, Any]) -> str:
    """One line about a log."""
    if not facts.get("segments"):
        return "empty"
    text = f"{len(facts['segments'])} segments, {facts['bytes']} bytes"
    if "last_op" in facts:
        text += f", ops {facts['first_op']}..{facts['last_op']}, next offset {facts['next_offset']}"
    if "synced_op" in facts:
        text += f", synced up to op {facts['synced_op']}"
    return text
