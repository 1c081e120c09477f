"""The data source: its options, its planning in the driver, its readers."""
