"""`ArchiveStore`: checkpoints as zip files for download."""

import asyncio
import os
import secrets
import shutil
import zipfile
from pathlib import Path

from retool.engine.wire.checkpoints import Checkpoint

_KEEP = 4
_EPOCH = (1980, 1, 1, 0, 0, 0)


class ArchiveStore:
    """Zip files made on demand, the newest few kept. A checkpoint always gives the same bytes: downloads can resume."""

    def __init__(self, engine_dir: Path) -> None:
        self._directory = engine_dir.resolve() / ".archives"
        shutil.rmtree(self._directory, ignore_errors=True)
        self._lock = asyncio.Lock()

    async def path(self, checkpoint: Checkpoint) -> Path:
        """The archive of a checkpoint, made if need be."""
        async with self._lock:
            return await asyncio.to_thread(self._make, checkpoint)

    def close(self) -> None:
        """Removes all archives."""
        shutil.rmtree(self._directory, ignore_errors=True)

    def _make(self, checkpoint: Checkpoint) -> Path:
        target = self._directory / f"{checkpoint.id}-{checkpoint.version}.zip"
        if not target.exists():
            self._directory.mkdir(parents=True, exist_ok=True)
            partial = target.with_suffix(f".{secrets.token_hex(4)}")
            with zipfile.ZipFile(partial, "w", zipfile.ZIP_STORED) as archive:
                for file in sorted(checkpoint.directory.iterdir()):
                    info = zipfile.ZipInfo(file.name, _EPOCH)
                    with archive.open(info, "w", force_zip64=True) as entry, file.open("rb") as source:
                        shutil.copyfileobj(source, entry, 2**20)
            partial.rename(target)
        os.utime(target)
        for old in sorted(self._directory.glob("*.zip"), key=lambda path: path.stat().st_mtime)[:-_KEEP]:
            old.unlink(missing_ok=True)
        return target
