# The compiled layer. Law: bytes in, records out; no judgement, and no layer above it is imported.
#
# A source tree has no compiled modules, and Python's own "No module named 'diskq._native.queue.codec'" would
# suggest that a package is missing. So the error says what is missing; and if there are modules for another
# Python or machine, or in a zip file, from which Python imports none, it says that: on a Spark executor this
# is the first symptom. diskq/spark/errors.py knows these sentences.

try:
    import diskq._native.queue.codec  # noqa: F401  (any compiled module would do; this one is always used)
except ModuleNotFoundError as error:
    if not (error.name or "").startswith(f"{__name__}."):
        raise
    import importlib.machinery
    import importlib.resources

    beside = importlib.resources.files(__name__) / "queue"
    names = [file.name.split(".") for file in beside.iterdir()]
    others = [name[1] for name in names if name[0] == "codec" and name[-1] in ("so", "pyd")]
    ours = importlib.machinery.EXTENSION_SUFFIXES[0].split(".")[1]
    if ours in others:
        sentence = (
            f"diskq is compiled, but Python imports no compiled modules from a zip file ({__path__[0]}): "
            "install it; to Spark's executors ship what `python -m diskq.spark.shipping` makes"
        )
    elif others:
        sentence = (
            f"diskq is compiled for {others[0]}, and this Python is {ours}: install diskq for it; to Spark's "
            "executors ship what `python -m diskq.spark.shipping` makes with the same Python"
        )
    else:
        sentence = (
            "diskq is not compiled: run `make build` or `pip install -e .` in the source tree; to Spark's "
            "executors ship what `python -m diskq.spark.shipping` makes"
        )
    raise ImportError(sentence) from None
