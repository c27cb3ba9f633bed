"""Arrow columns made of numpy's, for the Parquet files of a cell.

Made from buffers: pa.array would have every cell wait until it had loaded pandas.
"""

import numpy as np
import pyarrow as pa


def dictionary(values: list[str | None]) -> pa.DictionaryArray:
    """Texts as a dictionary column; None is null."""
    known = list(dict.fromkeys(value for value in values if value is not None))
    codes = [known.index(value) if value is not None else np.nan for value in values]
    encoded = [value.encode() for value in known]
    ends = pa.py_buffer(np.cumsum([0, *map(len, encoded)], dtype=np.int32))
    texts = pa.StringArray.from_buffers(len(known), ends, pa.py_buffer(b"".join(encoded)))
    return pa.DictionaryArray.from_arrays(arrow(np.array(codes, float), pa.int32()), texts)


def arrow(column: np.ndarray, kind: pa.DataType) -> pa.Array:
    """Numbers as a column of this kind, NaN as null."""
    missing = np.isnan(column)
    there = pa.py_buffer(np.packbits(~missing, bitorder="little"))
    values = np.where(missing, 0, column).astype(kind.to_pandas_dtype())  # numpy's, in fact
    return pa.Array.from_buffers(kind, len(values), [there, pa.py_buffer(values)])
