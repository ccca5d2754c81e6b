"""Files that are broken in every way that we could think of, made of one that is whole.

`kinds(whole, family)` gives (what was done, name of the file, bytes).
"""

from __future__ import annotations

import bz2
import copy
import gzip
import io
import json
import lzma
import random
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

Document = dict[str, Any]
Change = Callable[..., Any]
LARGE = (2**40, 2**70, -(2**70), 1e300)
VALUES: tuple[Any, ...] = (None, "x", "7", "", [], {}, [1], True, -1, 0.5, *LARGE, "NaN")
FIELDS = ("ph", "cat", "name", "pid", "tid", "ts", "dur", "args")
ARGS = ("stream", "device", "correlation", "External id", "Collective name", "Process Group Ranks")


def kinds(whole: bytes, family: str) -> Iterator[tuple[str, str, bytes]]:
    name = "rank0.json.gz" if family == "packing" else "rank0.json"
    if family in BYTES:
        yield from ((what, name, text) for what, text in BYTES[family](whole))
        return
    for what, change in CHANGES[family]():
        document = json.loads(whole)
        changed = change(document)
        written = json.dumps(document if changed is None else changed)
        yield what, name, written.encode("utf-8", "surrogatepass")


def _of_text(whole: bytes) -> Iterator[tuple[str, bytes]]:
    for part in range(1, 25):
        yield f"cut off after {part}/25", whole[: len(whole) * part // 25]
    for part in range(1, 13):
        at = len(whole) * part // 13
        yield f"a byte overwritten at {part}/13", whole[:at] + b"\0" + whole[at + 1 :]
        yield f"50 bytes lost at {part}/13", whole[:at] + whole[at + 50 :]
        yield f"nonsense put in at {part}/13", whole[:at] + b'}]"garbage' + whole[at:]
    first = whole.index(b'"traceEvents"')
    decoy = b'{"meta": {"traceEvents": [{"ph": "X", "cat": "kernel", "name": "decoy", "pid": 0, '
    decoy += b'"tid": 7, "ts": 5, "dur": 9, "args": {"stream": 7}}]}, '
    yield "a decoy before", decoy + whole[1:]
    yield "a decoy behind", whole.rstrip()[:-1] + b', "more": ' + decoy.rstrip(b", ") + b"}}"
    yield "twice, one after the other", whole + whole
    yield "twice, by lines", whole.replace(b"\n", b" ") + b"\n" + whole.replace(b"\n", b" ")
    yield "something behind", whole + b"\nKilled\n"
    yield "something before", b"WARNING: slow\n" + whole
    yield "inside of another member", b'{"trace": ' + whole + b"}"
    yield "inside of a list", b"[" + whole + b"]"
    yield "no events", whole[:first] + b'"events": []}'
    yield "events are no list", whole[:first] + b'"traceEvents": {}}'
    yield "events are empty", whole[:first] + b'"traceEvents": []}'
    yield "single quotes", whole.replace(b'"', b"'")
    yield "no commas between events", whole.replace(b"},\n  {", b"}\n  {")
    yield "commas at the end", whole.replace(b"}\n  ]", b"},\n  ]")
    yield "comments", whole.replace(b"},\n  {", b"}, // next\n  {")
    yield "line ends of Windows", whole.replace(b"\n", b"\r\n")
    for deep in (900, 5_000, 100_000):
        nested = b"[" * deep + b"]" * deep
        yield f"an arg {deep} deep", whole.replace(b'"stream": 7', b'"x": %s, "stream": 7' % nested)
        yield f"a member {deep} deep", b'{"x": %s, ' % nested + whole[1:]
        yield f"a member behind, {deep} deep", whole.rstrip()[:-1] + b', "x": %s}' % nested
        yield f"{deep} brackets", b"[" * deep
    yield "only blanks", b" \n" * 100
    yield "nothing", b""
    yield "null", b"null"
    yield "zeros", bytes(len(whole))


def _of_encoding(whole: bytes) -> Iterator[tuple[str, bytes]]:
    text = whole.decode().replace("gemm", "gémm")
    for name in ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-8-sig", "latin-1", "cp037"):
        yield f"as {name}", text.encode(name)


def _of_packing(whole: bytes) -> Iterator[tuple[str, bytes]]:
    packed = gzip.compress(whole, mtime=0)
    for part in range(1, 10):
        at = len(packed) * part // 10
        yield f"packed, cut off after {part}/10", packed[:at]
        yield (
            f"packed, a bit turned at {part}/10",
            packed[:at] + bytes([packed[at] ^ 4]) + packed[at + 1 :],
        )
    yield "packed twice", gzip.compress(packed)
    yield "not packed, but named so", whole
    yield "packed, something behind", packed + b"garbage"
    yield "packed, two members", packed + packed
    for where, at in (("before", 0), ("between", whole.index(b"},\n") + 2), ("behind", len(whole))):
        blanks = whole[:at] + b" " * (100 << 20) + whole[at:]
        yield f"100 MB of blanks {where}", gzip.compress(blanks, 1, mtime=0)
    yield "packed in two parts", gzip.compress(whole[:999]) + gzip.compress(whole[999:])
    yield "bzip2", bz2.compress(whole)
    yield "xz", lzma.compress(whole)
    yield "zstd", b"\x28\xb5\x2f\xfd" + whole[:99]
    yield "SQLite", b"SQLite format 3\0" + bytes(99)
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("rank0.json", whole)
    yield "zip", archive.getvalue()
    for mode in ("w", "w:gz"):
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode=mode) as file:
            member = tarfile.TarInfo("rank0.json")
            member.size = len(whole)
            file.addfile(member, io.BytesIO(whole))
        yield f"tar {mode}", archive.getvalue()


