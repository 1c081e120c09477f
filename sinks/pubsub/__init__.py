"""The sink of Google Cloud Pub/Sub."""
