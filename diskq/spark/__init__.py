"""diskq in Spark: streams and queues as a data source named `diskq`, in bulk and exactly once.

`session()` is a SparkSession with settings for this work. In a session of your own,
`spark.read.format("diskq")` and its three siblings work without any of this. Needs the extra
`diskq[spark]`, and Java; `diskq[spark-jre]` brings a Java along. Whatever needs pyspark is imported when
it is first used. To read on: docs/spark.md.
"""
