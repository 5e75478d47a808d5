"""The HTTP doors: one module per resource."""
