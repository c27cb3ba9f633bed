"""Arrow columns made of numpy's, for the Parquet files of a cell.

pa.array would have every cell wait until it had loaded pandas.
"""

import numpy as np
import pyarrow as pa


def text_column(values: list[str | None]) -> pa.DictionaryArray:
    """Texts as a dictionary column; None is null."""
    texts = pa.lib.StringBuilder()
    texts.append_values(values)
    return texts.finish().dictionary_encode()


def numeric_column(column: np.ndarray, kind: pa.DataType) -> pa.Array:
    """Numbers as a column of this kind, NaN as null."""
    missing = np.isnan(column)
    there = pa.py_buffer(np.packbits(~missing, bitorder="little"))
    values = np.where(missing, 0, column).astype(kind.to_pandas_dtype())  # numpy's, in fact
    return pa.Array.from_buffers(kind, len(values), [there, pa.py_buffer(values)])
