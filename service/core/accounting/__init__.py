"""Certified accounting of privacy events."""
