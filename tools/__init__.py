"""What is run by hand or by make, and is no test: the demo, the pages' tables, the release."""
