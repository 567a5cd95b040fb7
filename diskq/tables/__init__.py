"""Tables: the complete segments of a stream or a journal as Parquet files, one each, named by their offsets.

The format is in docs/format/table.md. What is public is in `diskq`: `open_table`, `Table`, `read_arrow`.
"""
