# The compiled room. Law: bytes in, records out; no judgement, and no room above it is imported.
#
# A source tree is not compiled by looking at it, and Python's own "No module named
# 'diskq._native.nsq'" would send its reader looking for a missing package. So say it here, once.

try:
    import diskq._native.nsq  # noqa: F401  (any compiled module would tell; this one is always used)
except ModuleNotFoundError as error:
    if not (error.name or "").startswith(f"{__name__}."):
        raise
    raise ImportError(
        "diskq is not compiled: run `make build` or `pip install -e .` in the source tree"
    ) from None
