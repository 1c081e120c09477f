"""What tests and third parties use: a demo, a table builder, conformance suites."""
