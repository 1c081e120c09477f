"""Search engines with Elasticsearch's API: OpenSearch and Elasticsearch."""
