import diskq
import diskq.spark

with diskq.Stream("pages") as stream:
    stream.append_many([("ada", b"/"), ("grace", b"/docs"), ("ada", b"/docs")])

spark = diskq.spark.session()

pages = spark.read.format("diskq").load("pages")  # as from Kafka: key, value, partition, offset, timestamp
pages.groupBy(pages.key.cast("string").alias("who")).count().orderBy("who").show()

query = (
    spark.readStream.format("diskq")
    .option("startingOffsets", "earliest")
    .load("pages")
    .selectExpr("key", "upper(cast(value as string)) as value", "timestamp")
    .writeStream.format("diskq")
    .option("checkpointLocation", "shouted.checkpoint")
    .trigger(availableNow=True)
    .start("shouted")  # another stream: each message once, whatever is killed when
)
query.awaitTermination()
print(spark.read.format("diskq").load("shouted").count(), "messages shouted")
