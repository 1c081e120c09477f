"""Tables on S3 and servers with its API: one request path, aiobotocore's credentials and signer."""
