"""What DP-SGD can and cannot promise: separation and noise bounds."""
