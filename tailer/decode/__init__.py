"""From one data file to its changed rows: pure, synchronous, columnar."""
