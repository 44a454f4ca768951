import numpy as np


def ids_of(values):
    """Token ids as a contiguous int32 array: of a list, a NumPy array, or anything that speaks DLPack."""
    if not isinstance(values, np.ndarray) and hasattr(values, "__dlpack__"):
        values = np.from_dlpack(values)
    array = np.asarray(values)
    if array.size == 0:
        return np.zeros(0, np.int32)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(f"expected a list of token ids, got {array.dtype} of shape {array.shape}")
    if array.dtype != np.int32 and (array.max() > 2**31 - 1 or array.min() < -(2**31)):
        raise ValueError("token ids beyond 32 bits")
    return np.ascontiguousarray(array, np.int32)
