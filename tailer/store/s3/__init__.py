"""Tables on S3 and servers with its API: one request path over aiobotocore's credentials and
signer."""
