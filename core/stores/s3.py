"""A store in an S3 bucket, of Amazon's or of a server that speaks like it.

Every object carries its SHA-256 in its metadata. Requests that a service was too busy for are made
again; those it refused are not.
"""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import quote

from botocore.exceptions import ClientError

from core import files
from core.errors import ConflictError, UsageError
from core.stores import (
    Outcome,
    Store,
    Stored,
    refuse_other_bytes,
    refuse_other_digest,
    require_digest,
)
from core.stores import s3_copying as copying
from core.stores import s3_reading as reading
from core.stores import s3_transfer as transfer
from core.stores.s3_bucket import Bucket, carried
from core.stores.s3_client import connection_for
from core.stores.s3_conditions import keeps_folders, machine_lock, turn
from core.stores.s3_errors import ABSENT, code_of
from core.stores.s3_writing import Write, write

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from core.errors import StoreError
    from core.stores.s3_writing import Send


def open_bucket(location: str, environment: Mapping[str, str]) -> S3Store:
    """Open ``s3://bucket`` or ``s3://bucket/prefix``.

    Raises:
        UsageError: It names no bucket, or its prefix is none.
        StoreError: The AWS settings cannot be meant.
    """
    bucket, _, prefix = location.removeprefix("s3://").partition("/")
    prefix = prefix.rstrip("/")
    if not bucket or (prefix and any(part in {"", ".", ".."} for part in prefix.split("/"))):
        raise UsageError(
            f"--store {location!r} is no bucket.", hint="Give s3://bucket or s3://bucket/prefix."
        )
    return S3Store(connection=connection_for(environment), bucket=bucket, prefix=prefix)


