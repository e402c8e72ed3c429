"""Files of datasets: found in a user's folder or in the cache, else downloaded, and verified by a checksum."""

import gzip
import hashlib
import io
import os
import zlib
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from fedprivjax.atomic_write import write_atomically
from fedprivjax.datasets.dataset import DataError, DataNotFound

GZIP, ENDING = b"\x1f\x8b", ".gz"


def cache() -> Path:
    """Return the path of the folder into which data files are downloaded. The folder may not exist yet."""
    return Path(platformdirs.user_cache_dir("fedprivjax"))


@dataclass(frozen=True)
class DataFile:
    """A file of a dataset, gzipped or not.

    Attributes:
        folder: name of its folder in `$FEDPRIVJAX_DATA` and in the cache.
        name: name of the file at the mirrors.
        sum: SHA-256 of the file.
        mirrors: addresses before the name.
        of_payload: True if `sum` is that of the uncompressed payload, by which an uncompressed file is verified, too.
    """

    folder: str
    name: str
    sum: str
    mirrors: tuple[str, ...] = ()
    of_payload: bool = False

    def path(self) -> Path | None:
        """Return the path of the file, or None if it must be downloaded."""
        names = (self.name, self.name.removesuffix(ENDING)) if self.of_payload else (self.name,)
        paths = [folder / name for folder in self._folders() for name in names]
        return next((path for path in paths if path.is_file()), None)

    def read(self) -> bytes:
        """Return the uncompressed content.

        Raises:
            DataError: if the file is damaged, or cannot be read or written.
            DataNotFound: if there is no file, and no mirror responds.
        """
        path = self.path()
        return self._download() if path is None else self.read_at(path)

    def read_at(self, path: Path) -> bytes:
        """Return the uncompressed content of a path. Raise DataError if it cannot be read or is damaged."""
        try:
            return self._verified(path.read_bytes(), str(path))
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror}") from error

    def _folders(self) -> list[Path]:
        own = os.environ.get("FEDPRIVJAX_DATA")
        return ([Path(own) / self.folder] if own else []) + [cache() / self.folder]

    def _verified(self, content: bytes, origin: str) -> bytes:
        """Return the uncompressed content. Raise DataError unless its SHA-256 is the expected one."""
        if not self.of_payload:
            self._require_sum(content, origin, "")
        try:
            payload = gzip.decompress(content) if content.startswith(GZIP) else content
        except (EOFError, OSError, zlib.error) as error:
            raise DataError(f"{origin} is damaged and must be replaced: {str(error).rstrip('.')}") from error
        if self.of_payload:
            self._require_sum(payload, origin, " payload's")
        return payload

    def _require_sum(self, content: bytes, origin: str, of: str) -> None:
        digest = hashlib.sha256(content).hexdigest()
        if digest != self.sum:
            raise DataError(
                f"{origin} is damaged and must be replaced: its{of} SHA-256 must be {self.sum}, got {digest}"
            )

    def _download(self) -> bytes:
        import pooch  # slow, and needed only here

        failures = []
        for mirror in self.mirrors:
            url, content = f"{mirror}{self.name}", io.BytesIO()
            try:
                pooch.HTTPDownloader()(url, content, None)
                payload = self._verified(content.getvalue(), url)
            except DataError:
                failures.append(f"{mirror} (damaged file)")
            except OSError as error:  # base class of the exceptions of requests
                failures.append(f"{mirror} ({type(error).__name__})")
            else:
                self._store(content.getvalue())
                return payload
        own = os.environ.get("FEDPRIVJAX_DATA")
        where = f"$FEDPRIVJAX_DATA/{self.folder} ({Path(own) / self.folder})" if own else "$FEDPRIVJAX_DATA (not set)"
        raise DataNotFound(
            f"cannot find {self.name}: not in {where}, not in the cache ({cache() / self.folder}), not at "
            f"{', '.join(failures)}; set FEDPRIVJAX_DATA to a folder that holds {self.folder}/{self.name}"
        )

    def _store(self, content: bytes) -> None:
        """Write a download. Raise DataError if it cannot be written."""
        path = cache() / self.folder / self.name
        try:
            write_atomically(path, content)
        except OSError as error:
            remedy = f"set FEDPRIVJAX_DATA to a folder with {self.folder}/"
            raise DataError(f"cannot write {path}: {error.strerror}; {remedy}") from error
