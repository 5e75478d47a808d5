"""What users import into their own pipelines."""
