"""Makes Arrow columns for the Parquet files of a cell.

pa.array is not used because it loads pandas, for which every cell would wait.
"""

import numpy as np
import pyarrow as pa


def text_column(values: list[str | None]) -> pa.DictionaryArray:
    """A dictionary column of texts; None becomes null."""
    texts = pa.lib.StringBuilder()
    texts.append_values(values)
    return texts.finish().dictionary_encode()


def numeric_column(column: np.ndarray, kind: pa.DataType) -> pa.Array:
    """A column of numbers of this type; NaN becomes null."""
    missing = np.isnan(column)
    validity = pa.py_buffer(np.packbits(~missing, bitorder="little"))
    values = np.where(missing, 0, column).astype(kind.to_pandas_dtype())
    return pa.Array.from_buffers(kind, len(values), [validity, pa.py_buffer(values)])
