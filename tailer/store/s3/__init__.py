"""Tables on S3 and servers with its API: aiobotocore's credentials, and our own signer."""
