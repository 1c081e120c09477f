"""The Delta Sharing server: tables on disk or S3, shared over the protocol's REST API."""
