"""How sccache's server reaches its bucket: by the usual AWS settings, and with credentials of its own.

The server tries compilers out with its environment, so credentials are in a file there, and not in variables.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
from botocore.awsrequest import AWSRequest
from botocore.exceptions import BotoCoreError, SSLError
from botocore.httpsession import URLLib3Session
from botocore.utils import get_environ_proxies

from core.stores.s3_client import shared_connection
from core.stores.s3_errors import explained

if TYPE_CHECKING:
    from core.stores.s3_client import Connection

# sccache finds these by itself, and renews them. Others are handed to it as they are now.
_RENEWED_BY_SCCACHE = ("assume-role-with-web-identity", "iam-role")


@dataclass(frozen=True, kw_only=True)
class BucketAccess:
    """How a server reaches its bucket.

    Attributes:
        endpoint: The service's address.
        variables: The server's whole environment.
        is_anonymous: Whether it has no credentials, with which a bucket can be read at most.
        credentials: The text of its credentials file; None where it needs none.
    """

    endpoint: str
    variables: Mapping[str, str]
    is_anonymous: bool = False
    credentials: str | None = field(default=None, repr=False)


def bucket_access(env: Mapping[str, str], *, credentials_file: Path) -> BucketAccess:
    """Return how a server reaches the bucket that its environment names; its own settings go first."""
    connection = shared_connection()
    variables = {**_service_variables(connection), **env}
    credentials: str | None = None
    if connection.signed:
        credentials = _credentials_text(env["SCCACHE_BUCKET"])
    else:
        variables["SCCACHE_S3_NO_CREDENTIALS"] = "true"
        variables["SCCACHE_S3_RW_MODE"] = "READ_ONLY"

    if credentials is not None:
        variables = {name: value for name, value in variables.items() if not name.startswith("AWS_")}
        variables["AWS_CONFIG_FILE"] = os.devnull
        variables["AWS_SHARED_CREDENTIALS_FILE"] = str(credentials_file)
    return BucketAccess(
        endpoint=connection.endpoint,
        variables=variables,
        is_anonymous=not connection.signed,
        credentials=credentials,
    )


def does_answer(endpoint: str, *, seconds: int) -> bool:
    """Return whether a service answers at all, be it with an error or an untrusted certificate."""
    session = URLLib3Session(timeout=seconds, proxies=get_environ_proxies(endpoint))
    try:
        session.send(AWSRequest("HEAD", endpoint).prepare())
    except SSLError:
        return True
    except (BotoCoreError, ValueError):
        return False
    return True


def _service_variables(connection: Connection) -> Mapping[str, str]:
    """Return the region, and the address of a service that is not Amazon's own."""
    variables = {"SCCACHE_REGION": connection.client.meta.region_name or "us-east-1"}
    if not connection.is_amazon:
        variables["SCCACHE_ENDPOINT"] = connection.endpoint
        variables["SCCACHE_S3_USE_SSL"] = str(connection.endpoint.startswith("https:")).lower()
    return variables


def _credentials_text(bucket: str) -> str | None:
    """Return the text of a credentials file; None where sccache finds credentials by itself."""
    with explained(f"s3://{bucket}"):
        credentials = boto3.session.Session().get_credentials()
        if credentials is None or credentials.method in _RENEWED_BY_SCCACHE:
            return None
        keys = credentials.get_frozen_credentials()

    lines = [
        "[default]",
        f"aws_access_key_id = {keys.access_key}",
        f"aws_secret_access_key = {keys.secret_key}",
    ]
    if keys.token:
        lines.append(f"aws_session_token = {keys.token}")
    return "\n".join([*lines, ""])