@dataclass(frozen=True, kw_only=True)
class S3Store(Bucket):
    """Run outputs in a bucket.

    Conditional writes hold as `core.stores.s3_conditions` says: by S3 itself where it can, else by
    comparing before and verifying after.
    """

    sizes: transfer.Sizes = field(default_factory=transfer.Sizes)

    def url_of(self, key: str) -> str:
        """Give the address under which clients read a key: by the bucket's own name where it is Amazon's."""
        whole_key = quote(f"{self.prefix}/{key}" if self.prefix else key)
        if self.connection.is_amazon and "." not in self.bucket:
            return f"https://{self.bucket}.s3.amazonaws.com/{whole_key}"
        return f"{self.connection.endpoint.rstrip('/')}/{self.bucket}/{whole_key}"

    def keeps_folder_pages(self, prefix: str) -> bool:
        """Say yes for Amazon; another server is tried, once a bucket and process."""
        folder = self.place(f"{prefix}/" if prefix else "")["Key"]
        with self.writing(prefix):
            return keeps_folders(self.connection, self.bucket, folder)

    def list(self, prefix: str, *, recursive: bool = True) -> Sequence[Stored]:
        """List the objects under `prefix`, sorted by key; or only those directly in that folder."""
        return self.listed(prefix, recursive=recursive)

    def folders(self, prefix: str) -> Sequence[str]:
        """Name the folders directly under `prefix`, sorted; a request for each thousand."""
        return self.parts(prefix)

    def find(self, key: str) -> Stored | None:
        """Look one object up."""
        seen = self.look(key)
        return seen.stored if seen else None

    def digest(self, key: str) -> str:
        """Give an object's hex SHA-256: the one it carries, else that of its bytes."""
        return self.digest_of(self.existing(key))

    def read(self, key: str) -> bytes:
        """Read a small object whole; it has to have the digest that it carries."""
        stream = self.stream(key)
        with reading.buffered(stream) as buffered:
            data = buffered.read()
        sha256 = carried(stream.metadata)
        if sha256 and hashlib.sha256(data).hexdigest() != sha256:
            raise self.broken(key, sha256)
        return data

    def open(self, key: str) -> BinaryIO:
        """Open an object for reading it once; a connection that breaks is followed by another one."""
        return reading.buffered(self.stream(key))

    def fetch(self, key: str, folder: Path) -> Path:
        """Download an object to `folder`; one that was half there before is gone on with."""
        seen = self.existing(key)
        path = files.made(folder) / PurePosixPath(key).name
        part = path.with_name(f".{path.name}.{files.sha256_text(seen.stored.etag)[:16]}.part")
        with machine_lock(str(path.resolve())):
            if path.is_file() and seen.sha256 and files.sha256(path) == seen.sha256:
                return path
            had = part.stat().st_size if part.is_file() else 0
            start = had if had < seen.stored.size else 0
            found = reading.fetch(self.stream(key, start=start, etag=seen.stored.etag), part)
            if seen.sha256 and found != seen.sha256:
                part.unlink()
                raise self.broken(key, seen.sha256)
            part.replace(path)
        return path

    def put_file(
        self, key: str, source: Path, *, sha256: str, replace: bool, absent: bool = False
    ) -> Outcome:
        """Upload a file, in parts where it is large."""
        size = source.stat().st_size
        whole = size <= self.sizes.part

        def send(condition: Mapping[str, Any]) -> None:
            if whole:
                transfer.put(self._target(key, sha256), transfer.read(source, sha256), condition)
            else:
                target, part = self._target(key, sha256), self.sizes.part
                transfer.upload(target, source, sha256, condition=condition, part=part)

        return self._write(key, sha256, size, send, replace=replace, whole=whole, absent=absent)

    def put_bytes(
        self,
        key: str,
        data: bytes,
        *,
        if_match: str | None = None,
        replace: bool = True,
        absent: bool = False,
    ) -> Outcome:
        """Upload a small object, on the condition that nobody else wrote it meanwhile."""
        sha256 = hashlib.sha256(data).hexdigest()

        def send(condition: Mapping[str, Any]) -> None:
            transfer.put(self._target(key, sha256), data, condition)

        return self._write(
            key, sha256, len(data), send, replace=replace, whole=True, if_match=if_match, absent=absent
        )

    def copy(self, key: str, source: Store, source_key: str, *, sha256: str, replace: bool) -> Outcome:
        """Copy an object: on the server from a bucket of the same service, else through this machine."""
        if not isinstance(source, S3Store) or source.connection is not self.connection:
            require_digest(source, source_key, sha256)
            with tempfile.TemporaryDirectory(prefix="copy.") as folder:
                path = source.fetch(source_key, Path(folder))
                return self.put_file(key, path, sha256=sha256, replace=replace)
        seen = source.existing(source_key)
        found = source.digest_of(seen)
        if found != sha256:
            raise refuse_other_digest(source, source_key, found, sha256)

        def send(condition: Mapping[str, Any]) -> None:
            target = self._target(key, sha256)
            copying.copy(target, source, seen.stored, condition=condition, sizes=self.sizes)

        return self._write(key, sha256, seen.stored.size, send, replace=replace, whole=False)

    def delete(self, key: str) -> None:
        """Delete an object; one that is not there is no error."""
        with self.writing(key):
            try:
                self.connection.client.delete_object(**self.place(key))
            except ClientError as problem:
                if code_of(problem) not in ABSENT:
                    raise

    def _write(  # noqa: PLR0913 - all that makes one write another
        self,
        key: str,
        sha256: str,
        size: int,
        send: Send,
        *,
        replace: bool,
        whole: bool,
        if_match: str | None = None,
        absent: bool = False,
    ) -> Outcome:
        etag = "" if if_match is None and not replace else if_match
        refusal: StoreError = refuse_other_bytes(key, self.url)
        with turn(self.connection, self.place(key), etag, whole=whole) as in_turn:
            # where S3 does not hold to conditions, what was listed a while ago is not enough
            trusted = absent and not in_turn and if_match is None
            present = None if trusted else self.look(key)
            if present is not None and self.digest_of(present) == sha256:
                return "unchanged"
            if present is not None and not replace:
                raise refusal
            if if_match is not None:
                refusal = ConflictError(f"{key} in {self.url} was written by somebody else meanwhile.")
            if etag is not None and (present.stored.etag if present else "") != etag:
                raise refusal
            asked = Write(
                bucket=self,
                key=key,
                sha256=sha256,
                size=size,
                etag=etag,
                send=send,
                whole=whole,
                in_turn=in_turn,
                refusal=refusal,
            )
            write(asked)
        return "written"

    def _target(self, key: str, sha256: str) -> transfer.Target:
        return transfer.Target(
            connection=self.connection, place=self.place(key), headers=self.headers(key, sha256)
        )
