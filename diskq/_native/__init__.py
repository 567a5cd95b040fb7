# The compiled room. Law: bytes in, records out; no judgement, and no room above it is imported.
#
# A source tree is not compiled by looking at it, and Python's own "No module named
# 'diskq._native.nsq'" would send its reader looking for a missing package. So say it here, once; and where
# there are modules for another Python or machine, which an archive may have brought, say that.

try:
    import diskq._native.nsq  # noqa: F401  (any compiled module would tell; this one is always used)
except ModuleNotFoundError as error:
    if not (error.name or "").startswith(f"{__name__}."):
        raise
    import importlib.machinery
    import importlib.resources

    names = [file.name.split(".") for file in importlib.resources.files(__name__).iterdir()]
    others = [name[1] for name in names if name[0] == "nsq" and name[-1] in ("so", "pyd")]
    if others:
        ours = importlib.machinery.EXTENSION_SUFFIXES[0].split(".")[1]
        sentence = f"diskq is compiled for {others[0]}, and this Python is {ours}: it needs one of its own"
    else:
        sentence = "diskq is not compiled: run `make build` or `pip install -e .` in the source tree"
    raise ImportError(sentence) from None
