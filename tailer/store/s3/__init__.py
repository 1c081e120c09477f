"""S3, and servers with its API: options, region, server and account."""
