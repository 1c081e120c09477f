"""What is compiled, and what stands in for it where there is no compiler."""
