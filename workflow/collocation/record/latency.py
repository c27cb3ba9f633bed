"""Latencies of a server's requests, by the names of vLLM's benchmark, and the cell's
requests.parquet.

Of a request: TTFT until its first token; then ITL from each token to the next, of which TPOT is the
request's mean; E2EL until its last. TTFT and E2EL count from when it was to arrive.

A window's are those of all requests that were to arrive in it, answered in it or later. One that is
still not answered took longer than any that is, so of TTFT and E2EL a percentile that falls among
those is left out. TPOT is of the answered, ITL of all tokens in the window.

Of a job that trains when it is triggered, a request is a trigger and its one token the trained
model: E2EL is the delay from trigger to trained, of those trained for in the window.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from workflow.collocation.record.parquet import numeric_column
from workflow.collocation.record.values import PERCENTILES, FileDigest, Window

REQUESTS_FILE = "requests.parquet"
VALUES_ABOVE = 2  # so the 99th percentile needs 200 values, the 95th 40


def window_latencies(
    requests: Mapping[str, np.ndarray], window: Window, slo_ms: Mapping[str, float] | None
) -> dict[str, float]:
    """Percentiles (ms) of one member's requests in a window, `request_goodput` (answered within
    the objective, per second) and `answered_share`; {} where none was to arrive.

    requests: at_ns, wanted and tokens [n], and token_ns, the tokens' times, request after request;
    who has as many tokens as were wanted is answered. slo_ms: the most of `ttft` and of `tpot`;
    None of a job that is triggered, which has delays alone.
    """
    times, counts, at = requests["token_ns"], requests["tokens"], requests["at_ns"]
    arrived = (at >= window.start_ns) & (at < window.end_ns)
    if slo_ms is None:
        inside = (times >= window.start_ns) & (times < window.end_ns)
        found = _percentiles({"e2el": (times - at[counts > 0])[inside]}, tail=0)
        if arrived.any():
            found["answered_share"] = float(inside.sum() / arrived.sum())
        return found
    if not arrived.any():
        return {}
    begun, answered, ends = counts > 0, counts == requests["wanted"], np.cumsum(counts)
    ttft, e2el, tpot = np.full((3, len(at)), np.inf)
    ttft[begun] = times[(ends - counts)[begun]] - at[begun]
    e2el[answered] = times[ends[answered] - 1] - at[answered]
    tpot[answered] = (e2el[answered] - ttft[answered]) / (counts[answered] - 1)
    of = np.repeat(np.arange(len(at)), counts)
    seen = (of[1:] == of[:-1]) & (times[1:] >= window.start_ns) & (times[1:] < window.end_ns)
    kinds = {"ttft": ttft[arrived], "tpot": tpot[arrived & answered]}
    kinds |= {"itl": np.diff(times)[seen], "e2el": e2el[arrived]}
    good = arrived & (ttft <= slo_ms["ttft"] * 1e6) & (tpot <= slo_ms["tpot"] * 1e6)
    return _percentiles(kinds, VALUES_ABOVE) | {
        "request_goodput": float(good.sum() / window.seconds),
        "answered_share": float(answered[arrived].mean()),
    }


def _percentiles(kinds: Mapping[str, np.ndarray], tail: float) -> dict[str, float]:
    """Those (ms) that have so many values above them, and do not fall among what never ended."""
    with np.errstate(invalid="ignore"):
        found = {
            f"p{p}_{kind}_ms": float(np.percentile(ns, p)) / 1e6
            for kind, ns in kinds.items()
            for p in PERCENTILES
            if len(ns) and len(ns) * (100 - p) >= 100 * tail
        }
    return {name: ms for name, ms in found.items() if np.isfinite(ms)}


def write_requests(path: Path, members: Mapping[int, Mapping[str, np.ndarray]]) -> FileDigest:
    """Write requests.parquet: a row for each request's arrival (token 0) and each of its tokens;
    `wanted` is how many it is to have.
    """
    rows = []
    for member, requests in sorted(members.items()):
        counts = requests["tokens"] + 1
        starts = np.cumsum(counts) - counts
        t = np.insert(requests["token_ns"], starts - np.arange(len(starts)), requests["at_ns"])
        request = np.repeat(np.arange(len(counts)), counts)
        token, wanted = np.arange(len(t)) - starts[request], requests["wanted"][request]
        rows.append((np.full(len(t), member), request, wanted, token, t))
    names = (("member", pa.int16()), ("request", pa.int32()), ("wanted", pa.int32()))
    names += (("token", pa.int32()),)
    schema = pa.schema([*names, pa.field("t_ns", pa.int64(), metadata={"unit": "ns"})])
    columns = [np.concatenate(column) for column in zip(*rows, strict=True)]
    content = [numeric_column(c, field.type) for c, field in zip(columns, schema, strict=True)]
    table = pa.Table.from_arrays(content, schema=schema)
    encoding = {"t_ns": "DELTA_BINARY_PACKED"}
    pq.write_table(table, path, compression="zstd", use_dictionary=False, column_encoding=encoding)
    return FileDigest.of(path)


def read_requests(table: pa.Table) -> dict[int, dict[str, np.ndarray]]:
    """Member → its requests, as `of_window` takes them."""
    found = {}
    member, request, wanted, token, t = (table[name].to_numpy() for name in table.schema.names)
    for index in np.unique(member):
        own = member == index
        arrived = own & (token == 0)
        found[int(index)] = {
            "at_ns": t[arrived],
            "wanted": wanted[arrived],
            "tokens": np.bincount(request[own & (token > 0)], minlength=arrived.sum()),
            "token_ns": t[own & (token > 0)],
        }
    return found