def _of_fields() -> Iterator[tuple[str, Change]]:
    for category in ("kernel", "cuda_runtime"):
        for field in FIELDS:
            for value in VALUES:
                yield f"{field} of a {category}: {value!r}", _set(category, (field,), value)
            yield f"no {field} of a {category}", _without(category, field)
    for field in ARGS:
        for value in VALUES:
            yield f"{field} of a kernel: {value!r}", _set("kernel", ("args", field), value)


def _of_events() -> Iterator[tuple[str, Change]]:
    present = ("kernel", "cuda_runtime", "cpu_op", "user_annotation")
    for category in present:
        yield f"no {category}", lambda d, c=category: _keep(d, lambda e: e.get("cat") != c)
        yield f"only {category}", lambda d, c=category: _keep(d, lambda e: e.get("cat") == c)
        yield f"{category} renamed", lambda d, c=category: _rename(d, c, "made_up")
        yield f"{category} in capitals", lambda d, c=category: _rename(d, c, c.upper())
        yield f"every {category} twice", lambda d, c=category: _twice(d, c)
        for phase in (None, "", "Q", "x"):
            yield f"{category} as {phase!r}", lambda d, c=category, p=phase: _phase(d, c, p)
    yield (
        "no kernels and no launches",
        lambda d: _keep(d, lambda e: e.get("cat") not in ("kernel", "cuda_runtime")),
    )
    yield "only what describes lanes", lambda d: _keep(d, lambda e: e.get("ph") != "X")
    for field in ("correlation", "External id"):
        yield f"{field} are all 1", lambda d, f=field: _number(d, f, lambda _: 1)
        yield f"{field} are all 0", lambda d, f=field: _number(d, f, lambda _: 0)
        yield f"{field} moved", lambda d, f=field: _number(d, f, lambda n: n - 40_600)
        yield f"{field} halved", lambda d, f=field: _number(d, f, lambda n: n // 2)
        yield f"{field} negative", lambda d, f=field: _number(d, f, lambda n: -n)
    for seed in range(4):
        yield f"shuffled, {seed}", lambda d, s=seed: random.Random(s).shuffle(d["traceEvents"])
    yield "every event twice", lambda d: d["traceEvents"].extend(copy.deepcopy(d["traceEvents"]))
    yield "in nanoseconds", lambda d: _scale(d, 1000)
    yield "in milliseconds", lambda d: _scale(d, 0.001)
    yield "an hour later from the middle on", lambda d: _later(d, 3_600_000_000)
    yield "a week later from the middle on", lambda d: _later(d, 604_800_000_000)
    yield "a century ago from the middle on", lambda d: _later(d, -3_155_760_000_000_000)
    yield "events in events", lambda d: d["traceEvents"].__setitem__(3, [d["traceEvents"][3]])
    junk: Any
    for junk in (None, 5, "x", [], {}, True):
        yield f"{junk!r} among events", lambda d, j=junk: d["traceEvents"].insert(4, j)


def _of_head() -> Iterator[tuple[str, Change]]:
    for value in (*VALUES, 10**9, 10**8):
        for field in ("rank", "world_size"):
            yield (
                f"{field}: {value!r}",
                lambda d, f=field, v=value: d["distributedInfo"].update({f: v}),
            )
        for member in ("distributedInfo", "deviceProperties", "baseTimeNanoseconds"):
            yield f"{member}: {value!r}", lambda d, m=member, v=value: d.update({m: v})


def _first(document: Document, category: str) -> Document:
    found = [one for one in document["traceEvents"] if one.get("cat") == category]
    return found[len(found) // 2]


def _set(category: str, path: tuple[str, ...], value: Any) -> Callable[[Document], None]:
    def change(document: Document) -> None:
        at = _first(document, category)
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = value

    return change


def _without(category: str, field: str) -> Callable[[Document], None]:
    return lambda document: _first(document, category).pop(field, None) and None


def _keep(document: Document, wanted: Callable[[Document], bool]) -> None:
    document["traceEvents"] = [one for one in document["traceEvents"] if wanted(one)]


def _rename(document: Document, category: str, other: str) -> None:
    for one in document["traceEvents"]:
        if one.get("cat") == category:
            one["cat"] = other


def _twice(document: Document, category: str) -> None:
    found = [one for one in document["traceEvents"] if one.get("cat") == category]
    document["traceEvents"].extend(copy.deepcopy(found))


def _phase(document: Document, category: str, phase: str | None) -> None:
    for one in document["traceEvents"]:
        if one.get("cat") == category:
            one.pop("ph")
            one |= {} if phase is None else {"ph": phase}


def _scale(document: Document, times: float) -> None:
    for one in document["traceEvents"]:
        one |= {field: one[field] * times for field in ("ts", "dur") if field in one}


def _number(document: Document, field: str, change: Callable[[int], int]) -> None:
    for one in document["traceEvents"]:
        if field in one.get("args", {}):
            one["args"][field] = change(one["args"][field])


def _later(document: Document, microseconds: int) -> None:
    events = document["traceEvents"]
    for one in events[len(events) // 2 :]:
        one["ts"] += microseconds


BYTES: dict[str, Callable[[bytes], Iterator[tuple[str, bytes]]]] = {
    "text": _of_text,
    "encoding": _of_encoding,
    "packing": _of_packing,
}
CHANGES: dict[str, Callable[[], Iterator[tuple[str, Change]]]] = {
    "fields": _of_fields,
    "events": _of_events,
    "head": _of_head,
}
FAMILIES = (*BYTES, *CHANGES)
