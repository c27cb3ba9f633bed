"""Latencies of a server's requests, by the names of vLLM's benchmark, and the cell's
requests.parquet.

Of a request that arrives: TTFT until its first token; then ITL from each token to the next, of
which TPOT is the request's mean; E2EL until its last. All count from when it was to arrive. A
window's are those of requests that were answered in it; ITL those of all tokens in it.

Of a job that trains when it is triggered, a request is a trigger and its one token the trained
model: E2EL is the delay from trigger to trained, and the others are none.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from workflow.collocation.record.parquet import arrow
from workflow.collocation.record.values import PERCENTILES, File, Window

FILE = "requests.parquet"


def of_window(requests: Mapping[str, np.ndarray], window: Window) -> dict[str, float]:
    """Percentiles (ms) of one member's requests in a window; {} where none was answered.

    requests: at_ns and tokens [n], and token_ns, the tokens' times, request after request.
    """
    at, times = requests["at_ns"], requests["token_ns"]
    ends = np.cumsum(requests["tokens"])
    first, last = times[ends - requests["tokens"]], times[ends - 1]
    inside = (last >= window.start_ns) & (last < window.end_ns)
    if not inside.any():
        return {}
    streamed = inside & (requests["tokens"] > 1)
    gaps, own = np.diff(times), np.ones(max(len(times) - 1, 0), bool)
    own[ends[:-1] - 1] = False  # from one request's last to another's first
    seen = own & (times[1:] >= window.start_ns) & (times[1:] < window.end_ns)
    found = {
        "ttft": (first - at)[streamed],
        "tpot": (last - first)[streamed] / (requests["tokens"][streamed] - 1),
        "itl": gaps[seen],
        "e2el": (last - at)[inside],
    }
    return {
        f"p{p}_{kind}_ms": float(np.percentile(ns, p)) / 1e6
        for kind, ns in found.items()
        for p in PERCENTILES
        if len(ns)
    }


def write(path: Path, members: Mapping[int, Mapping[str, np.ndarray]]) -> File:
    """Write requests.parquet: a row for each request's arrival (token 0) and each of its tokens."""
    rows = []
    for member, requests in sorted(members.items()):
        counts = requests["tokens"] + 1
        starts = np.cumsum(counts) - counts
        t = np.insert(requests["token_ns"], starts - np.arange(len(starts)), requests["at_ns"])
        request = np.repeat(np.arange(len(counts)), counts)
        rows.append((np.full(len(t), member), request, np.arange(len(t)) - starts[request], t))
    names = (("member", pa.int16()), ("request", pa.int32()), ("token", pa.int32()))
    schema = pa.schema([*names, pa.field("t_ns", pa.int64(), metadata={"unit": "ns"})])
    columns = [np.concatenate(column) for column in zip(*rows, strict=True)]
    content = [arrow(c, field.type) for c, field in zip(columns, schema, strict=True)]
    table = pa.Table.from_arrays(content, schema=schema)
    encoding = {"t_ns": "DELTA_BINARY_PACKED"}
    pq.write_table(table, path, compression="zstd", use_dictionary=False, column_encoding=encoding)
    return File.of(path)


def read(table: pa.Table) -> dict[int, dict[str, np.ndarray]]:
    """Member → its requests, as `of_window` takes them."""
    found = {}
    member, request, token, t = (table[name].to_numpy() for name in table.schema.names)
    for index in np.unique(member):
        own = member == index
        arrived = own & (token == 0)
        found[int(index)] = {
            "at_ns": t[arrived],
            "tokens": np.bincount(request[own & (token > 0)]),
            "token_ns": t[own & (token > 0)],
        }
    return found
