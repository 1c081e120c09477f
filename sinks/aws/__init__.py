"""The sinks for Amazon SQS, SNS, Kinesis and Firehose."""
