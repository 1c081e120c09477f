"""Prints what a queue, a stream or a bucket has: python aws_messages.py sqs|kinesis|s3 NAME."""

import sys

from botocore.session import Session  # boto3.client() does the same

kind, name = sys.argv[1:]
client = Session().create_client(kind)
if kind == "sqs":
    url = client.get_queue_url(QueueName=name)["QueueUrl"]
    # What is not deleted can be received again, here after a second.
    asked = {"QueueUrl": url, "MaxNumberOfMessages": 10, "VisibilityTimeout": 1}
    while found := client.receive_message(**asked).get("Messages"):
        for message in found:
            print(message["Body"])
elif kind == "kinesis":
    for shard in client.list_shards(StreamName=name)["Shards"]:
        asked = {"StreamName": name, "ShardId": shard["ShardId"]}
        asked["ShardIteratorType"] = "TRIM_HORIZON"
        place = client.get_shard_iterator(**asked)["ShardIterator"]
        while (answer := client.get_records(ShardIterator=place))["Records"]:
            for record in answer["Records"]:
                print(record["Data"].decode())
            place = answer["NextShardIterator"]
else:
    for found in client.list_objects_v2(Bucket=name).get("Contents", []):
        print(client.get_object(Bucket=name, Key=found["Key"])["Body"].read().decode(), end="")
