"""Latencies of a server's requests, as vLLM's benchmark defines them, and requests.parquet.

TTFT is the time from a request's planned arrival to its first token, E2EL to its last. ITL is the
time from a token to the next, and TPOT the mean ITL of a request.

TTFT and E2EL of a window are of the requests that arrive in it, even if the answer comes later.
Requests without an answer count as slower than all others, and a percentile that falls among them
is left out. TPOT is of the answered requests, ITL of all tokens in the window.

A job that trains at triggers has a request for each trigger, with one token: the trained model. Its
E2EL is the delay from a trigger to the end of its training, if that lies in the window.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from workflow.collocation.record.parquet import numeric_column
from workflow.collocation.record.values import PERCENTILES, FileDigest, Window

REQUESTS_FILE = "requests.parquet"
VALUES_ABOVE = 2  # that a percentile needs: the 99th is of at least 200 values, the 95th of 40


def window_latencies(
    requests: Mapping[str, np.ndarray], window: Window, slo_ms: Mapping[str, float] | None
) -> dict[str, float]:
    """Percentiles (ms) of one member's latencies in a window, and how many requests were answered.

    requests: `at_ns` (arrivals), `wanted` and `tokens` (numbers of tokens) [n], and `token_ns`, the
    times of all tokens, request after request. A request with as many tokens as wanted is answered.
    slo_ms: the longest `ttft` and `tpot` of a good answer; None for a job with triggers.

    Returns also `request_goodput` (good answers per second) and `answered_share`; {} if no request
    arrived in the window.
    """
    token_ns, counts, at_ns = requests["token_ns"], requests["tokens"], requests["at_ns"]
    arrived = (at_ns >= window.start_ns) & (at_ns < window.end_ns)
    token_inside = (token_ns >= window.start_ns) & (token_ns < window.end_ns)
    if slo_ms is None:
        latencies = _percentiles({"e2el": (token_ns - at_ns[counts > 0])[token_inside]}, 0)
        if arrived.any():
            latencies["answered_share"] = float(token_inside.sum() / arrived.sum())
        return latencies
    if not arrived.any():
        return {}
    begun, answered, ends = counts > 0, counts == requests["wanted"], np.cumsum(counts)
    ttft, e2el, tpot = np.full((3, len(at_ns)), np.inf)
    ttft[begun] = token_ns[(ends - counts)[begun]] - at_ns[begun]
    e2el[answered] = token_ns[ends[answered] - 1] - at_ns[answered]
    tpot[answered] = (e2el[answered] - ttft[answered]) / (counts[answered] - 1)
    request = np.repeat(np.arange(len(at_ns)), counts)  # of each token
    follows_token = (request[1:] == request[:-1]) & token_inside[1:]
    latencies = {
        "ttft": ttft[arrived],
        "tpot": tpot[arrived & answered],
        "itl": np.diff(token_ns)[follows_token],
        "e2el": e2el[arrived],
    }
    good = arrived & (ttft <= slo_ms["ttft"] * 1e6) & (tpot <= slo_ms["tpot"] * 1e6)
    return _percentiles(latencies, VALUES_ABOVE) | {
        "request_goodput": float(good.sum() / window.seconds),
        "answered_share": float(answered[arrived].mean()),
    }


def _percentiles(latencies: Mapping[str, np.ndarray], values_above: float) -> dict[str, float]:
    """Percentiles (ms) of latencies in ns that have `values_above` values above them.

    Infinite ones, of requests without an answer, are left out.
    """
    percentiles = {}
    for kind, values in latencies.items():
        for p in PERCENTILES:
            if len(values) and len(values) * (100 - p) >= 100 * values_above:
                with np.errstate(invalid="ignore"):
                    ms = float(np.percentile(values, p)) / 1e6
                if np.isfinite(ms):
                    percentiles[f"p{p}_{kind}_ms"] = ms
    return percentiles


def write_requests(path: Path, members: Mapping[int, Mapping[str, np.ndarray]]) -> FileDigest:
    """Write requests.parquet, with a row for each request's arrival and each of its tokens.

    members: member → its requests, as `window_latencies` takes them. The row of the arrival has
    token 0.
    """
    rows = []
    for member, requests in sorted(members.items()):
        counts = requests["tokens"] + 1
        starts = np.cumsum(counts) - counts
        at_token = starts - np.arange(len(starts))
        t_ns = np.insert(requests["token_ns"], at_token, requests["at_ns"])
        request = np.repeat(np.arange(len(counts)), counts)
        token = np.arange(len(t_ns)) - starts[request]
        wanted = requests["wanted"][request]
        rows.append((np.full(len(t_ns), member), request, wanted, token, t_ns))
    schema = pa.schema(
        [
            ("member", pa.int16()),
            ("request", pa.int32()),
            ("wanted", pa.int32()),
            ("token", pa.int32()),
            pa.field("t_ns", pa.int64(), metadata={"unit": "ns"}),
        ]
    )
    columns = [np.concatenate(column) for column in zip(*rows, strict=True)]
    arrays = [numeric_column(c, field.type) for c, field in zip(columns, schema, strict=True)]
    table = pa.Table.from_arrays(arrays, schema=schema)
    encoding = {"t_ns": "DELTA_BINARY_PACKED"}
    pq.write_table(table, path, compression="zstd", use_dictionary=False, column_encoding=encoding)
    return FileDigest.of(path)


def read_requests(table: pa.Table) -> dict[int, dict[str, np.ndarray]]:
    """Member → its requests, as `window_latencies` takes them, from rows of requests.parquet."""
    member, request, wanted, token, t_ns = (table[name].to_numpy() for name in table.schema.names)
    members = {}
    for index in np.unique(member):
        is_arrival = (member == index) & (token == 0)
        is_token = (member == index) & (token > 0)
        members[int(index)] = {
            "at_ns": t_ns[is_arrival],
            "wanted": wanted[is_arrival],
            "tokens": np.bincount(request[is_token], minlength=is_arrival.sum()),
            "token_ns": t_ns[is_token],
        }
    return members
