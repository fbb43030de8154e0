"""How sccache reaches the S3 service that this process's AWS settings name, and whether that answers."""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from core.stores.s3_client import explained, shared_connection
from pytorch_build.build.compiler_cache import S3Access

if TYPE_CHECKING:
    from collections.abc import Mapping

    from types_boto3_s3 import S3Client

# sccache finds these by itself and renews them; others are handed to it as they are now
_RENEWED = frozenset({"assume-role-with-web-identity", "iam-role"})
_DEFAULT_REGION = "us-east-1"


def s3_access(bucket: str) -> S3Access:
    """Ask botocore for the endpoint, the bucket's region and the credentials."""
    connection = shared_connection()
    region, endpoint = connection.client.meta.region_name or _DEFAULT_REGION, connection.endpoint
    if connection.is_amazon and (there := _region(connection.client, bucket)) not in ("", region):
        region, endpoint = there, f"https://s3.{there}.amazonaws.com"
    with explained(f"s3://{bucket}"):
        found = boto3.session.Session().get_credentials() if connection.signed else None
        frozen = found.get_frozen_credentials() if found and found.method not in _RENEWED else None
    return S3Access(
        endpoint=endpoint,
        region=region,
        access_key=(frozen.access_key or "") if frozen else "",
        secret_key=(frozen.secret_key or "") if frozen else "",
        token=(frozen.token or "") if frozen else "",
        anonymous=not connection.signed,
    )


def _region(client: S3Client, bucket: str) -> str:
    """Ask where a bucket lies; "" where nobody says. S3 says so also to whom it tells nothing else."""
    headers: Mapping[str, Any]
    try:
        headers = client.head_bucket(Bucket=bucket)["ResponseMetadata"]["HTTPHeaders"]
    except ClientError as problem:
        headers = problem.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    except (BotoCoreError, OSError):
        return ""
    return str(headers.get("x-amz-bucket-region", ""))


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Takes a redirection as the answer: Amazon's leads to a page for people, elsewhere."""

    def redirect_request(self, *_: object) -> None:
        """Follow none."""


def answers(endpoint: str, *, seconds: float) -> bool:
    """Say whether a service answers at all, be it with an error, or with a certificate of nobody known."""
    opener = urllib.request.build_opener(_NoRedirects)
    try:
        request = urllib.request.Request(endpoint, method="HEAD")  # noqa: S310 - botocore's endpoint, which is HTTP
        opener.open(request, timeout=seconds).close()
    except urllib.error.HTTPError:
        return True
    except urllib.error.URLError as problem:
        return isinstance(problem.reason, ssl.SSLError)
    except (OSError, ValueError):
        return False
    return True
