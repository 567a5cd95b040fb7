import diskq.spark

spark = diskq.spark.session()  # or a session of your own: it finds format("diskq") too

clicks = spark.createDataFrame([("ada", "one"), ("grace", "two"), ("ada", "three")], ["key", "value"])
clicks.write.format("diskq").mode("append").save("clicks")  # all of it is in the stream and synced, or none

rows = spark.read.format("diskq").load("clicks").where("timestamp >= '2013-11-13'")  # the rest is not read
rows.groupBy(rows.key.cast("string").alias("who")).count().show()
