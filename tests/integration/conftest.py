"""Servers that every integration test may ask for."""

from __future__ import annotations

from tests.integration.s3_servers import rclone, rclone_server

__all__ = ["rclone", "rclone_server"]
